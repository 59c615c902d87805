"""Positions as data: from masks and segments, and the check that they are fit for maths."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int, Integer

from flax_pos.functional.shapes import slots


def holds_positions(dtype: Any) -> bool:
    """Whether positions stay exact in `dtype`: signed integers, or floats, of at least 32 bits."""
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.signedinteger)
    return real and dtype.itemsize >= 4


def positions_from_mask(
    mask: Bool[ArrayLike, "*B T"] | Integer[ArrayLike, "*B T"],
    *,
    start: Integer[ArrayLike, "*B"] = 0,
    padding: int = -1,
) -> Int[Array, "*B T"]:
    """Position = number of tokens before this one in its row; padding may be anywhere.

    Args:
      mask: True (or a non-zero integer) where there is a token.
      start: position of the first token, one number or one per row: the number of tokens already
        in the cache.
      padding: value on padding. -1 is what this library takes for "no token".

    Other conventions: RoBERTa, fairseq: `start=pad_id + 1, padding=pad_id`. OPT's rows:
    `start=2, padding=1`. Hugging Face `generate`: `padding=0`.

    Raises:
      TypeError: a floating mask (an additive mask, for example).
      ValueError: a mask without axes, a `start` that does not fit its rows, or concrete positions
        that int32 cannot hold.

    >>> positions_from_mask(jnp.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], bool)).tolist()
    [[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]]
    """
    mask = jnp.asarray(mask)
    if not (mask.dtype == jnp.bool_ or jnp.issubdtype(mask.dtype, jnp.integer)):
        raise TypeError(f"mask must be bool (True = token) or integers, got {mask.dtype}")
    if mask.ndim < 1:
        raise ValueError("mask must have axes *B T, got a scalar")
    mask = mask.astype(bool)
    count = jnp.cumsum(mask, axis=-1, dtype=jnp.int32) - 1
    first = check_positions(start, "start")
    if first.ndim and first.shape not in (mask.shape[:-1], (1,) * (mask.ndim - 1)):
        raise ValueError(
            f"start must be one number or one per row of the mask, {mask.shape[:-1]}, got shape "
            f"{first.shape}"
        )
    if mask.size and not isinstance(first, Tracer) and not isinstance(count, Tracer):
        top = np.iinfo(np.int32).max
        if int(jnp.max(first)) > top - mask.shape[-1]:
            last = int(np.max(np.asarray(first, np.int64) + np.asarray(count[..., -1])))
            if last > top:
                raise ValueError(f"start must leave room for the row, but positions run to {last}")
    first = jnp.broadcast_to(first[..., None], mask.shape) if first.ndim else first
    return jnp.where(mask, count + first, padding)


def positions_from_segments(segments: Integer[ArrayLike, "*B T"]) -> Int[Array, "*B T"]:
    """Positions that restart at 0 with every run of equal segment ids; -1 where the id is 0.

    Args:
      segments: which packed document each token belongs to; 0 is padding.

    >>> positions_from_segments(jnp.array([1, 1, 1, 2, 2, 3, 0, 0])).tolist()
    [0, 1, 2, 0, 1, 0, -1, -1]
    """
    segments = check_positions(segments, "segments")
    if segments.ndim < 1:
        raise ValueError("segments must have axes *B T, got a scalar")
    at = slots(segments)
    starts = jnp.concatenate(
        [jnp.ones_like(segments[..., :1], bool), segments[..., 1:] != segments[..., :-1]], axis=-1
    )
    run_start = jax.lax.cummax(jnp.where(starts, at, 0), axis=segments.ndim - 1)
    return jnp.where(segments == 0, -1, at - run_start)


def check_positions(
    positions: Integer[ArrayLike, "*B"], name: str = "positions", *, axes: int | None = None
) -> Int[Array, "*B"]:
    """`positions` as int32, once they have been seen to be whole numbers held exactly.

    Args:
      positions: integers of 32 bits or more (Python integers are fine).
      name: what the argument is called in error messages.
      axes: where given, the length that the leading axis must have (3 for time, height, width).

    Raises:
      TypeError: floating positions (bfloat16 cannot tell 257 from 256), bools, or integers of 8
        or 16 bits (which wrap at 128, 32768 or 65536).
      ValueError: a wrong number of axes, or a concrete value that int32 cannot hold.
    """
    given: Any = positions if hasattr(positions, "dtype") else np.asarray(positions)
    dtype = given.dtype
    if not jnp.issubdtype(dtype, jnp.integer) or dtype.itemsize < 4:
        raise TypeError(f"{name} must be integers of at least 32 bits, got {dtype}")
    if axes is not None and (given.ndim < 1 or given.shape[0] != axes):
        raise ValueError(
            f"{name} must have a leading axis of length {axes}, got shape {given.shape}"
        )
    if dtype != np.int32 and not isinstance(given, Tracer) and given.size:
        top = np.iinfo(np.int32).max
        low, high = int(given.min()), int(given.max())
        if low < -top - 1 or high > top:
            raise ValueError(f"{name} must fit int32, got values {low} .. {high}")
    return jnp.asarray(given, jnp.int32)
