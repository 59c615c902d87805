"""Biases that are a curve over the distance between two tokens; all float32 `*B N T S`.

Distances are formed from the positions themselves, so those of integer positions are exact up to
2**24; keys after the query count by their distance too.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from flax_pos.functional.angles import cos_sin_at
from flax_pos.functional.distance import relative_positions
from flax_pos.functional.rope.frequencies import ladder
from flax_pos.functional.shapes import beside_scores

LEAST = 1e-2
"""KERPLE's trained numbers are kept above it, as in the paper's code."""


def distances(q_pos: Num[Array, "*B T"], k_pos: Num[Array, "*B S"]) -> Float[Array, "*B 1 T S"]:
    """|query - key| in float32, with an axis for heads."""
    return jnp.abs(relative_positions(q_pos, k_pos)).astype(jnp.float32)[..., None, :, :]


def kerple_log(distance: Float[Array, "*B 1 T S"], p, a) -> Float[Array, "*B N T S"]:
    """`-p log(1 + a r)` (Chi et al. 2022, arXiv:2205.09921, equation 9), p and a `N`."""
    p, a = (beside_scores(x, distance) for x in (p, a))
    return -p * jnp.log1p(a * distance)


def kerple_power(distance: Float[Array, "*B 1 T S"], p, a) -> Float[Array, "*B N T S"]:
    """`-a r ** p` (Chi et al. 2022, arXiv:2205.09921, equation 9), p and a `N`."""
    p, a = (beside_scores(x, distance) for x in (p, a))
    # r ** p has no derivative in p at r = 0, where the curve is 0 for every p.
    there = jnp.where(distance > 0, distance, 1.0)
    return jnp.where(distance > 0, -a * there**p, 0.0)


def fire_ratio(
    distance: Float[Array, "*B 1 T S"], q_pos: Num[Array, "*B T"], c, threshold
) -> Float[Array, "*B 1 T S"]:
    """`log(1 + |c| r) / (log(1 + |c| max(i, threshold)) + 1e-6)`, i the query's position (Li et
    al. 2024, arXiv:2310.04418, equations 9 and 18)."""
    squash = lambda r: jnp.log1p(jnp.abs(c) * r)
    longest = jnp.maximum(jnp.abs(q_pos).astype(jnp.float32), threshold)
    return squash(distance) / (squash(longest)[..., None, :, None] + 1e-6)


def sandwich(
    q_pos: Num[Array, "*B T"], k_pos: Num[Array, "*B S"], heads: int, width: int, theta=10000.0
) -> Float[Array, "*B N T S"]:
    """`(sum_m cos(r theta ** (-2m / width)) - width / 2) / (8 n / N)`, m = 1 .. width / 2 and
    n = 1 .. N (Chi et al. 2023, arXiv:2212.10356, equation 6).

    The sum is the inner product of the two positions' sinusoids, which is how it is computed.
    """
    inv_freq = ladder(theta, width, width // 2 + 1)[1:]
    q, k = (jnp.concatenate(cos_sin_at(pos, inv_freq), -1) for pos in (q_pos, k_pos))
    total = jnp.einsum("...tf,...sf->...ts", q, k, precision="highest")[..., None, :, :]
    slopes = np.asarray(heads / (8 * np.arange(1, heads + 1)), np.float32)
    return (total - jnp.float32(width // 2)) * beside_scores(jnp.asarray(slopes), total)


__all__ = ["LEAST", "distances", "fire_ratio", "kerple_log", "kerple_power", "sandwich"]
