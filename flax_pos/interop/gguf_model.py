"""GGUF files seen as Hugging Face ones: the same config keys, the same tensor names."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flax_pos.functional.rope.hf_widths import fraction
from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.gguf_architectures import ARCHITECTURES, KEYS, Architecture
from flax_pos.interop.gguf_file import GGUFFile, GGUFTensor

ROPE_FACTORS = "rope_freqs.weight"


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
    names = {**KEYS, **architecture.keys}
    config: dict[str, Any] = {"model_type": architecture.model_type}
    read = {old: own.pop(old) for old in names if old in own}
    config |= {new: read[old] for old, new in names.items() if old in read and new is not None}
    rotated = own.pop("rope.dimension_count", None)
    if rotated is not None:
        config |= _rotated_part(file, rotated, config)
    if own.pop("expert_count", 0):
        raise CheckpointError(f"{file.path} is a mixture of experts; only dense ones are supported")
    config["rope_scaling"] = _scaling(file, own, config)
    if own:
        raise CheckpointError(f"{file.path}: nothing here reads the key {name}.{next(iter(own))}")
    if "token_embd.weight" in file:
        config.setdefault("vocab_size", file.info["token_embd.weight"].shape[0])
    config["tie_word_embeddings"] = "output.weight" not in file
    try:
        config |= architecture.derive(config, file)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise CheckpointError(f"{file.path} lacks sizes, or they make no sense: {error}") from error
    heads = file.metadata.get(f"{name}.attention.head_count")
    kv_heads = file.metadata.get(f"{name}.attention.head_count_kv", heads)
    return config, GGUFTensors(file, architecture, (heads, kv_heads))


def _rotated_part(file: GGUFFile, rotated: Any, config: dict[str, Any]) -> dict[str, Any]:
    """How much of a head is rotated."""
    heads: Any = config.get("num_attention_heads")
    width: Any = config.get("hidden_size")
    sizes = {"rope.dimension_count": rotated, "heads": heads, "embedding_length": width}
    if all(type(n) is int and n > 0 for n in sizes.values()):
        head = config.get("head_dim", width // heads)
        if type(head) is int and 0 < rotated <= head:
            return {"partial_rotary_factor": fraction(rotated, head)}
    raise CheckpointError(f"{file.path}: these sizes make no sense: {sizes}")


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
    """Tensors under their Hugging Face names and as files of Hugging Face have them."""

    def __init__(self, file: GGUFFile, architecture: Architecture, heads: tuple[Any, Any]):
        self._file, self._architecture, self._heads = file, architecture, heads
        block = architecture.names(file)
        self._names = {
            _hf_name(name, architecture, block): name for name in file if name != ROPE_FACTORS
        }
        self.info: dict[str, GGUFTensor] = {}
        for name, old in self._names.items():
            info = file.info[old]
            self.info[name] = info._replace(shape=info.shape[:: self._step(old)])

    def __getitem__(self, name: str) -> np.ndarray:
        old, how = self._names[name], self._architecture
        tensor = self._file[old]
        module = old.split(".")[-2]
        if self._step(old) < 0:
            return tensor.T
        if how.norm_offset and module.endswith("norm"):
            return tensor - np.asarray(how.norm_offset, tensor.dtype)
        if module not in how.rows:
            return tensor
        try:
            return how.rows[module](tensor, *self._heads)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{self._file.path}: {old!r}: {error}") from error

    def _step(self, old: str) -> int:
        """-1 for a tensor whose axes are the other way round."""
        turned = self._architecture.transposed and old.startswith("blk.")
        return -1 if turned and len(self._file.info[old].shape) == 2 else 1

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _hf_name(name: str, architecture: Architecture, block: Mapping[str, str]) -> str:
    """The Hugging Face name of a tensor; an unknown one stays as it is."""
    *where, module, end = ("", *name.split("."))
    if where == [""] and module in architecture.outside:
        return f"{architecture.outside[module]}.{end}"
    if len(where) == 3 and where[1] == "blk" and module in block:
        return f"{architecture.layers.format(where[2])}.{block[module]}.{end}"
    return name


__all__ = ["ARCHITECTURES", "GGUFTensors", "read_gguf"]
