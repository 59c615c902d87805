"""Trees of arrays cut into blocks of tokens and put together again, for loops over blocks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr

from flax_pos.types import Coords


def hoist(fun: Callable, *example):
    """`fun` for arguments like `example`, as a function of (closure, *arguments), and the closure:
    the arrays that it takes from outside."""
    jaxpr, shape = jax.make_jaxpr(fun, return_shape=True)(*example)
    structure = jax.tree.structure(shape)

    def call(closure, *args):
        out = eval_jaxpr(jaxpr.jaxpr, closure, *jax.tree.leaves(args))
        return jax.tree.unflatten(structure, out)

    return call, jaxpr.consts


def split_floats(tree):
    """Inexact leaves, other leaves, and the function that makes a tree of both."""
    leaves, structure = jax.tree.flatten(tree)
    inexact = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
    floats = [leaf for leaf, yes in zip(leaves, inexact, strict=True) if yes]
    others = [leaf for leaf, yes in zip(leaves, inexact, strict=True) if not yes]

    def join(floats, others):
        floats, others = iter(floats), iter(others)
        return jax.tree.unflatten(structure, [next(floats if yes else others) for yes in inexact])

    return floats, others, join


def zeros_for(tree):
    """float32 zeros for inexact leaves, None for others."""
    floats, others, join = split_floats(tree)
    return join([jnp.zeros_like(x, jnp.float32) for x in floats], [None] * len(others))


def add_to(total: jax.Array, part: jax.Array) -> jax.Array:
    """Their sum, in the dtype of `total`."""
    return total + part.astype(total.dtype)


def take(tree, i, block: int, axis: int):
    """Block i along `axis` of every leaf."""
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, i * block, block, axis), tree)


def nth(tree, i):
    """Item i of the first axis of every leaf."""
    return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, i, keepdims=False), tree)


def merge(blocks: jax.Array, axis: int) -> jax.Array:
    """`blocks *B block ...`, blocks first, to one axis of all rows at `axis`."""
    blocks = jnp.moveaxis(blocks, 0, axis)
    return blocks.reshape(*blocks.shape[:axis], -1, *blocks.shape[axis + 2 :])


def per_head(sinks: jax.Array, rows: jax.Array) -> jax.Array:
    """float32 sinks (`N`) beside rows (`*B N T`)."""
    return sinks.astype(jnp.float32).reshape((1,) * (rows.ndim - 2) + (-1, 1))


def blank_rows(q: jax.Array) -> jax.Array:
    """float32 zeros `*B N T`, one for each query and head of `q` (`*B T N H`)."""
    return jnp.zeros_like(jnp.swapaxes(q[..., 0], -1, -2), jnp.float32)


def pad(x: jax.Array, block: int, axis: int, value: int = 0) -> jax.Array:
    """`x` with `value` after its end along `axis`, up to whole blocks."""
    extra = -x.shape[axis] % block
    if not extra:
        return x
    widths = [(0, extra if a == axis else 0) for a in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value)


def _pad_by_last(x: jax.Array, block: int, axis: int) -> jax.Array:
    extra = -x.shape[axis] % block
    if not extra:
        return x
    last = jax.lax.slice_in_dim(x, x.shape[axis] - 1, x.shape[axis], axis=axis)
    more = (*x.shape[:axis], extra, *x.shape[axis + 1 :])
    return jnp.concatenate([x, jnp.broadcast_to(last, more)], axis)


def pad_coords(at: Coords, block: int, axis: int) -> Coords:
    """Padding keeps the last token's position and features, which every scheme can bear."""
    repeated = jax.tree.map(lambda a: _pad_by_last(a, block, axis), at)
    return repeated._replace(index=pad(at.index, block, axis, -1))


__all__ = [
    "add_to",
    "blank_rows",
    "hoist",
    "merge",
    "nth",
    "pad",
    "pad_coords",
    "per_head",
    "split_floats",
    "take",
    "zeros_for",
]
