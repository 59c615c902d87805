"""Bilevel positions: where in the sentence, and which sentence."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.fields import check_ids, check_integer, check_number
from flax_pos.functional.structure import UNKNOWN, is_one_of, sentence_positions
from flax_pos.scheme import Scheme, register
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.two_level import TwoLevel, needs_ids


@register("bipe")
@dataclass(frozen=True, kw_only=True)
class BiPE(TwoLevel):
    """A trained row for the place in the sentence is added to the embedding; `inner` (RoPE, or
    ALiBi) sees the number of the sentence. Sentences end with any of `separators`.

    Reads ids. A call that goes on in the middle of a text needs `prev`; without it tokens before
    the first separator cannot be placed. `pos` is `2 (sentence * rows + place) + closes`.
    """

    inner: Scheme = Rope()  # noqa: RUF009 - frozen
    separators: tuple[int, ...] = (869, 13)
    """Token ids that end a sentence; the paper's are Llama's for a full stop and a line break."""
    rows: int = 1024
    """Places in a sentence; later ones share the last, as in the paper's code."""
    stddev: float = 0.02
    """Of the initial table."""

    paper = "He et al. 2024, arXiv:2401.16421"
    formula = "x + W[place in sentence], inner(number of sentence)"
    toy = {"separators": (3, 7), "rows": 8}

    def __post_init__(self):
        super().__post_init__()
        if "positions" in self.inner.uses:
            raise ValueError(
                f"inner must take the numbers of sentences as they are; {self.inner.name!r} moves "
                "positions (for RoPE a scaling law of its spec does that)"
            )
        check_ids("separators", self.separators)
        check_integer("rows", self.rows)
        check_number("stddev", self.stddev, at_least=0)

    def levels(self, pos):
        sentence, place = jnp.divmod(pos >> 1, self.rows)
        return place, sentence

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        closes = is_one_of(needs_ids(self, ids), self.separators)
        start = index <= 0
        word_before = sentence_before = jnp.full_like(index[..., :1], UNKNOWN)
        if prev is not None:
            place, sentence = self.levels(prev.pos)
            closed = prev.pos & 1
            sentence_before = sentence + closed
            word_before = jnp.where(closed == 1, 0, place + 1)
        sentence, place = sentence_positions(closes, start, sentence_before, word_before)
        known = jnp.cumsum(start | (word_before >= 0), -1) > 0
        known &= self._fits(sentence, 2 * self.rows)
        packed = sentence * self.rows + jnp.minimum(place, self.rows - 1)
        return jnp.where(known, 2 * packed + closes.astype(jnp.int32), UNKNOWN)
