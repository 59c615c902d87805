"""Llama and its many relatives."""

from flax_pos.interop import positions as at
from flax_pos.interop.families.common import (
    ATTENTION_BIASES,
    GATE_UP,
    GATED_MLP,
    LLAMA_BLOCK,
    LLAMA_NAMES,
    LLAMA_SETTINGS,
    QK_NORMS,
    QKV,
    SELF_ATTENTION,
    TWO_NORMS,
)
from flax_pos.interop.family import Family, Fused, PerHead
from flax_pos.interop.keys import flag, number, size

LLAMA = Family(
    types=("llama",),
    settings={**LLAMA_SETTINGS, **ATTENTION_BIASES, "mlp_bias": flag("mlp_bias", False)},
    positions=at.rope,
    **LLAMA_NAMES,
)
MISTRAL = Family(
    types=("mistral",),
    settings=LLAMA_SETTINGS,
    positions=at.rope,
    **LLAMA_NAMES,
)
QWEN2 = Family(
    types=("qwen2",),
    settings={**LLAMA_SETTINGS, "qkv_bias": True},
    positions=at.qwen_rope,
    **LLAMA_NAMES,
)
QWEN3 = Family(
    types=("qwen3",),
    settings={
        **LLAMA_SETTINGS,
        **ATTENTION_BIASES,
        "qk_norm": "head",
        "head_dim": size("head_dim", 128),
    },
    positions=at.qwen_rope,
    **{**LLAMA_NAMES, "block": {**LLAMA_BLOCK, **QK_NORMS}},
)
SMOLLM3 = Family(
    types=("smollm3",),
    settings={**LLAMA_SETTINGS, **ATTENTION_BIASES, "mlp_bias": flag("mlp_bias", False)},
    positions=at.smollm3_rope,
    **LLAMA_NAMES,
)
OLMO2 = Family(
    types=("olmo2",),
    settings={**LLAMA_SETTINGS, **ATTENTION_BIASES, "qk_norm": "projection", "norm_at": "output"},
    positions=at.rope,
    **{
        **LLAMA_NAMES,
        "block": {
            **SELF_ATTENTION,
            **GATED_MLP,
            **QK_NORMS,
            "post_attention_layernorm": "attention_out_norm",
            "post_feedforward_layernorm": "mlp_out_norm",
        },
    },
)
PHI3 = Family(
    types=("phi3",),
    settings=LLAMA_SETTINGS,
    positions=at.rope,
    **{
        **LLAMA_NAMES,
        "block": {
            "self_attn.qkv_proj": Fused(QKV),
            "self_attn.o_proj": "attention.out",
            "mlp.gate_up_proj": GATE_UP,
            "mlp.down_proj": "mlp.down",
            **TWO_NORMS,
        },
    },
)
GLM4 = Family(
    types=("glm4",),
    settings={
        **LLAMA_SETTINGS,
        "qkv_bias": flag("attention_bias", False),
        "head_dim": size("head_dim", 128),
        "norm_at": "both",
    },
    positions=at.rope,
    **{
        **LLAMA_NAMES,
        "block": {
            **SELF_ATTENTION,
            "mlp.gate_up_proj": GATE_UP,
            "mlp.down_proj": "mlp.down",
            "input_layernorm": "attention_norm",
            "post_self_attn_layernorm": "attention_out_norm",
            "post_attention_layernorm": "mlp_norm",
            "post_mlp_layernorm": "mlp_out_norm",
        },
    },
)
STABLELM = Family(
    types=("stablelm", "stablelm_epoch"),
    settings={
        **LLAMA_SETTINGS,
        "norm": "layer",
        "norm_eps": number("layer_norm_eps|norm_eps", 1e-5),
        "qkv_bias": flag("use_qkv_bias", False),
        "qk_norm": lambda keys: "heads" if keys.flag("qk_layernorm", False) else "none",
        "residual": lambda keys: (
            "parallel_one_norm" if keys.flag("use_parallel_residual", False) else "sequential"
        ),
    },
    positions=at.rope,
    **{
        **LLAMA_NAMES,
        "block": {
            **LLAMA_BLOCK,
            "self_attn.q_layernorm.norms.{}.weight": PerHead("attention.q_norm.scale"),
            "self_attn.k_layernorm.norms.{}.weight": PerHead("attention.k_norm.scale"),
        },
    },
)
COHERE2 = Family(
    types=("cohere2",),
    settings={
        **LLAMA_SETTINGS,
        **ATTENTION_BIASES,
        "norm": "layer",
        "norm_bias": False,
        "norm_eps": number("layer_norm_eps", 1e-5),
        "residual": "parallel_one_norm",
        "logit_scale": number("logit_scale", 0.0625),
    },
    accepts=frozenset({"sliding_window_pattern", "use_embedding_sharing", "rotary_pct"}),
    positions=at.rope,
    **{
        **LLAMA_NAMES,
        "block": {**SELF_ATTENTION, **GATED_MLP, "input_layernorm": "attention_norm"},
    },
)
