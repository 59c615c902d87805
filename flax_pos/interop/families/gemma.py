"""Gemma 2 and 3."""

from flax_pos.interop import positions as at
from flax_pos.interop.families.common import (
    ACTIVATIONS,
    ATTENTION_BIASES,
    GATED_MLP,
    LLAMA_NAMES,
    LLAMA_SETTINGS,
    QK_NORMS,
    SELF_ATTENTION,
)
from flax_pos.interop.family import Family
from flax_pos.interop.keys import choice, number, size

_GEMMA_SETTINGS = {
    **LLAMA_SETTINGS,
    **ATTENTION_BIASES,
    "head_dim": size("head_dim", 256),
    "activation": choice("hidden_activation|hidden_act", ACTIVATIONS, "gelu_pytorch_tanh"),
    "norm_offset": 1.0,
    "norm_at": "both",
    "embed_scale": lambda keys: keys.size("hidden_size") ** 0.5,
    "round_embed_scale": True,
    "attn_scale": lambda keys: keys.number("query_pre_attn_scalar", 256) ** -0.5,
    "attn_softcap": number("attn_logit_softcapping", None),
    "logit_softcap": number("final_logit_softcapping", None),
}
_GEMMA_BLOCK = {
    **SELF_ATTENTION,
    **GATED_MLP,
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attention_out_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_out_norm",
}
_BIDIRECTIONAL = {"use_bidirectional_attention": False}

GEMMA2 = Family(
    types=("gemma2",),
    settings=_GEMMA_SETTINGS,
    must=_BIDIRECTIONAL,
    accepts=frozenset({"cache_implementation"}),
    positions=at.rope,
    **{**LLAMA_NAMES, "block": _GEMMA_BLOCK},
)
GEMMA3 = Family(
    types=("gemma3_text", "gemma3"),
    settings={**_GEMMA_SETTINGS, "qk_norm": "head"},
    must=_BIDIRECTIONAL,
    accepts=frozenset({"cache_implementation", "_sliding_window_pattern"}),
    positions=at.rope,
    **{**LLAMA_NAMES, "block": {**_GEMMA_BLOCK, **QK_NORMS}},
)
