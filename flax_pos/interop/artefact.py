"""A model as programs for other processes: prefill and decoding step through `jax.export`, with
symbolic batch and length, and the parameters beside them."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_pos.interop import runner
from flax_pos.interop.errors import require
from flax_pos.interop.jsonfile import write_json
from flax_pos.interop.quantize import is_quantized, pack_int4, unpack_int4
from flax_pos.interop.runner import MANIFEST, Artefact
from flax_pos.interop.safetensors_files import SINGLE, write_safetensors
from flax_pos.nnx.causal_lm import CausalLM, restack
from flax_pos.scheme import to_dict

PREFILL, DECODE, RUN = "prefill.jaxexport", "decode.jaxexport", "run.py"


def export_model(
    model: CausalLM,
    directory: str | os.PathLike,
    *,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
) -> None:
    """Writes a model as programs that need nothing but jax to run.

    The directory gets `prefill.jaxexport` and `decode.jaxexport` (both
    `(params, ids b t, positions b t, mask b t, cache) -> (logits b t V, cache)`, the second with
    t = 1), the parameters as safetensors, `artefact.json`, which says what the arguments are, and
    `run.py`, which runs it. Batch, length and cache size are symbolic. Parameters are arguments;
    frequencies are a few numbers in the program and tables are computed from positions, so that
    programs stay small whatever the model is.

    Matrices of a model of `quantize_weights` stay int8 or int4, with their scales, and are
    dequantised where they are used. Two int4 stand in one int8 (`pack_int4`), in the file and in
    memory. Such programs hold one layer after the other, not one for all.

    Args:
      model: any model.
      directory: made if it is not there; files of the same names are replaced.
      platforms: what the programs are to run on.

    Raises:
      ImportError: flatbuffers is not installed, which `jax.export` needs.
    """
    require("flatbuffers", "writing exported programs")
    model = _for_export(model)
    graph, state = nnx.split(model)
    flat: Any = nnx.to_flat_state(state)
    paths = {".".join(map(str, path)): (path, variable) for path, variable in flat}
    arrays = {name: _stored(variable.get_value()) for name, (_, variable) in paths.items()}
    empty = jax.eval_shape(lambda: model.init_cache(2, 3))
    leaves, tree = jax.tree.flatten_with_path(empty)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]

    def step(params, ids, positions, mask, cache):
        full = [
            (path, variable.replace(_restored(params[name], variable)))
            for name, (path, variable) in paths.items()
        ]
        own = nnx.merge(graph, nnx.from_flat_state(full))
        caches = jax.tree.unflatten(tree, [cache[name] for name in names])
        logits, caches = own(ids, positions=positions, mask=mask, cache=caches)
        return logits, dict(zip(names, jax.tree.leaves(caches), strict=True))

    shape = lambda dims, dtype: jax.ShapeDtypeStruct(tuple(dims), dtype)
    params = {name: shape(array.shape, array.dtype) for name, array in arrays.items()}

    def program(length: str) -> bytes:
        constraints = ["s >= t"] if length == "t" else []
        b, t, s = jax.export.symbolic_shape(f"b, {length}, s", constraints=constraints)
        sizes = {2: b, 3: s}
        cache = {
            name: shape(_with_sizes(leaf.shape, other.shape, sizes), leaf.dtype)
            for name, (_, leaf), (_, other) in zip(names, leaves, other_leaves, strict=True)
        }
        tokens = [shape((b, t), dtype) for dtype in (jnp.int32, jnp.int32, jnp.bool_)]
        exported = jax.export.export(jax.jit(step), platforms=platforms)(params, *tokens, cache)
        return bytes(exported.serialize())

    other_leaves, _ = jax.tree.flatten_with_path(jax.eval_shape(lambda: model.init_cache(5, 7)))
    letters = {2: "b", 3: "s"}
    manifest = {
        "what": "flax_pos artefact",
        "jax": jax.__version__,
        "prefill": PREFILL,
        "decode": DECODE,
        "weights": SINGLE,
        "params": list(paths),
        "cache": {
            name: {
                "shape": _with_sizes(leaf.shape, other.shape, letters),
                "dtype": leaf.dtype.name,
                "fill": -1 if name.endswith("at.index") else 0,
            }
            for name, (_, leaf), (_, other) in zip(names, leaves, other_leaves, strict=True)
        },
        "vocab_size": model.config.vocab_size,
        "max_len": model.config.max_len,
        "scheme": to_dict(model.scheme) if model.scheme.name else None,
    }
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for file, length in ((PREFILL, "t"), (DECODE, "1")):
        (directory / file).write_bytes(program(length))
    write_safetensors(directory, arrays, max_shard_bytes=2**62)
    shutil.copyfile(runner.__file__, directory / RUN)
    write_json(directory / MANIFEST, manifest)


def load_artefact(directory: str | os.PathLike) -> Artefact:
    """What `export_model` wrote, ready to be called.

    Raises:
      ImportError: flatbuffers is not installed, which `jax.export` needs.
    """
    require("flatbuffers", "reading exported programs")
    return Artefact(directory)


def _for_export(model: CausalLM) -> CausalLM:
    """Symbolic sizes leave no choice by size; a prompt is read in pieces, so T x S stays small."""
    if not is_quantized(model):
        model = restack(model, scan_layers=True)
    new = nnx.merge(*nnx.split(model))
    modules: Any = nnx.iter_modules(new)
    for _, module in modules:
        if hasattr(module, "config"):
            module.config = module.config.replace(attention="dense", remat=False)
    return new


def _stored(value: jax.Array) -> np.ndarray:
    """As the file and the arguments of the programs have it."""
    array = np.asarray(value)
    return pack_int4(array) if array.dtype == jnp.int4 else array


def _restored(stored: jax.Array, variable: nnx.Variable) -> jax.Array:
    return unpack_int4(stored, variable.shape[0]) if variable.dtype == jnp.int4 else stored


def _with_sizes(shape, other, sizes: dict[int, Any]) -> list:
    """A shape with the axes that differ from another one's named: those are batch and slots."""
    return [n if n == m else sizes[n] for n, m in zip(shape, other, strict=True)]


__all__ = ["Artefact", "export_model", "load_artefact"]
