"""What the tables of several families share."""

from collections.abc import Mapping

from flax_pos.interop.family import Fused
from flax_pos.interop.keys import Key, choice, flag, number, size

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
QKV = ("attention.q", "attention.k", "attention.v")
GATE_UP = Fused(("mlp.gate", "mlp.up"))


def sizes(**names: str) -> dict[str, Key]:
    return {name: size(keys) for name, keys in names.items()}


LLAMA_SETTINGS = {
    **sizes(
        vocab_size="vocab_size",
        width="hidden_size",
        layers="num_hidden_layers",
        heads="num_attention_heads",
        max_len="max_position_embeddings",
        mlp_width="intermediate_size",
    ),
    "kv_heads": size("num_key_value_heads", None),
    "head_dim": size("head_dim", None),
    "activation": choice("hidden_act|hidden_activation", ACTIVATIONS, "silu"),
    "norm_eps": number("rms_norm_eps", 1e-6),
    "mlp": "gated",
}
SELF_ATTENTION: Mapping[str, str | Fused] = {
    "self_attn.q_proj": "attention.q",
    "self_attn.k_proj": "attention.k",
    "self_attn.v_proj": "attention.v",
    "self_attn.o_proj": "attention.out",
}
GATED_MLP: Mapping[str, str | Fused] = {
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}
TWO_NORMS: Mapping[str, str | Fused] = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
}
QK_NORMS: Mapping[str, str | Fused] = {
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
}
LLAMA_BLOCK = {**SELF_ATTENTION, **GATED_MLP, **TWO_NORMS}
LLAMA_OUTSIDE = {"embed_tokens.weight": "embed.embedding", "norm": "norm"}
LLAMA_NAMES = {
    "layers": "layers.{}",
    "block": LLAMA_BLOCK,
    "outside": LLAMA_OUTSIDE,
    "unused": ("rotary_emb.inv_freq",),
}
ATTENTION_BIASES = {
    "qkv_bias": flag("attention_bias", False),
    "out_bias": flag("attention_bias", False),
}


BIASED = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
