"""Abacus embeddings: digits know their place in the number."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.fields import check_ids, check_integer, check_number
from flax_pos.functional.structure import UNKNOWN, is_one_of, run_offsets
from flax_pos.scheme import Scheme, register
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.two_level import TwoLevel, needs_ids


@register("abacus")
@dataclass(frozen=True, kw_only=True)
class Abacus(TwoLevel):
    """A trained row for a digit's place in its number (from 1) is added to the embedding, row 0
    for all other tokens. In training all places are moved by one random number. `inner` sees the
    plain positions; the paper has FIRE or none there. Numbers are to be written units first.

    Reads ids. A call that goes on in the middle of a number needs `prev`. `pos` is
    `plain position * rows + place`.
    """

    inner: Scheme = NoPE()  # noqa: RUF009 - frozen
    digits: tuple[int, ...] = tuple(range(48, 58))
    """Token ids of the digits; those of ASCII here."""
    rows: int = 1024
    """Of the table: longest number + max_shift + 1."""
    max_shift: int = 99
    stddev: float = 0.02
    """Of the initial table."""

    paper = "McLeish et al. 2024, arXiv:2405.17399"
    formula = "x + W[place in number + k], k ~ U(0, K) in training; W[0] for other tokens"
    toy = {"digits": (1, 2, 3, 4), "rows": 64, "max_shift": 5}

    def __post_init__(self):
        super().__post_init__()
        check_ids("digits", self.digits)
        check_integer("rows", self.rows, at_least=2)
        check_integer("max_shift", self.max_shift, at_least=0)
        check_number("stddev", self.stddev, at_least=0)

    def levels(self, pos):
        plain, place = jnp.divmod(pos, self.rows)
        return place, plain

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        digit = is_one_of(needs_ids(self, ids), self.digits)
        before = jnp.full_like(index[..., :1], UNKNOWN)
        shift, rest, inner_prev = 0, None, None
        if prev is not None:
            before, plain = self.levels(prev.pos)
            inner_prev = prev._replace(pos=plain)
        if key is not None:
            own, rest = jax.random.split(key)
            shift = jax.random.randint(own, (), 0, self.max_shift + 1, jnp.int32)
        place = run_offsets(digit, index <= 0, before)
        fits = (place >= 0) & (place + shift < self.rows)
        place = jnp.where(place > 0, place + shift, place)
        plain = self._plain(index, length=length, key=rest, ids=ids, prev=inner_prev)
        fits &= self._fits(plain, self.rows)
        return jnp.where(fits, plain * self.rows + place, UNKNOWN)
