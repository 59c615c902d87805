"""Families that are known for mixtures of experts: their dense form."""

from flax_pos.interop import positions as at
from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.families.common import (
    ATTENTION_BIASES,
    GATED_MLP,
    LLAMA_NAMES,
    LLAMA_SETTINGS,
    SELF_ATTENTION,
    TWO_NORMS,
)
from flax_pos.interop.family import Expert, Family
from flax_pos.interop.keys import Keys, flag, number, size


def _no_experts(keys: Keys) -> int:
    """Layers, all of which must be dense."""
    layers = keys.size("num_hidden_layers")
    dense = keys.size("first_k_dense_replace", 3) if keys.get("n_routed_experts", None) else layers
    if dense < layers:
        raise CheckpointError(
            f"{keys.source}: layers from {dense} on are mixtures of experts; only dense layers "
            "are supported"
        )
    return layers


DEEPSEEK_V3 = Family(
    types=("deepseek_v3",),
    settings={
        **LLAMA_SETTINGS,
        **ATTENTION_BIASES,
        "layers": _no_experts,
        "kv_heads": None,
        "head_dim": lambda keys: keys.size("qk_nope_head_dim") + keys.size("qk_rope_head_dim"),
        "value_dim": size("v_head_dim"),
        "q_rank": size("q_lora_rank", None),
        "kv_rank": size("kv_lora_rank"),
        "shared_key_dim": size("qk_rope_head_dim"),
    },
    accepts=frozenset(
        [
            "aux_loss_alpha",
            "ep_size",
            "first_k_dense_replace",
            "head_dim",
            "moe_intermediate_size",
            "moe_layer_freq",
            "n_group",
            "n_shared_experts",
            "norm_topk_prob",
            "num_experts_per_tok",
            "num_key_value_heads",
            "num_nextn_predict_layers",
            "output_router_logits",
            "qk_head_dim",
            "routed_scaling_factor",
            "scoring_func",
            "seq_aux",
            "topk_group",
            "topk_method",
        ]
    ),
    positions=at.rope,
    **{
        **LLAMA_NAMES,
        "block": {
            "self_attn.q_proj": "attention.q",
            "self_attn.q_a_proj": "attention.q_down",
            "self_attn.q_a_layernorm": "attention.q_down_norm",
            "self_attn.q_b_proj": "attention.q_up",
            "self_attn.kv_a_proj_with_mqa": "attention.kv_down",
            "self_attn.kv_a_layernorm": "attention.kv_down_norm",
            "self_attn.kv_b_proj": "attention.kv_up",
            "self_attn.o_proj": "attention.out",
            **GATED_MLP,
            **TWO_NORMS,
        },
    },
)


def _llama4_layers(keys: Keys) -> int:
    layers = keys.size("num_hidden_layers")
    step = keys.size("interleave_moe_layer_step", 1)
    experts = keys.get("moe_layers", None)
    experts = list(range(step - 1, layers, step)) if experts is None else experts
    if experts:
        raise CheckpointError(
            f"{keys.source}: layers {str(experts)[:60]} are mixtures of experts; only dense "
            "layers are supported"
        )
    return layers


LLAMA4 = Family(
    types=("llama4_text", "llama4"),
    settings={
        **LLAMA_SETTINGS,
        **ATTENTION_BIASES,
        "layers": _llama4_layers,
        "head_dim": size("head_dim", 128),
        "mlp_width": size("intermediate_size_mlp", 16384),
        "norm_eps": number("rms_norm_eps", 1e-5),
    },
    accepts=frozenset(
        [
            "cache_implementation",
            "for_llm_compressor",
            "intermediate_size",
            "num_experts_per_tok",
            "num_local_experts",
            "output_router_logits",
            "router_aux_loss_coef",
            "router_jitter_noise",
        ]
    ),
    positions=at.llama4_rope,
    **{
        **LLAMA_NAMES,
        "block": {
            **SELF_ATTENTION,
            "feed_forward.gate_proj": "mlp.gate",
            "feed_forward.up_proj": "mlp.up",
            "feed_forward.down_proj": "mlp.down",
            **TWO_NORMS,
        },
    },
)


def _one_expert(keys: Keys) -> int:
    """Layers, each with one expert, which is then the only choice and has the weight 1."""
    experts, used = (
        keys.size("num_local_experts|num_experts", 128),
        keys.size("num_experts_per_tok|experts_per_token", 4),
    )
    if experts > 1:
        raise CheckpointError(
            f"{keys.source}: layers are mixtures of {experts} experts; only layers with a single "
            "one are supported"
        )
    if used > experts:
        raise CheckpointError(f"{keys.source}: num_experts_per_tok={used}, but there is one expert")
    return keys.size("num_hidden_layers")


GPT_OSS = Family(
    types=("gpt_oss",),
    settings={
        **LLAMA_SETTINGS,
        "layers": _one_expert,
        "head_dim": size("head_dim", 64),
        "norm_eps": number("rms_norm_eps", 1e-5),
        "qkv_bias": flag("attention_bias", True),
        "out_bias": flag("attention_bias", True),
        "attn_sinks": True,
        "activation": "quick_gelu",
        "mlp_bias": True,
        "mlp_clip": number("swiglu_limit", 7.0),
        "mlp_offset": 1.0,
    },
    must={"swiglu_alpha": 1.702, "hidden_act": "silu"},
    accepts=frozenset(["output_router_logits", "router_aux_loss_coef", "initial_context_length"]),
    positions=at.rope,
    **{
        **LLAMA_NAMES,
        "block": {
            **SELF_ATTENTION,
            "self_attn.sinks": "attention.sinks",
            "mlp.experts.gate_up_proj": Expert(("mlp.gate", "mlp.up")),
            "mlp.experts.down_proj": Expert(("mlp.down",)),
            **TWO_NORMS,
        },
    },
    idle={
        "mlp.router.weight": lambda config: (1, config.width),
        "mlp.router.bias": lambda config: (1,),
    },
)
