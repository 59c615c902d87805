"""Between the tensors of a file and the parameters of a `CausalLM`, in both directions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.family import Expert, Family, Fused, PerHead
from flax_pos.types import Dims

Path = tuple[Any, ...]
"""Of a parameter, as `flax.nnx.to_flat_state` gives it."""
Shapes = Mapping[Path, tuple[int, ...]]
EMBEDDING, HEAD, HEAD_BIAS = ("embed", "embedding"), ("embed", "head"), ("embed", "head_bias")


class Slot(NamedTuple):
    """Tensors of a file that are parameters of a model: one each, or one for several."""

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    layer: int | None
    """Row of stacked parameters; None for parameters that are not stacked."""
    join: Literal["one", "part", "group", "heads", "expert"] = "one"
    transposed: bool = False
    """Whether the file has outputs first where the parameters have them last."""


def slots(
    family: Family, shapes: Shapes, layers: int, *, prefix: str, head_prefix: str
) -> Iterator[Slot]:
    """Every parameter once, with where it is in a file.

    Args:
      family: how the file names things.
      shapes: of all parameters.
      layers: number of blocks.
      prefix: stands before names, `head_prefix` before that of the head.

    Raises:
      CheckpointError: the family has no name for a parameter.
    """
    covered: set[Path] = set()
    for slot in _all_slots(family, shapes, layers, prefix, head_prefix):
        covered.update(slot.paths)
        yield slot
    left = next((path for path in shapes if path not in covered), None)
    if left is not None:
        raise CheckpointError(
            f"files of {family.types[0]!r} have no name for the parameter "
            f"{'.'.join(map(str, left))!r}"
        )


def _all_slots(family, shapes, layers, prefix, head_prefix) -> Iterator[Slot]:
    out_in = family.kernels == "out_in"
    for name, path in family.outside.items():
        yield from _expand(prefix + name, tuple(path.split(".")), None, shapes, out_in)
    head = head_prefix + family.head
    for path, end in ((HEAD, ".weight"), (HEAD_BIAS, ".bias")):
        if path in shapes:
            yield Slot((head + end,), (path,), None, transposed=path == HEAD)
    stacked = not any(path[0] == "blocks" and path[1] == 0 for path in shapes)
    for layer in range(layers):
        base: Path = ("blocks",) if stacked else ("blocks", layer)
        row = layer if stacked else None
        inside = lambda path, base=base: (*base, *path.split("."))
        for name, target in family.block.items():
            name = f"{prefix}{family.layers.format(layer)}.{name}"
            if isinstance(target, Fused):
                parts = tuple(inside(path) for path in target.parts)
                for leaf, end in (("kernel", ".weight"), ("bias", ".bias")):
                    paths = tuple((*part, leaf) for part in parts)
                    if paths[0] in shapes:
                        yield Slot((name + end,), paths, row, target.by, out_in)
            elif isinstance(target, Expert):
                for leaf, end in (("kernel", ""), ("bias", "_bias")):
                    paths = tuple((*inside(path), leaf) for path in target.parts)
                    if paths[0] in shapes:
                        yield Slot((name + end,), paths, row, "expert")
            elif isinstance(target, PerHead):
                path = inside(target.path)
                if path in shapes:
                    heads = shapes[path][-2]
                    names = tuple(name.format(head) for head in range(heads))
                    yield Slot(names, (path,), row, "heads")
            else:
                yield from _expand(name, inside(target), row, shapes, out_in)


def _expand(name: str, path: Path, layer: int | None, shapes: Shapes, out_in: bool):
    if path in shapes:
        yield Slot((name,), (path,), layer)
        return
    for leaf, end in (("kernel", ".weight"), ("scale", ".weight"), ("bias", ".bias")):
        if (*path, leaf) in shapes:
            yield Slot((name + end,), ((*path, leaf),), layer, "one", out_in and leaf == "kernel")


# Shapes -------------------------------------------------------------------------------------------


def _own_shape(slot: Slot, path: Path, shapes: Shapes) -> tuple[int, ...]:
    """Of one layer's parameter."""
    return shapes[path] if slot.layer is None else shapes[path][1:]


def file_shape(slot: Slot, shapes: Shapes) -> tuple[int, ...]:
    """Of each of a slot's tensors."""
    own = [_own_shape(slot, path, shapes) for path in slot.paths]
    if slot.join == "heads":
        return own[0][1:]
    shape = (*own[0][:-1], sum(part[-1] for part in own))
    if slot.join == "expert":
        return (1, *shape)
    return shape[::-1] if slot.transposed else shape


# Reading ------------------------------------------------------------------------------------------


def read_slot(
    slot: Slot, tensors: Sequence[np.ndarray], shapes: Shapes, dims: Dims
) -> list[np.ndarray]:
    """The parameters that tensors of a file hold, one for each of the slot's paths."""
    if slot.join == "heads":
        return [np.stack(tensors)]
    if slot.join == "expert":
        return [tensors[0][0, ..., i :: len(slot.paths)] for i in range(len(slot.paths))]
    tensor = tensors[0].T if slot.transposed else tensors[0]
    if slot.join == "one":
        return [tensor]
    outputs = [_own_shape(slot, path, shapes)[-1] for path in slot.paths]
    if slot.join == "part":
        return np.split(tensor, np.cumsum(outputs[:-1]), axis=-1)
    grouped = tensor.reshape(*tensor.shape[:-1], dims.kv_heads, -1)
    cuts = np.cumsum([n // dims.kv_heads for n in outputs[:-1]])
    return [
        part.reshape(*tensor.shape[:-1], n)
        for part, n in zip(np.split(grouped, cuts, axis=-1), outputs, strict=True)
    ]


def write_slot(slot: Slot, params: Sequence[np.ndarray], dims: Dims) -> list[np.ndarray]:
    """The inverse of `read_slot`: the tensors, one for each of the slot's names."""
    if slot.join == "heads":
        return list(params[0])
    if slot.join == "expert":
        return [np.stack(params, axis=-1).reshape(1, *params[0].shape[:-1], -1)]
    if slot.join == "group":
        split = [p.reshape(*p.shape[:-1], dims.kv_heads, -1) for p in params]
        tensor = np.concatenate(split, axis=-1).reshape(*params[0].shape[:-1], -1)
    else:
        tensor = np.concatenate(params, axis=-1) if len(params) > 1 else params[0]
    return [tensor.T if slot.transposed else tensor]


def read_params(
    files: Any,
    plan: Sequence[Slot],
    shapes: Shapes,
    dims: Dims,
    *,
    dtype: np.dtype | None,
    source: str,
) -> dict[Path, np.ndarray]:
    """All parameters of a model.

    Args:
      files: tensors by name, with `files.info[name].shape` known before they are read.
      plan: the result of `slots`.
      dtype: what to convert to; None keeps what is stored.

    Raises:
      CheckpointError: a tensor is missing or has another shape than the config says, or holds no
        floating point numbers.
    """
    _check_shapes(files, plan, shapes, source)
    layers: dict[Path, dict[int, np.ndarray]] = {}
    out: dict[Path, np.ndarray] = {}
    for slot in plan:
        tensors = [_floating(files[name], name, dtype, source) for name in slot.names]
        parts = read_slot(slot, tensors, shapes, dims)
        for path, part in zip(slot.paths, parts, strict=True):
            if slot.layer is None:
                out[path] = part
            else:
                layers.setdefault(path, {})[slot.layer] = part
    for path, rows in layers.items():
        kinds = {str(row.dtype) for row in rows.values()}
        if len(kinds) > 1:
            raise CheckpointError(
                f"{source}: layers hold {'.'.join(map(str, path[1:]))} as {' and '.join(kinds)}; "
                "pass param_dtype= or scan_layers=False"
            )
        out[path] = np.stack([rows[layer] for layer in sorted(rows)])
    return out


def _check_shapes(files, plan: Sequence[Slot], shapes: Shapes, source: str) -> None:
    for slot in plan:
        wanted = file_shape(slot, shapes)
        for name in slot.names:
            if name not in files.info:
                raise CheckpointError(f"{source} has no tensor {name!r}")
            found = files.info[name].shape
            if found != wanted:
                raise CheckpointError(
                    f"{source}: {name!r} has shape {found}, but the config makes it {wanted}"
                )


def _floating(tensor: np.ndarray, name: str, dtype: np.dtype | None, source: str) -> np.ndarray:
    if tensor.dtype.kind not in "fV" or math.prod(tensor.shape) == 0:
        raise CheckpointError(
            f"{source}: {name!r} holds {tensor.dtype} of shape {tensor.shape}; weights must be "
            "floating point numbers"
        )
    if dtype is not None:
        return tensor.astype(dtype)
    if tensor.dtype == np.float64 and not jax.config.read("jax_enable_x64"):
        raise CheckpointError(
            f"{source}: {name!r} is float64, which jax rounds to float32 unless jax_enable_x64 is "
            'set; ask for it with param_dtype="float32"'
        )
    return tensor


def unused_names(files: Mapping[str, Any], plan: Sequence[Slot], family: Family) -> list[str]:
    """Tensors of a file that no parameter takes, besides those known to hold nothing."""
    used = {name for slot in plan for name in slot.names}
    endings = (*family.unused, *(f".{name}" for name in family.idle))
    return [name for name in files if name not in used and not name.endswith(endings)]


__all__ = [
    "EMBEDDING",
    "HEAD",
    "HEAD_BIAS",
    "Slot",
    "file_shape",
    "read_params",
    "slots",
    "unused_names",
    "write_slot",
]
