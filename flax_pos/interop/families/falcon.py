"""Falcon: three blocks under one name."""

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


def _kv_heads(keys: Keys) -> int | None:
    if keys.flag("new_decoder_architecture", False):
        return keys.size("num_kv_heads|n_head_kv", None)
    keys.ignore("num_kv_heads", "n_head_kv")
    return 1 if keys.flag("multi_query", True) else None


_SETTINGS = {
    **sizes(
        vocab_size="vocab_size",
        width="hidden_size",
        layers="num_hidden_layers|n_layer",
        heads="num_attention_heads|n_head",
    ),
    "kv_heads": _kv_heads,
    "max_len": size("max_position_embeddings", 2048),
    "mlp_width": size("ffn_hidden_size", None),
    "activation": choice("activation", ACTIVATIONS, "gelu"),
    "norm": "layer",
    "norm_eps": number("layer_norm_epsilon", 1e-5),
    **{name: flag("bias", False) for name in BIASED},
}
_BLOCK = {
    "self_attention.query_key_value": Fused(QKV, "group"),
    "self_attention.dense": "attention.out",
    "mlp.dense_h_to_4h": "mlp.up",
    "mlp.dense_4h_to_h": "mlp.down",
}
_NAMES = {
    "prefix": "transformer.",
    "layers": "h.{}",
    "outside": {"word_embeddings.weight": "embed.embedding", "ln_f": "norm"},
    "unused": ("rotary_emb.inv_freq",),
    "positions": at.falcon,
    "accepts": frozenset(
        {"alibi_bias_max", "num_ln_in_parallel_attn", "parallel_attn", "multi_query"}
    ),
}


FALCON_TWO_NORMS = Family(
    types=("falcon", "RefinedWeb"),
    when={"new_decoder_architecture": True, "num_ln_in_parallel_attn": (None, 2)},
    settings={**_SETTINGS, "residual": "parallel"},
    block={**_BLOCK, "ln_attn": "attention_norm", "ln_mlp": "mlp_norm"},
    **_NAMES,
)
FALCON_ONE_NORM = Family(
    types=("falcon", "RefinedWebModel"),
    when={"parallel_attn": (None, True)},
    settings={**_SETTINGS, "residual": "parallel_one_norm"},
    block={**_BLOCK, "input_layernorm": "attention_norm"},
    **_NAMES,
)
FALCON_SEQUENTIAL = Family(
    types=("falcon",),
    settings=_SETTINGS,
    block={**_BLOCK, **TWO_NORMS},
    **_NAMES,
)
