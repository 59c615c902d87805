"""Shapes that meet without implicit broadcasting of ranks."""

import jax
import jax.numpy as jnp


def beside(v: jax.Array, x: jax.Array) -> jax.Array:
    """`v` in float32 with axes of length 1 in front, as many axes as `x`: for parameters of the
    last axes of `x`."""
    return v.astype(jnp.float32).reshape((1,) * (x.ndim - v.ndim) + v.shape)


def beside_scores(v: jax.Array, x: jax.Array) -> jax.Array:
    """`v` (`N`) in float32, beside `x` (`*B N T S`)."""
    return beside(v[:, None, None], x)


__all__ = ["beside", "beside_scores"]
