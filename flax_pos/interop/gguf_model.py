"""GGUF files seen as Hugging Face ones: the same config keys, the same tensor names."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from flax_pos.functional.rope import permute_layout
from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.gguf_file import GGUFFile, GGUFTensor

_KEYS = {
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
_IGNORED = ("attention.value_length", "rope.dimension_count")
_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"


class Architecture(NamedTuple):
    """What llama.cpp calls an architecture."""

    model_type: str
    permuted: bool = False
    """Whether rows of q and k are ordered for interleaved pairs."""
    config: dict[str, Any] = {}  # noqa: RUF012 - read only
    """Keys that the file does not spell out."""


ARCHITECTURES = {
    "llama": Architecture("llama", permuted=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "smollm3": Architecture("smollm3", permuted=True),
}


def read_gguf(file: GGUFFile) -> tuple[dict[str, Any], "GGUFTensors"]:
    """The config and the tensors of a GGUF file, as a Hugging Face directory would have them.

    Raises:
      CheckpointError: an architecture that is not known, a mixture of experts, keys that nothing
        reads.
    """
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: the architecture {name!r} is not supported in GGUF files; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    architecture = ARCHITECTURES[name]
    own = {
        key.removeprefix(f"{name}."): value
        for key, value in file.metadata.items()
        if key.startswith(f"{name}.")
    }
    config = {"model_type": architecture.model_type, **architecture.config}
    config |= {new: own.pop(old) for old, new in _KEYS.items() if old in own}
    for key in _IGNORED:
        own.pop(key, None)
    if own.pop("expert_count", 0):
        raise CheckpointError(f"{file.path} is a mixture of experts; only dense ones are supported")
    config["rope_scaling"] = _scaling(file, own, config)
    if own:
        raise CheckpointError(f"{file.path}: nothing here reads the key {name}.{next(iter(own))}")
    if "token_embd.weight" in file:
        config.setdefault("vocab_size", file.info["token_embd.weight"].shape[0])
    config["tie_word_embeddings"] = "output.weight" not in file
    return config, GGUFTensors(file, architecture, config)


def _scaling(file: GGUFFile, own: dict[str, Any], config) -> dict[str, Any] | None:
    prefix = "rope.scaling."
    given = {k.removeprefix(prefix): own.pop(k) for k in list(own) if k.startswith(prefix)}
    given.pop("finetuned", None)
    kind = given.pop("type", "none")
    original = given.pop("original_context_length", config.get("max_position_embeddings"))
    if ROPE_FACTORS in file:  # llama.cpp writes what llama3 scaling divides by, pair by pair
        if kind not in ("none", "longrope"):
            raise CheckpointError(f"{file.path} has {ROPE_FACTORS} and {kind!r} scaling as well")
        factors = [float(f) for f in file[ROPE_FACTORS]]
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": original,
            "attention_factor": float(given.pop("attn_factor", 1.0)),
        }
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"{file.path}: rope scaling {kind!r} is not supported")
    scaling = {"rope_type": kind, "factor": given.pop("factor", None)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = original
    if given:
        raise CheckpointError(f"{file.path}: nothing here reads {prefix}{next(iter(given))}")
    return scaling


class GGUFTensors(Mapping[str, np.ndarray]):
    """Tensors under their Hugging Face names, rows of q and k in the order of those."""

    def __init__(self, file: GGUFFile, architecture: Architecture, config: dict[str, Any]):
        self._file, self._permuted = file, architecture.permuted
        self._heads = {
            "attn_q": config.get("num_attention_heads"),
            "attn_k": config.get("num_key_value_heads", config.get("num_attention_heads")),
        }
        self._names = {_hf_name(name): name for name in file if name != ROPE_FACTORS}
        self.info: dict[str, GGUFTensor] = {n: file.info[old] for n, old in self._names.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        old = self._names[name]
        tensor = self._file[old]
        heads = self._heads.get(old.split(".")[-2]) if self._permuted else None
        if heads is None:
            return tensor
        try:
            return permute_layout(tensor, heads=heads, source="interleaved", target="half")
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{self._file.path}: {old!r}: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _hf_name(name: str) -> str:
    """The Hugging Face name of a tensor; an unknown one stays as it is."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _BLOCK:
        return f"model.layers.{parts[1]}.{_BLOCK[parts[2]]}.{parts[3]}"
    return name


__all__ = ["ARCHITECTURES", "GGUFTensors", "read_gguf"]
