"""Models out of directories and files that other libraries wrote, and back."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_pos.functional.rope.hf_keys import text_config
from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.families import family_of
from flax_pos.interop.family import Family
from flax_pos.interop.gguf_file import GGUFFile
from flax_pos.interop.gguf_model import read_gguf
from flax_pos.interop.jsonfile import read_json
from flax_pos.interop.keys import Keys
from flax_pos.interop.safetensors_files import SafetensorsFiles
from flax_pos.interop.weights import Path as ParamPath
from flax_pos.interop.weights import Slot, read_params, slots, unused_names
from flax_pos.nnx.causal_lm import CausalLM
from flax_pos.nnx.config import ModelConfig
from flax_pos.scheme import Scheme

CONFIG = "config.json"
MOST_HEADS = 2**12
TIED = "tie_word_embeddings"


@dataclass(frozen=True)
class Origin:
    """What a loaded model remembers of its file: enough to write the same format back."""

    config: str
    """The text model's config, as JSON."""
    prefix: str = ""
    """Before the names of tensors in the file, save for that of the head."""
    head_prefix: str = ""


def load_pretrained(
    path: str | os.PathLike,
    *,
    dtype: str | None = None,
    param_dtype: str | None = None,
    tied: bool | None = None,
    scan_layers: bool = False,
    ignore_keys: Iterable[str] = (),
) -> CausalLM:
    """A `CausalLM` with the weights and the positions of a checkpoint.

    Args:
      path: a directory with `config.json` and safetensors files, as Hugging Face libraries write
        it, or a GGUF file. No code from it is run, and no pickle is read.
      dtype: compute dtype. None: `param_dtype`, or that of the stored embedding.
      param_dtype: dtype of the parameters. None: each as it is stored (quantised GGUF tensors
        become float32).
      tied: whether the head is the embedding. None: as the config says, which must agree with
        the file.
      scan_layers: one stacked block under `lax.scan` instead of one each.
      ignore_keys: keys of the config that nothing here reads and that may be passed over.

    Raises:
      CheckpointError: files that are damaged or lie, an unknown architecture, keys that nothing
        reads, and tensors that are missing, left over, or of another shape than the config says.
      ImportError: an optional package is missing.
    """
    raw, files = _open(Path(path))
    source = str(path)
    try:
        text = text_config(raw)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{source}: {error}") from error
    keys = Keys(text, f"{source}: config")
    family = family_of(keys)
    origin = Origin(json.dumps(text), *_prefixes(files, family, source))
    embedding, head = origin.prefix + family.embedding, f"{origin.head_prefix}{family.head}.weight"
    tied, files = _tie(files, keys.flag(TIED, None), tied, embedding, head, source)
    stored = files[embedding].dtype.name
    changes: dict[str, Any] = {
        "tied": tied,
        "dtype": dtype or param_dtype or stored,
        "param_dtype": param_dtype or stored,
        "scan_layers": scan_layers,
        "vocab_rows": files.info[embedding].shape[0],
    }
    if "float64" in changes.values() and not jax.config.read("jax_enable_x64"):
        raise CheckpointError(
            f"{source} holds float64, which jax rounds to float32 unless jax_enable_x64 is set: "
            'ask for it with param_dtype="float32"'
        )
    config, scheme = read_config(keys, family, changes, most_layers=len(files))
    keys.check_all_read(family.accepts | frozenset(ignore_keys))
    try:
        model = nnx.eval_shape(lambda: CausalLM(config, scheme, rngs=nnx.Rngs(0)))
    except (OverflowError, TypeError, ValueError) as error:  # sizes that no array can have
        raise CheckpointError(f"{keys.source}: {error}") from error
    shapes = param_shapes(model)
    plan = plan_of(model, family, origin)
    nested = text != raw
    for name in unused_names(files, plan, family):
        if name != head and (name.startswith(origin.prefix) or not nested):
            raise CheckpointError(f"{source}: nothing takes the tensor {name!r}")
    wanted = None if param_dtype is None else jnp.dtype(param_dtype)
    values = read_params(files, plan, shapes, config.dims, dtype=wanted, source=source)
    model = fill(model, values)
    model.origin = origin
    return model


def _open(path: Path) -> tuple[dict[str, Any], Any]:
    if path.suffix == ".gguf":
        return read_gguf(GGUFFile(path))
    return read_json(path / CONFIG), SafetensorsFiles(path)


def read_config(
    keys: Keys, family: Family, changes: Mapping[str, Any], *, most_layers: int = MOST_HEADS
) -> tuple[ModelConfig, Scheme]:
    """The model and the scheme that a config describes, with some fields as in `changes`.

    Raises:
      CheckpointError: sizes and settings that do not fit each other, or more layers than
        `most_layers`.
    """
    settings = {**family.read_settings(keys), **changes}
    for name, most in (("layers", most_layers), ("heads", MOST_HEADS)):
        if settings[name] > most:
            raise CheckpointError(f"{keys.source}: {name}={settings[name]}, but at most {most} fit")
    if settings.get("vocab_rows") == settings["vocab_size"]:
        settings["vocab_rows"] = None
    try:
        config = ModelConfig(**settings)
        scheme = family.positions(keys, config)
    except CheckpointError:
        raise
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{keys.source}: {error}") from error
    return config, scheme


def plan_of(model: CausalLM, family: Family, origin: Origin) -> list[Slot]:
    """Where each of a model's parameters is in a file."""
    return list(
        slots(
            family,
            param_shapes(model),
            model.config.layers,
            prefix=origin.prefix,
            head_prefix=origin.head_prefix,
        )
    )


# Names --------------------------------------------------------------------------------------------


def _prefixes(files: Mapping[str, Any], family: Family, source: str) -> tuple[str, str]:
    """What stands before the names of a family in this file, and before that of its head."""
    ends = (family.embedding, f"{family.head}.weight")
    found = [[n for n in files if n == end or n.endswith(f".{end}")] for end in ends]
    for end, names in zip(ends, found, strict=True):
        if len(names) > 1:
            raise CheckpointError(f"{source}: which is {end!r}, {names[0]!r} or {names[1]!r}?")
    first = f"{family.layers.format(0)}."
    blocks = {n[: n.index(first)] for n in files if n.startswith(first) or f".{first}" in n}
    if found[0]:
        prefix = found[0][0].removesuffix(ends[0])
    elif found[1] and len(blocks) == 1:  # a tied model that was saved under its head's name only
        prefix = blocks.pop()
    else:
        raise CheckpointError(f"{source} has no tensor {family.embedding!r}")
    if found[1]:
        return prefix, found[1][0].removesuffix(ends[1])
    return prefix, ".".join([*prefix.split(".")[:-2], ""]).lstrip(".")


def _tie(files, flag: bool | None, asked: bool | None, embedding: str, head: str, source: str):
    """Whether the head is the embedding, and the files with the embedding under its own name."""
    if embedding not in files:
        if flag is False or asked is False:
            raise CheckpointError(f"{source} has no tensor {embedding!r}")
        return True, _Renamed(files, {embedding: head})
    if head not in files:
        if asked is False or (flag is False and asked is None):
            raise CheckpointError(
                f"{source} has no tensor {head!r}, but {TIED} is false: the head is missing, or "
                "it is the embedding after all (tied=True)"
            )
        return True, files
    if asked is not None:
        return asked, files
    same = flag is not False and files.info[head].shape == files.info[embedding].shape
    same = same and np.array_equal(files[head], files[embedding])
    if flag and not same:
        raise CheckpointError(
            f"{source} says {TIED}, but {head!r} differs from {embedding!r}: tied=False keeps the "
            "head, tied=True drops it"
        )
    return same, files


class _Renamed(Mapping[str, np.ndarray]):
    """Tensors of which some have another name."""

    def __init__(self, files, names: Mapping[str, str]):
        self._files, self._names = files, {name: name for name in files}
        for new, old in names.items():
            self._names[new] = self._names.pop(old)
        self.info = {new: files.info[old] for new, old in self._names.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._files[self._names[name]]

    def __iter__(self):
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


# Parameters ---------------------------------------------------------------------------------------


def param_shapes(model: CausalLM) -> dict[ParamPath, tuple[int, ...]]:
    """Shapes of all parameters by path."""
    return {
        path: variable.shape for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }


def fill(model: CausalLM, values: Mapping[ParamPath, Any]) -> CausalLM:
    """The model with these arrays as its parameters."""
    graph, state = nnx.split(model)
    flat: Any = nnx.to_flat_state(state)
    full = [(path, variable.replace(jnp.asarray(values[path]))) for path, variable in flat]
    return nnx.merge(graph, nnx.from_flat_state(full))


__all__ = ["CONFIG", "Origin", "load_pretrained"]
