"""Cosines and sines of position times frequency, also where tokens stand between whole numbers,
and dot products of q and k at positions chosen for one block."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from flax_pos.functional.dot import dot_logits
from flax_pos.functional.positions import check_positions
from flax_pos.functional.rope.phase import exact_cos_sin
from flax_pos.functional.rope.rotation import Layout, rotate_with_tables
from flax_pos.functional.shapes import beside
from flax_pos.types import Pair


def cos_sin_at(
    positions: Num[Array, "*B T"], inv_freq
) -> tuple[Float[Array, "*B T F"], Float[Array, "*B T F"]]:
    """float32 cosine and sine of `positions * inv_freq`.

    Args:
      positions: integers of at least 32 bits, or float32 for tokens placed at real numbers. The
        whole part of a real position is as exact as an integer, so only its fraction is rounded.
      inv_freq: `F` radians per token, NumPy float64 or a float32 array.

    Raises:
      TypeError: positions of 8 or 16 bits.
    """
    if jnp.result_type(positions) not in (jnp.float32, jnp.float64):
        return exact_cos_sin(check_positions(positions)[..., None], inv_freq)
    whole = jnp.floor(positions)
    cos, sin = exact_cos_sin(whole.astype(jnp.int32)[..., None], inv_freq)
    return turn(cos, sin, *fraction_of_turn(positions - whole, inv_freq))


def fraction_of_turn(
    part: Float[Array, "*B T"], inv_freq
) -> tuple[Float[Array, "*B T F"], Float[Array, "*B T F"]]:
    """Cosine and sine of a small distance, below one token, times `inv_freq`."""
    angle = part.astype(jnp.float32)[..., None]
    angle = angle * beside(jnp.asarray(inv_freq), angle)
    return jnp.cos(angle), jnp.sin(angle)


def turn(cos, sin, more_cos, more_sin):
    """Cosine and sine of the sum of two angles."""
    return cos * more_cos - sin * more_sin, sin * more_cos + cos * more_sin


def logits_at(
    pair: Pair,
    q_pos: Num[Array, "*B T"],
    k_pos: Num[Array, "*B S"],
    inv_freq,
    *,
    layout: Layout = "half",
) -> Float[Array, "*B N T S"]:
    """Scaled q.k of a block, in float32, with q and k rotated to the given positions.

    For schemes that see the same two tokens at several distances: q and k come unrotated.
    """
    q = rotate_with_tables(pair.q, *cos_sin_at(q_pos, inv_freq), layout=layout)
    k = rotate_with_tables(pair.k, *cos_sin_at(k_pos, inv_freq), layout=layout)
    return dot_logits(q, k, scale=pair.scale, softcap=pair.softcap)


def rotate_heads(
    x: Float[Array, "*B T N H"],
    cos: Float[Array, "*B T K F"],
    sin: Float[Array, "*B T K F"],
    *,
    layout: Layout = "half",
) -> Float[Array, "*B T N H"]:
    """Rotation with angles that differ by head; each of K tables serves N / K heads."""
    cos, sin = (jnp.repeat(table, x.shape[-2] // table.shape[-2], -2) for table in (cos, sin))
    return rotate_with_tables(x[..., None, :], cos, sin, layout=layout)[..., 0, :]


__all__ = ["cos_sin_at", "fraction_of_turn", "logits_at", "rotate_heads", "turn"]
