"""Functions of the distance between two tokens: slopes, buckets, shifts, temperatures."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Integer, Num

from flax_pos.functional.positions import check_positions


def alibi_slopes(heads: int, *, max_bias: float | Array = 8.0) -> Float[Array, " N"]:
    """ALiBi's slopes in head order (Press et al. 2022, arXiv:2108.12409, and its code).

    For a power of two N they are `2 ** (-max_bias * i / N)`, i = 1 .. N. For other N the paper's
    text suggests the same series, but its code, BLOOM and MPT take the slopes of the power of two
    below, then every other slope of the power of two above, in that order. Weights are trained
    for one order: they are not sorted here.

    Args:
      heads: N.
      max_bias: the steepest exponent (MPT's `alibi_bias_max`).

    Returns:
      float32, positive.

    Raises:
      TypeError: `heads` is not an integer.
      ValueError: no heads, or a concrete `max_bias` that is not positive and finite.

    >>> alibi_slopes(6).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    if isinstance(heads, bool) or not isinstance(heads, int | np.integer):
        raise TypeError(f"heads must be an integer, got {heads!r}")
    heads = int(heads)
    if not isinstance(max_bias, Tracer) and not 0 < max_bias < np.inf:
        raise ValueError(f"max_bias must be positive and finite, got {max_bias}")
    if heads < 1:
        raise ValueError(f"heads must be at least 1, got {heads}")
    below = 1 << (heads.bit_length() - 1)
    exponents = np.concatenate(
        [np.arange(1, below + 1) / below, np.arange(1, 2 * below, 2)[: heads - below] / (2 * below)]
    )
    if isinstance(max_bias, jax.Array):
        return jnp.exp2(-jnp.asarray(max_bias, jnp.float32) * jnp.asarray(exponents, jnp.float32))
    return jnp.asarray(np.exp2(-max_bias * exponents), jnp.float32)


def relative_positions(
    q_pos: Num[Array, "*B T"], k_pos: Num[Array, "*B S"]
) -> Num[Array, "*B T S"]:
    """key - query, in the dtype of the positions: exact where they are integers."""
    return k_pos[..., None, :] - q_pos[..., :, None]


def alibi_bias(
    slopes: Float[Array, " N"], q_pos: Num[Array, "*B T"], k_pos: Num[Array, "*B S"]
) -> Float[Array, "*B N T S"]:
    """`-slope * |query - key|`, float32.

    The distance is formed from the positions themselves before it meets the slope, so it is
    exact: `slope * key`, which differs by a constant per query, loses near distances at far
    positions. Keys after the query count by their distance too, for attention that is not causal.

    >>> alibi_bias(alibi_slopes(4), jnp.array([5]), jnp.arange(6))[0].tolist()
    [[-1.25, -1.0, -0.75, -0.5, -0.25, 0.0]]
    """
    distance = jnp.abs(relative_positions(q_pos, k_pos))
    closeness = (-distance).astype(jnp.float32)[..., None, :, :]
    return slopes.reshape(*[1] * (closeness.ndim - 3), -1, 1, 1) * closeness


def t5_buckets(
    relative: Num[Array, "*S"],
    *,
    bidirectional: bool = False,
    num_buckets: int = 32,
    max_distance: int = 128,
) -> Int[Array, "*S"]:
    """T5's buckets of relative position (Raffel et al. 2020, arXiv:1910.10683, and its code).

    Half of the buckets are single distances, the others grow geometrically up to `max_distance`,
    beyond which all distances share the last. The logarithm's steps are computed exactly as
    integer thresholds, so no device's `log` can round a boundary the wrong way.

    Args:
      relative: key - query: signed integers of any width, or float32 for tokens at real
        positions.
      bidirectional: keys after the query get the upper half of the buckets; otherwise they share
        bucket 0.
      num_buckets: in all.
      max_distance: in tokens.

    Returns:
      int32, 0 .. num_buckets - 1.

    Raises:
      TypeError: unsigned integers, which wrap where the key comes before the query, or 16-bit
        floats, which cannot count.
      ValueError: concrete distances that are NaN, too few buckets, or a `max_distance` that the
        single-distance buckets reach.

    >>> t5_buckets(jnp.array([-20, -8, 0, 5])).tolist()
    [17, 8, 0, 0]
    """
    check_t5_buckets(bidirectional, num_buckets, max_distance)
    relative = _signed(relative)
    side = num_buckets // 2 if bidirectional else num_buckets
    distance = jnp.abs(relative) if bidirectional else jnp.maximum(-relative, 0)
    single = side // 2
    bucket = jnp.minimum(distance, single).astype(jnp.int32)
    for threshold in _log_thresholds(single, side, max_distance):
        bucket += (distance >= threshold).astype(jnp.int32)
    return bucket + jnp.where(relative > 0, side, 0) if bidirectional else bucket


def _signed(relative):
    """int32 whose negative is int32 too, or the floats as they are."""
    relative = relative if hasattr(relative, "dtype") else np.asarray(relative)
    dtype = relative.dtype
    if jnp.issubdtype(dtype, jnp.signedinteger):
        top = np.iinfo(np.int32).max
        if dtype.itemsize >= 4:
            relative = relative.clip(-top, top)
        return jnp.asarray(relative, jnp.int32)
    if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize < 4:
        raise TypeError(f"relative must be signed integers, or float32; got {dtype}")
    relative = jnp.asarray(relative)
    if not isinstance(relative, Tracer) and bool(jnp.isnan(relative).any()):
        raise ValueError("relative must be numbers, key - query; got NaN")
    return relative


def check_t5_buckets(bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    """Raises ValueError where the settings of `t5_buckets` make no sense."""
    least = 4 if bidirectional else 2
    if num_buckets < least or (bidirectional and num_buckets % 2):
        raise ValueError(
            f"num_buckets must be at least {least}{' and even' if bidirectional else ''}, "
            f"got {num_buckets}"
        )
    single = num_buckets // (4 if bidirectional else 2)
    if max_distance <= single:
        raise ValueError(
            f"max_distance must exceed {single}, the distances that have buckets of their own, "
            f"got {max_distance}"
        )


def _log_thresholds(single: int, side: int, max_distance: int) -> list[int]:
    """Smallest distances of the buckets single + 1 .. side - 1.

    The j-th is the smallest n with log(n / single) / log(max_distance / single) * steps >= j,
    that is n**steps >= max_distance**j * single**(steps - j).
    """
    steps = side - single
    thresholds = []
    for j in range(1, steps):
        goal = max_distance**j * single ** (steps - j)
        n = int(single * (max_distance / single) ** (j / steps))
        while n**steps >= goal:
            n -= 1
        while n**steps < goal:
            n += 1
        thresholds.append(n)
    return thresholds


def log_buckets(
    relative: Int[Array, "*S"], *, bucket_size: int = 256, max_position: int = 512
) -> Int[Array, "*S"]:
    """DeBERTa's signed buckets (He et al. 2021, arXiv:2006.03654, and the code of its version 2).

    Distances below `bucket_size / 2` are kept, further ones grow logarithmically so that
    `max_position - 1` lands on `bucket_size - 1`; beyond that they go on (DeBERTa clips them).

    Args:
      relative: query - key. Note the sign: the opposite of `t5_buckets`.
      bucket_size: even, per side.
      max_position: in tokens.

    Returns:
      int32 with the sign of `relative`.

    >>> log_buckets(jnp.array([-511, -3, 127, 129])).tolist()
    [-255, -3, 127, 129]
    """
    mid = bucket_size // 2
    if bucket_size < 4 or max_position - 1 <= mid:
        raise ValueError(
            f"bucket_size must be at least 4 and max_position exceed bucket_size / 2 + 1, "
            f"got {bucket_size} and {max_position}"
        )
    distance = jnp.abs(relative)
    log = jnp.log(jnp.maximum(distance, mid).astype(jnp.float32) / mid)
    steps = log * ((mid - 1) / np.log((max_position - 1) / mid))
    # Whole steps must not be rounded up by the last bit of the logarithm.
    far = mid + jnp.ceil(steps - 1e-4).astype(jnp.int32)
    return jnp.where(distance <= mid, relative, jnp.sign(relative) * far).astype(jnp.int32)


def relative_shift(scores: Float[Array, "*B T R"], length: int) -> Float[Array, "*B T S"]:
    """Scores by distance turned into scores by key (Dai et al. 2019, arXiv:1901.02860, app. B).

    Args:
      scores: entry [t, r] belongs to the distance S - r between query and key; R >= S + 1, and
        the queries are the last T of the S tokens.
      length: S, the number of keys.

    Returns:
      Entry [t, s] is `scores[t, s + T - t]`. For s far to the right of the query this runs into
      the next row where R < S + T: entries that a causal mask removes.
    """
    *batch, t, r = scores.shape
    if r <= length:
        raise ValueError(f"the last axis of scores must exceed length {length}, got {r}")
    # Dropping T entries of the flat array moves row t left by T - t once rows are R - 1 long.
    flat = scores.reshape(*batch, t * r)[..., t:]
    return flat.reshape(*batch, t, r - 1)[..., :length]


def query_temperature(
    positions: Integer[ArrayLike, "*B T"],
    *,
    scale: float | Array = 0.1,
    length: int = 8192,
    offset: int = 0,
) -> Float[Array, "*B T"]:
    """Factor on queries that grows with position: `1 + scale * log(1 + (p + offset) // length)`.

    Llama 4's layers without positions: scale 0.1, length 8192, offset 1. Ministral 3: scale 0.1,
    length 16384, offset 0.

    Args:
      positions: integers of at least 32 bits; negative ones (padding) get 1.
      scale: growth per unit of log.
      length: tokens before the factor leaves 1.
      offset: added to the position first.

    Returns:
      float32.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    blocks = jnp.maximum(check_positions(positions) + offset, 0) // length
    return 1 + jnp.asarray(scale, jnp.float32) * jnp.log1p(blocks.astype(jnp.float32))
