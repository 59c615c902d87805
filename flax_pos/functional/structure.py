"""Positions that follow from what the tokens are: digits of a number, words of a sentence.

All functions read one row after the other from left to right. `start` marks tokens that begin a
sequence; what a token before these was is passed on in the arguments that end in `before`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flax_pos.functional.shapes import slots

UNKNOWN = -2
"""Position of a token that cannot be placed: its number or sentence begins before the tokens that
are given, or does not fit the table."""


def is_one_of(ids: Int[Array, "*B T"], tokens: tuple[int, ...]) -> Bool[Array, "*B T"]:
    """Where `ids` is one of `tokens`."""
    return jnp.isin(ids, jnp.asarray(tokens, ids.dtype))


def run_offsets(
    member: Bool[Array, "*B T"], start: Bool[Array, "*B T"], before: Int[Array, "*B 1"]
) -> Int[Array, "*B T"]:
    """1, 2, 3, ... within each run of members, 0 elsewhere.

    Args:
      member: which tokens count.
      start: a run does not continue across it.
      before: result for the token before the first; negative where that is unknown, and then so
        is a run that goes on from there.

    >>> member = jnp.array([0, 1, 1, 0, 1], bool)
    >>> run_offsets(member, jnp.arange(5) == 0, jnp.array([0])).tolist()
    [0, 1, 2, 0, 1]
    """
    slot = slots(member)
    origin = jnp.where(member, jnp.where(start, slot - 1, -2), slot)
    last = jax.lax.cummax(origin, axis=slot.ndim - 1)
    carried = jnp.where(before < 0, UNKNOWN, slot + 1 + before)
    return jnp.where(last > -2, slot - last, carried)


def sentence_positions(
    closes: Bool[Array, "*B T"],
    start: Bool[Array, "*B T"],
    sentence_before: Int[Array, "*B 1"],
    word_before: Int[Array, "*B 1"],
) -> tuple[Int[Array, "*B T"], Int[Array, "*B T"]]:
    """Number of each token's sentence in its sequence, and of the token in its sentence, from 0.

    Args:
      closes: tokens that end a sentence, of which they are the last.
      start: tokens that begin a sequence.
      sentence_before, word_before: what the first token would be if the sequence goes on.

    >>> closes = jnp.array([0, 1, 0, 0, 1, 0], bool)
    >>> zero = jnp.array([0])
    >>> sentence, word = sentence_positions(closes, jnp.arange(6) == 0, zero, zero)
    >>> sentence.tolist(), word.tolist()
    ([0, 0, 1, 1, 1, 2], [0, 1, 0, 1, 2, 0])
    """
    slot, axis = slots(closes), closes.ndim - 1
    after = jnp.concatenate([jnp.zeros_like(closes[..., :1]), closes[..., :-1]], -1)
    opens = jax.lax.cummax(jnp.where(start | after, slot, -1), axis=axis)
    word = jnp.where(opens >= 0, slot - opens, slot + word_before)
    closed = jnp.cumsum(after, -1, dtype=jnp.int32)
    begin = jax.lax.cummax(jnp.where(start, slot, -1), axis=axis)
    at_begin = jnp.take_along_axis(closed, jnp.maximum(begin, 0), -1)
    return jnp.where(begin >= 0, closed - at_begin, closed + sentence_before), word


def after_latest(
    mark: Bool[Array, "*B T"], start: Bool[Array, "*B T"], before: Bool[Array, "*B 1"]
) -> Bool[Array, "*B T"]:
    """Where a mark has come in the token's sequence, itself included; `before`: in the part of the
    first token's sequence that came before."""
    slot, axis = slots(mark), mark.ndim - 1
    marked, begun = (jax.lax.cummax(jnp.where(x, slot, -1), axis=axis) for x in (mark, start))
    return jnp.where((begun < 0) & (marked < 0), before, (marked >= begun) & (marked >= 0))


def distance_to_run_end(
    member: Bool[Array, "*B T"], start: Bool[Array, "*B T"]
) -> Int[Array, "*B T"]:
    """..., 3, 2, 1 within each run of members (1 for its last), 0 elsewhere."""
    last = jnp.ones_like(member[..., :1])
    ends = jnp.concatenate([~member[..., 1:] | start[..., 1:], last], -1)
    slot = slots(member)
    end = jax.lax.cummin(jnp.where(ends, slot, member.shape[-1]), axis=slot.ndim - 1, reverse=True)
    return jnp.where(member, end - slot + 1, 0)


__all__ = [
    "UNKNOWN",
    "after_latest",
    "distance_to_run_end",
    "is_one_of",
    "run_offsets",
    "sentence_positions",
]
