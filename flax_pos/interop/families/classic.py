"""Families from before Llama."""

from flax_pos.interop import positions as at
from flax_pos.interop.families.common import (
    ACTIVATIONS,
    BIASED,
    QKV,
    TWO_NORMS,
    sizes,
)
from flax_pos.interop.family import Family, Fused
from flax_pos.interop.keys import Keys, choice, flag, number, size

_GPT2_SETTINGS = {
    **sizes(
        vocab_size="vocab_size",
        width="n_embd|hidden_size",
        layers="n_layer|num_hidden_layers",
        heads="n_head|num_attention_heads",
        max_len="n_positions|max_position_embeddings|n_ctx",
    ),
    "mlp_width": size("n_inner", None),
    "activation": choice("activation_function", ACTIVATIONS, "gelu_new"),
    "norm": "layer",
    "norm_eps": number("layer_norm_epsilon", 1e-5),
}
_SUMMARY = frozenset(
    [
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    ]
)

GPT2 = Family(
    types=("gpt2",),
    settings={
        **_GPT2_SETTINGS,
        **BIASED,
        "attn_scale": lambda keys: None if keys.flag("scale_attn_weights", True) else 1.0,
    },
    must={"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    accepts=_SUMMARY | {"reorder_and_upcast_attn"},
    positions=at.learned(0),
    prefix="transformer.",
    layers="h.{}",
    block={
        "ln_1": "attention_norm",
        "attn.c_attn": Fused(QKV),
        "attn.c_proj": "attention.out",
        "ln_2": "mlp_norm",
        "mlp.c_fc": "mlp.up",
        "mlp.c_proj": "mlp.down",
    },
    outside={
        "wte.weight": "embed.embedding",
        "wpe.weight": "position.params.0.model.table",
        "ln_f": "norm",
    },
    unused=(".attn.bias", ".attn.masked_bias"),
    kernels="in_out",
)
GPTJ = Family(
    types=("gptj",),
    settings={
        **_GPT2_SETTINGS,
        "mlp_bias": True,
        "residual": "parallel_one_norm",
        "head_bias": True,
    },
    accepts=_SUMMARY | {"scale_attn_weights"},
    positions=at.rope,
    prefix="transformer.",
    layers="h.{}",
    block={
        "ln_1": "attention_norm",
        "attn.q_proj": "attention.q",
        "attn.k_proj": "attention.k",
        "attn.v_proj": "attention.v",
        "attn.out_proj": "attention.out",
        "mlp.fc_in": "mlp.up",
        "mlp.fc_out": "mlp.down",
    },
    outside={"wte.weight": "embed.embedding", "ln_f": "norm"},
    unused=(".attn.bias", ".attn.masked_bias", ".attn.embed_positions"),
)
GPT_NEOX = Family(
    types=("gpt_neox",),
    settings={
        **sizes(
            vocab_size="vocab_size",
            width="hidden_size",
            layers="num_hidden_layers",
            heads="num_attention_heads",
            max_len="max_position_embeddings",
            mlp_width="intermediate_size",
        ),
        "activation": choice("hidden_act", ACTIVATIONS, "gelu"),
        "norm": "layer",
        "norm_eps": number("layer_norm_eps", 1e-5),
        "residual": lambda keys: (
            "parallel" if keys.flag("use_parallel_residual", True) else "sequential"
        ),
        "qkv_bias": flag("attention_bias", True),
        "out_bias": flag("attention_bias", True),
        "mlp_bias": True,
    },
    positions=at.rope,
    prefix="gpt_neox.",
    layers="layers.{}",
    block={
        **TWO_NORMS,
        "attention.query_key_value": Fused(QKV, "group"),
        "attention.dense": "attention.out",
        "mlp.dense_h_to_4h": "mlp.up",
        "mlp.dense_4h_to_h": "mlp.down",
    },
    outside={"embed_in.weight": "embed.embedding", "final_layer_norm": "norm"},
    head="embed_out",
    unused=(".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"),
)
OPT = Family(
    types=("opt",),
    settings={
        **sizes(
            vocab_size="vocab_size",
            width="hidden_size",
            layers="num_hidden_layers",
            heads="num_attention_heads",
            max_len="max_position_embeddings",
            mlp_width="ffn_dim",
        ),
        "embed_width": lambda keys: _unless_equal(keys, "word_embed_proj_dim", "hidden_size"),
        "activation": choice("activation_function", ACTIVATIONS, "relu"),
        "norm": "layer",
        "norm_eps": 1e-5,
        "norm_at": lambda keys: "input" if keys.flag("do_layer_norm_before", True) else "sum",
        "final_norm": lambda keys: (
            not keys.flag("_remove_final_layer_norm", False)
            and keys.flag("do_layer_norm_before", True)
        ),
        **{name: flag("enable_bias", True) for name in BIASED},
    },
    must={"layer_norm_elementwise_affine": True},
    positions=at.learned(2),
    prefix="model.decoder.",
    layers="layers.{}",
    block={
        "self_attn_layer_norm": "attention_norm",
        "self_attn.q_proj": "attention.q",
        "self_attn.k_proj": "attention.k",
        "self_attn.v_proj": "attention.v",
        "self_attn.out_proj": "attention.out",
        "final_layer_norm": "mlp_norm",
        "fc1": "mlp.up",
        "fc2": "mlp.down",
    },
    outside={
        "embed_tokens.weight": "embed.embedding",
        "embed_positions.weight": "position.params.0.model.table",
        "project_in": "embed_in",
        "project_out": "embed_out",
        "final_layer_norm": "norm",
    },
)


def _unless_equal(keys: Keys, name: str, other: str) -> int | None:
    value = keys.size(name, None)
    return None if value == keys.size(other) else value


BLOOM = Family(
    types=("bloom",),
    settings={
        **sizes(
            vocab_size="vocab_size",
            width="hidden_size|n_embed",
    layers="n_layer|num_hidden_layers",
            heads="n_head|num_attention_heads",
        ),
        "max_len": size("seq_length", 2048),
        "activation": "gelu_tanh",
        "norm": "layer",
        "norm_eps": number("layer_norm_epsilon", 1e-5),
        "embed_norm": True,
        **BIASED,
    },
    must={"apply_residual_connection_post_layernorm": False},
    accepts=frozenset(
        {"attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion",
         "offset_alibi", "skip_bias_add", "skip_bias_add_qkv", "unk_token_id"}
    ),
    positions=at.bloom,
    prefix="transformer.",
    layers="h.{}",
    block={
        **TWO_NORMS,
        "self_attention.query_key_value": Fused(QKV, "group"),
        "self_attention.dense": "attention.out",
        "mlp.dense_h_to_4h": "mlp.up",
        "mlp.dense_4h_to_h": "mlp.down",
    },
    outside={
        "word_embeddings.weight": "embed.embedding",
        "word_embeddings_layernorm": "embed_norm",
        "ln_f": "norm",
    },
)  # fmt: skip


def _mpt_attention(name: str, default=None):
    return lambda keys: keys.mapping("attn_config").number(name, default)


def _mpt_width(keys: Keys) -> int:
    inner = keys.mapping("attn_config")
    inner.must_be(
        {"alibi": True, "qk_ln": False, "prefix_lm": False, "attn_uses_sequence_id": False,
         "attn_type": "multihead_attention"},
        " for 'mpt'",
    )  # fmt: skip
    return 4 * keys.size("d_model")


MPT = Family(
    types=("mpt",),
    settings={
        **sizes(
            vocab_size="vocab_size",
            width="d_model",
    layers="n_layers",
            heads="n_heads",
            max_len="max_seq_len",
        ),
        "mlp_width": _mpt_width,
        "activation": "gelu",
        "norm": "layer",
        "norm_bias": False,
        "norm_eps": number("layer_norm_epsilon", 1e-5),
        "qkv_clip": _mpt_attention("clip_qkv"),
        "attn_scale": _mpt_attention("softmax_scale"),
    },
    must={"no_bias": True, "norm_type": "low_precision_layernorm"},
    accepts=frozenset(
        {
            "embedding_fraction",
            "expansion_ratio",
            "fc_type",
            "ffn_config",
            "init_config",
            "learned_pos_emb",
            "tokenizer_name",
            "verbose",
        }
    ),
    positions=at.mpt,
    prefix="transformer.",
    layers="blocks.{}",
    block={
        "norm_1": "attention_norm",
        "attn.Wqkv": Fused(QKV),
        "attn.out_proj": "attention.out",
        "norm_2": "mlp_norm",
        "ffn.up_proj": "mlp.up",
        "ffn.down_proj": "mlp.down",
    },
    outside={"wte.weight": "embed.embedding", "norm_f": "norm"},
)  # fmt: skip
