"""Shapes that meet without implicit broadcasting of ranks.

What is made out of nothing is made like an array that is there, so that it lies on devices as that
one does: under a mesh with explicit axes the two would not meet otherwise.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp


def beside(v: jax.Array, x: jax.Array) -> jax.Array:
    """`v` in float32 with axes of length 1 in front, as many axes as `x`: for parameters of the
    last axes of `x`."""
    return v.astype(jnp.float32).reshape((1,) * (x.ndim - v.ndim) + v.shape)


def beside_scores(v: jax.Array, x: jax.Array) -> jax.Array:
    """`v` (`N`) in float32, beside `x` (`*B N T S`)."""
    return beside(v[:, None, None], x)


def slots(x: jax.Array) -> jax.Array:
    """int32 0, 1, 2, ... along the last axis, in the shape of `x`."""
    counted = jnp.arange(x.shape[-1], dtype=jnp.int32).reshape((1,) * (x.ndim - 1) + (-1,))
    return jnp.zeros_like(x, jnp.int32) + counted


def shapes_inside(jaxpr) -> Iterator[tuple[int, ...]]:
    """The shape of everything that a jaxpr computes, in the bodies of its loops and calls too."""
    for equation in jaxpr.eqns:
        for var in equation.outvars:
            yield getattr(var.aval, "shape", ())
        is_jaxpr = lambda value: hasattr(value, "eqns") or hasattr(value, "jaxpr")
        for value in jax.tree.leaves(equation.params, is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from shapes_inside(getattr(value, "jaxpr", value))


__all__ = ["beside", "beside_scores", "shapes_inside", "slots"]
