"""What llama.cpp calls an architecture: which keys and tensors of its files are which of Hugging
Face's, and what its converter did to them.

Facts from llama.cpp's converter (`convert_hf_to_gguf.py`, now in `conversion/`), what its
`src/models` takes for granted, and the tensor names of its `gguf` package.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flax_pos.functional.rope import permute_layout
from flax_pos.interop.gguf_file import GGUFFile

KEYS: Mapping[str, str | None] = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": None,
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
_GEMMA_BLOCK = {**_SANDWICH, "ffn_norm": "pre_feedforward_layernorm"}
_LAYER_NORM = {"attention.layer_norm_epsilon": "layer_norm_eps"}
_CLASSIC_NORM = {"attention.layer_norm_epsilon": "layer_norm_epsilon"}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_SOFTCAP = {"final_logit_softcapping": "final_logit_softcapping"}
_PARALLEL = {"use_parallel_residual": "use_parallel_residual"}
_CLASSIC_MLP = {"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
_BLOOM_OUTSIDE = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_BLOOM_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    **_CLASSIC_MLP,
}

# Orders of rows ----------------------------------------------------------------------------------

Rows = Callable[[np.ndarray, int, int], np.ndarray]
"""Puts the rows of a tensor in Hugging Face's order, given the numbers of query and of key/value
heads."""


def _halves(tensor: np.ndarray, heads: int) -> np.ndarray:
    return permute_layout(tensor, heads=heads, source="interleaved", target="half")


def _grouped(tensor: np.ndarray, heads: int, kv_heads: int) -> np.ndarray:
    """For each key/value head its query heads, its key and its value, out of all queries, all keys
    and all values."""
    width = len(tensor) // (heads + 2 * kv_heads)
    parts = np.split(tensor, [heads * width, (heads + kv_heads) * width])
    groups = [part.reshape(kv_heads, -1, *tensor.shape[1:]) for part in parts]
    return np.concatenate(groups, axis=1).reshape(tensor.shape)


_HALVES: Mapping[str, Rows] = {
    "attn_q": lambda tensor, heads, kv_heads: _halves(tensor, heads),
    "attn_k": lambda tensor, heads, kv_heads: _halves(tensor, kv_heads),
}
"""Pairs stand side by side in the file, half a head apart in Hugging Face's."""
_GROUPED: Mapping[str, Rows] = {"attn_qkv": _grouped}


class Architecture(NamedTuple):
    """One architecture; tensors are named by module, `.weight` and `.bias` are alike."""

    model_type: str
    keys: Mapping[str, str | None] = {}
    """Keys besides `KEYS`, or that mean something else; None: what shapes say anyway."""
    block: Mapping[str, str] = BLOCK
    block_with: Mapping[str, Mapping[str, str]] = {}
    """By a module of blocks: what else is called otherwise where there is that module."""
    outside: Mapping[str, str] = OUTSIDE
    layers: str = "model.layers.{}"
    rows: Mapping[str, Rows] = {}
    """Modules whose rows stand in another order than Hugging Face's."""
    transposed: bool = False
    """Matrices of blocks have outputs first, those of Hugging Face inputs."""
    norm_offset: float = 0.0
    """Was added to the scales of norms."""
    derive: Callable[[dict[str, Any], GGUFFile], dict[str, Any]] = lambda config, file: {}
    """Keys that no file spells out."""

    def names(self, file: GGUFFile) -> dict[str, str]:
        """What the modules of this file's blocks are called."""
        named = dict(self.block)
        for module, others in self.block_with.items():
            if f"blk.0.{module}.weight" in file:
                named |= others
        return named


def _gemma_scale(largest: int):
    """llama.cpp tells the largest model, whose scale is not that of its heads, by its depth."""

    def derive(config: dict[str, Any], file: GGUFFile) -> dict[str, Any]:
        if config.get("num_hidden_layers") == largest:
            return {"query_pre_attn_scalar": config["hidden_size"] / config["num_attention_heads"]}
        return {"query_pre_attn_scalar": config["head_dim"]}

    return derive


def _gemma3(config: dict[str, Any], file: GGUFFile) -> dict[str, Any]:
    """No layer slides where there is no window."""
    full = {} if config.get("sliding_window") else {"sliding_window_pattern": 1}
    return {**_gemma_scale(62)(config, file), **full}


def _falcon(config: dict[str, Any], file: GGUFFile) -> dict[str, Any]:
    """A file spells out the number of key/value heads, as only the new architecture does."""
    norms = 2 if "blk.0.attn_norm_2.weight" in file else 1
    return {"new_decoder_architecture": True, "num_ln_in_parallel_attn": norms}


def _mpt(config: dict[str, Any], file: GGUFFile) -> dict[str, Any]:
    bias = file.metadata.get("mpt.attention.max_alibi_bias", 0.0)
    clip = file.metadata.get("mpt.attention.clamp_kqv")
    return {"attn_config": {"alibi": bias > 0, "alibi_bias_max": bias, "clip_qkv": clip}}


ARCHITECTURES = {
    "llama": Architecture("llama", rows=_HALVES),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "smollm3": Architecture("smollm3", rows=_HALVES),
    "olmo2": Architecture("olmo2", block=_SANDWICH),
    "phi3": Architecture(
        "phi3",
        keys=_WINDOW,
        block={**BLOCK, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "gemma2": Architecture(
        "gemma2",
        keys={**_WINDOW, **_SOFTCAP, "attn_logit_softcapping": "attn_logit_softcapping"},
        block=_GEMMA_BLOCK,
        norm_offset=1.0,
        derive=_gemma_scale(46),
    ),
    "gemma3": Architecture(
        "gemma3_text",
        keys={
            **_WINDOW,
            **_SOFTCAP,
            "attention.sliding_window_pattern": "sliding_window_pattern",
            "rope.freq_base_swa": "rope_local_base_freq",
        },
        block=_GEMMA_BLOCK,
        norm_offset=1.0,
        derive=_gemma3,
    ),
    "glm4": Architecture(
        "glm4",
        block={
            **_MIXING,
            "post_attention_norm": "post_self_attn_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        derive=lambda config, file: {"attention_bias": "blk.0.attn_q.bias" in file},
    ),
    "cohere2": Architecture(
        "cohere2", keys={**_LAYER_NORM, **_WINDOW, "logit_scale": "logit_scale"}
    ),
    "stablelm": Architecture(
        "stablelm",
        keys={**_LAYER_NORM, **_PARALLEL},
        derive=lambda config, file: {"use_qkv_bias": "blk.0.attn_q.bias" in file},
    ),
    "gpt2": Architecture(
        "gpt2",
        keys={**_CLASSIC_NORM, "feed_forward_length": "n_inner"},
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
    "gptneox": Architecture(
        "gpt_neox",
        keys={**_LAYER_NORM, **_PARALLEL},
        outside={
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        layers="gpt_neox.layers.{}",
        block={
            "attn_norm": "input_layernorm",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            **_CLASSIC_MLP,
        },
        rows=_GROUPED,
    ),
    "bloom": Architecture(
        "bloom",
        keys={
            **_CLASSIC_NORM,
            "context_length": "seq_length",
            "feed_forward_length": None,
            "attention.head_count_kv": None,
        },
        outside={
            **_BLOOM_OUTSIDE,
            "token_embd_norm": "transformer.word_embeddings_layernorm",
        },
        layers="transformer.h.{}",
        block={**_BLOOM_BLOCK, "ffn_norm": "post_attention_layernorm"},
        rows=_GROUPED,
    ),
    "mpt": Architecture(
        "mpt",
        keys={
            **_CLASSIC_NORM,
            "block_count": "n_layers",
            "context_length": "max_seq_len",
            "embedding_length": "d_model",
            "feed_forward_length": None,
            "attention.head_count": "n_heads",
            "attention.max_alibi_bias": None,
            "attention.clamp_kqv": None,
        },
        outside={
            "token_embd": "transformer.wte",
            "output_norm": "transformer.norm_f",
            "output": "lm_head",
        },
        layers="transformer.blocks.{}",
        block={
            "attn_norm": "norm_1",
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.out_proj",
            "ffn_norm": "norm_2",
            "ffn_up": "ffn.up_proj",
            "ffn_down": "ffn.down_proj",
        },
        derive=_mpt,
    ),
    "falcon": Architecture(
        "falcon",
        keys={
            **_CLASSIC_NORM,
            "feed_forward_length": "ffn_hidden_size",
            "attention.head_count_kv": "num_kv_heads",
            "tensor_data_layout": None,
        },
        outside=_BLOOM_OUTSIDE,
        layers="transformer.h.{}",
        block=_BLOOM_BLOCK,
        block_with={"attn_norm_2": {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}},
        rows=_GROUPED,
        derive=_falcon,
    ),
}

__all__ = ["ARCHITECTURES", "BLOCK", "KEYS", "OUTSIDE", "Architecture"]
