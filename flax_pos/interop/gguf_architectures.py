"""What llama.cpp calls an architecture: which keys and tensors of its files are which of Hugging
Face's, and what its converter did to them.

Facts from llama.cpp's `convert_hf_to_gguf.py` and the tensor names of its `gguf` package.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flax_pos.interop.gguf_file import GGUFFile

KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_MIXING = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
BLOCK = {**_MIXING, "ffn_norm": "post_attention_layernorm"}
_SANDWICH = {
    **_MIXING,
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_NORM = {"attention.layer_norm_epsilon": "layer_norm_eps"}
_WINDOW = {"attention.sliding_window": "sliding_window"}


class Architecture(NamedTuple):
    """One architecture; tensors are named by module, `.weight` and `.bias` are alike."""

    model_type: str
    keys: Mapping[str, str] = {}
    """Keys besides `KEYS`, or that mean something else."""
    block: Mapping[str, str] = BLOCK
    outside: Mapping[str, str] = OUTSIDE
    layers: str = "model.layers.{}"
    permuted: bool = False
    """Rows of q and k are ordered for interleaved pairs, those of Hugging Face for halves."""
    transposed: bool = False
    """Matrices of blocks have outputs first, those of Hugging Face inputs."""
    norm_offset: float = 0.0
    """Was added to the scales of norms."""
    derive: Callable[[dict[str, Any], GGUFFile], dict[str, Any]] = lambda config, file: {}
    """Keys that no file spells out."""


def _gemma2_scale(config: dict[str, Any], file: GGUFFile) -> dict[str, Any]:
    """llama.cpp tells the 27B model, whose scale is not that of its heads, by its depth."""
    if config.get("num_hidden_layers") == 46:
        return {"query_pre_attn_scalar": config["hidden_size"] / config["num_attention_heads"]}
    return {"query_pre_attn_scalar": config["head_dim"]}


ARCHITECTURES = {
    "llama": Architecture("llama", permuted=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "smollm3": Architecture("smollm3", permuted=True),
    "olmo2": Architecture("olmo2", block=_SANDWICH),
    "phi3": Architecture(
        "phi3",
        keys=_WINDOW,
        block={**BLOCK, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "gemma2": Architecture(
        "gemma2",
        keys={
            **_WINDOW,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        block={**_SANDWICH, "ffn_norm": "pre_feedforward_layernorm"},
        norm_offset=1.0,
        derive=_gemma2_scale,
    ),
    "cohere2": Architecture(
        "cohere2", keys={**_LAYER_NORM, **_WINDOW, "logit_scale": "logit_scale"}
    ),
    "stablelm": Architecture(
        "stablelm",
        keys={**_LAYER_NORM, "use_parallel_residual": "use_parallel_residual"},
        derive=lambda config, file: {"use_qkv_bias": "blk.0.attn_q.bias" in file},
    ),
    "gpt2": Architecture(
        "gpt2",
        keys={
            "feed_forward_length": "n_inner",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        outside={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        layers="transformer.h.{}",
        block={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        transposed=True,
    ),
}

__all__ = ["ARCHITECTURES", "KEYS", "Architecture"]
