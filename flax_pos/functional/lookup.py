"""Table lookup with one policy for indices that are out of range.

A gather in JAX clamps an index past the end and wraps a negative one, so a wrong id reads a
legal row. Here a wrong index never reads a row unless the caller asks for clamping.
"""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Integer, Shaped

OutOfRange = Literal["nan", "error", "clip"]


def lookup(
    table: Float[Array, "R D"],
    index: Integer[ArrayLike, "*B"],
    *,
    size: int | None = None,
    out_of_range: OutOfRange = "nan",
    padding_index: int | None = None,
    dtype=None,
    name: str = "index",
) -> Float[Array, "*B D"]:
    """Rows of `table`; its gradient accumulates in float32 even where the table is 16-bit.

    Negative indices are out of range: they do not count from the end.

    Args:
      table: R rows, floating.
      index: integers of any width, 8-bit and unsigned ones included.
      size: number of usable rows where the table has padding rows at its end; None: all.
      out_of_range: what an index outside 0 .. size - 1 does.
        `"nan"`: a concrete index (not traced, fully addressable) raises; a traced one gives a row
        of NaN and no gradient.
        `"error"`: as `"nan"`, and a traced one also raises at run time, through
        `jax.debug.callback`: usable under jit, not in an exported program.
        `"clip"`: the nearest legal row.
      padding_index: an index that stands for "no token": its row is zero, it is never out of range
        and gets no gradient.
      dtype: of the result; None: that of the table.
      name: what the index is called in error messages.

    Raises:
      TypeError: `table` is not floating or `index` not integer.
      ValueError: a concrete index is out of range, or an unknown policy.

    >>> table = jnp.arange(8.0).reshape(4, 2)
    >>> lookup(table, jnp.array([3, 0])).tolist()
    [[6.0, 7.0], [0.0, 1.0]]
    >>> jax.jit(lookup)(table, jnp.array([4, -1])).tolist()
    [[nan, nan], [nan, nan]]
    """
    if not jnp.issubdtype(table.dtype, jnp.floating):
        raise TypeError(f"table must be floating, got {table.dtype}")
    if table.ndim != 2:
        raise ValueError(f"table must have axes R D, got shape {table.shape}")
    rows = table.shape[0]
    if size is not None and not 0 < size <= rows:
        raise ValueError(f"size must be in 1 .. {rows} (the table's rows), got {size}")
    safe, known, valid = resolve_index(
        index, rows if size is None else size, out_of_range, padding_index=padding_index, name=name
    )
    out = _gather(table, safe)
    out = out if dtype is None else out.astype(dtype)
    if known is not None:
        out = jnp.where(known[..., None], out, jnp.zeros((), out.dtype))
    if valid is not None:
        out = jnp.where(valid[..., None], out, jnp.full((), jnp.nan, out.dtype))
    return out


def resolve_index(
    index: Integer[ArrayLike, "*B"],
    size: int,
    out_of_range: OutOfRange = "nan",
    *,
    padding_index: int | None = None,
    name: str = "index",
) -> tuple[Int[Array, "*B"], Bool[Array, "*B"] | None, Bool[Array, "*B"] | None]:
    """The policy of `lookup` without the table.

    Returns:
      `safe`: int32, legal everywhere (0 where `index` is not). `known`: False on padding; None
      where no padding index is given. `valid`: False where the policy wants NaN (padding is
      valid); None where nothing can be invalid.
    """
    if out_of_range not in get_args(OutOfRange):
        raise ValueError(
            f"out_of_range must be one of {get_args(OutOfRange)}, got {out_of_range!r}"
        )
    at = _as_integers(index, name)
    xp = np if isinstance(at, np.ndarray) else jnp
    known = None if padding_index is None else at != padding_index
    if out_of_range == "clip":
        known = None if known is None else jnp.asarray(known)
        return jnp.asarray(xp.clip(at, 0, size - 1), jnp.int32), known, None
    inside = (at >= 0) & (at < size)
    valid: Any = inside if known is None else inside | ~known
    safe = jnp.asarray(xp.where(inside, at, 0), jnp.int32)
    if xp is np:
        _raise_if_bad(at, valid, size=size, name=name)
        if isinstance(index, jax.Array) and index.committed:  # back to where it was
            safe = jax.device_put(safe, index.sharding)
        return safe, None if known is None else jnp.asarray(known), None
    if out_of_range == "error":
        jax.debug.callback(_raise_if_bad, at, valid, size=size, name=name)
    return safe, known, valid


def _as_integers(index, name: str) -> Any:
    """numpy where the values can be looked at now, else a jax array; at least 32 bits wide."""
    if not hasattr(index, "dtype"):
        index = np.asarray(index)
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, got {index.dtype}")
    if not isinstance(index, Tracer) and getattr(index, "is_fully_addressable", True):
        index = np.asarray(index)
    # 8 and 16 bits cannot hold the sizes they are compared with.
    return index.astype(np.int32) if index.dtype.itemsize < 4 else index


def _raise_if_bad(index, valid, *, size, name):
    index, valid = np.asarray(index), np.asarray(valid)
    if not valid.all():
        where = tuple(int(i) for i in np.argwhere(~valid)[0])
        at = f" at {list(where)}" if where else ""
        raise ValueError(
            f"{name} {int(index[where])}{at} is out of range: the table has {size} rows, "
            f"legal values are 0 .. {size - 1}"
        )


@jax.custom_jvp
def _gather(table, index):
    return rows_at(table, index)


def rows_at(table: Shaped[Array, "R D"], index: Int[Array, "*B"]) -> Shaped[Array, "*B D"]:
    """`table[index]` for an index that is known to be legal."""
    return table.at[index].get(mode="promise_in_bounds", out_sharding=_sharding(table, index))


def _sharding(table, index):
    """How rows lie under a mesh with explicit axes, where a gather has to be told: as the index
    does, and across as the table; rows of a table that lie apart are brought together. None under
    other meshes."""
    of_index, of_table = (jax.typeof(a).sharding for a in (index, table))
    mesh = of_table.mesh if of_index.mesh.empty else of_index.mesh
    if jax.sharding.AxisType.Explicit not in mesh.axis_types:
        return None
    batch, across = of_index.spec, of_table.spec[-1]
    names = lambda axis: set(axis if isinstance(axis, tuple) else (axis,))
    taken = any(names(across) & names(axis) for axis in batch if axis is not None)
    spec = jax.sharding.PartitionSpec(*batch, None if taken else across)
    return jax.sharding.NamedSharding(mesh, spec)


@_gather.defjvp
def _gather_jvp(primals, tangents):
    # The transpose of this is a scatter-add in the wider dtype: in bfloat16, 256 + 1 is 256, and
    # a frequent token would stop learning. A custom_vjp would do, but under vmap it would hold
    # one whole table of gradients per batch row.
    table, index = primals
    wide = np.promote_types(table.dtype, np.float32)
    rows = rows_at(tangents[0].astype(wide), index)
    return _gather(table, index), rows.astype(table.dtype)
