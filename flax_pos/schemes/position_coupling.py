"""Position coupling: digits of the same significance share a position."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.fields import check_ids, check_integer, check_number
from flax_pos.functional.structure import (
    UNKNOWN,
    after_latest,
    distance_to_run_end,
    is_one_of,
    run_offsets,
)
from flax_pos.scheme import Scheme, register
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.two_level import TwoLevel, needs_ids


@register("position_coupling")
@dataclass(frozen=True, kw_only=True)
class PositionCoupling(TwoLevel):
    """For sums such as `653+49=207` with the answer written units first: units are put at e - 1,
    tens at e - 2 and so on, in operands and answer alike, the signs after operands at e, all
    other tokens at 0. A trained row for each position is added to the embedding.

    In training e is drawn so that every row of the table is used, one draw for a forward; without
    a key it is the last row, whatever the length. Reads ids: a call must not end within an
    operand (the next one raises, or gives NaN where ids are traced); the answer may come token by
    token with `prev`. `inner` sees plain positions; the paper has none there. `pos` is
    `2 (plain position * rows + row) + answer`.
    """

    inner: Scheme = NoPE()  # noqa: RUF009 - frozen
    digits: tuple[int, ...] = tuple(range(48, 58))
    """Token ids of the digits; those of ASCII here."""
    equals: int = 61
    """Token id of the sign that the answer follows."""
    rows: int = 103
    """Of the table: largest position (the paper's max_pos) + 1."""
    stddev: float = 0.02
    """Of the initial table."""

    paper = "Cho et al. 2024, arXiv:2405.20671"
    formula = "x + W[e - 1 - significance], e ~ U(longest + 2, max_pos) in training"
    toy = {"digits": (1, 2, 3, 4), "equals": 5, "rows": 40}

    def __post_init__(self):
        super().__post_init__()
        check_ids("digits", self.digits)
        check_integer("equals", self.equals, at_least=0)
        check_integer("rows", self.rows, at_least=4)
        check_number("stddev", self.stddev, at_least=0)

    def levels(self, pos):
        plain, row = jnp.divmod(pos >> 1, self.rows)
        return row, plain

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        ids = needs_ids(self, ids)
        digit, equals, start = is_one_of(ids, self.digits), ids == self.equals, index <= 0
        end = jnp.int32(self.rows - 1)
        prev_answer = prev_digit = jnp.zeros_like(start[..., :1])
        before = prev_answer.astype(jnp.int32)
        rest = inner_prev = None
        if prev is not None:
            at, plain = self.levels(prev.pos)
            prev_answer, inner_prev = (prev.pos & 1) == 1, prev._replace(pos=plain)
            before = jnp.where(at > 0, end - at, 0)  # digits of the answer so far
            prev_digit = ~prev_answer & (at > 0) & (at < end)
        in_answer = after_latest(equals, start, prev_answer)
        from_end = distance_to_run_end(digit & ~in_answer, start)
        if key is not None:
            own, rest = jax.random.split(key)
            longest = jnp.minimum(from_end.max() + 2, self.rows - 1)
            end = jax.random.randint(own, (), longest, self.rows, jnp.int32)
        from_start = run_offsets(digit & in_answer, start, before)
        after_digit = jnp.concatenate([prev_digit, digit[..., :-1]], -1) & ~start
        sign = equals | (~digit & after_digit & ~in_answer)
        pos = jnp.where(digit, end - jnp.where(in_answer, from_start, from_end), 0)
        pos = jnp.where(sign, end, pos)
        known = (prev is not None) | (jnp.cumsum(start, -1) > 0)
        # An operand whose first digits came in an earlier call, which took them for all of it.
        cut = digit[..., :1] & prev_digit & ~in_answer[..., :1] & ~start[..., :1]
        known &= ~cut
        fits = (pos > 0) | ~(digit | sign)
        plain = self._plain(index, length=length, key=rest, ids=ids, prev=inner_prev)
        packed = 2 * (plain * self.rows + pos) + in_answer.astype(jnp.int32)
        fits &= self._fits(plain, 2 * self.rows)
        return jnp.where(known & fits, packed, UNKNOWN)
