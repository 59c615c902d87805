"""Norms over the last axis, in float32."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def rms_norm(
    x: Float[Array, "*B D"], scale: jax.Array, *, eps: float = 1e-6
) -> Float[Array, "*B D"]:
    """`x / sqrt(mean(x^2) + eps) * scale` (Zhang and Sennrich 2019, arXiv:1910.07467).

    Args:
      x: floating.
      scale: `D`, or `N D` for one scale per head where x is `*B N D`.
      eps: added to the mean square.

    Returns:
      In the dtype of `x`; computed in float32 (or better, where x is better).

    >>> rms_norm(jnp.array([1.0, 7.0]), jnp.array([5.0, 5.0]), eps=1e-12).tolist()
    [1.0, 7.0]
    """
    wide = _wide(x)
    mean = jnp.mean(jnp.square(wide), -1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + eps) * _fit(scale, wide)).astype(x.dtype)


def layer_norm(
    x: Float[Array, "*B D"],
    scale: jax.Array,
    bias: jax.Array | None = None,
    *,
    eps: float = 1e-6,
) -> Float[Array, "*B D"]:
    """`(x - mean) / sqrt(var + eps) * scale + bias` (Ba et al. 2016, arXiv:1607.06450).

    Arguments and result as in `rms_norm`; `bias` has the shape of `scale`, None for none.

    >>> layer_norm(jnp.array([1.0, 3.0]), jnp.ones(2), eps=1e-12).tolist()
    [-1.0, 1.0]
    """
    wide = _wide(x)
    wide = wide - jnp.mean(wide, -1, keepdims=True)
    var = jnp.mean(jnp.square(wide), -1, keepdims=True)
    out = wide * jax.lax.rsqrt(var + eps) * _fit(scale, wide)
    return (out if bias is None else out + _fit(bias, wide)).astype(x.dtype)


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(np.promote_types(x.dtype, np.float32))


def _fit(param: jax.Array, x: jax.Array) -> jax.Array:
    return param.astype(x.dtype).reshape((1,) * (x.ndim - param.ndim) + param.shape)


__all__ = ["layer_norm", "rms_norm"]
