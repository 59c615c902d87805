"""Sorting random tokens: needs content and count, no position."""

import dataclasses

import jax.numpy as jnp

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import BOS, EOS, SEP, SPECIAL, Part, draw, join, token
from flax_pos.lab.tasks.sequence import UpToTask, check_at_least


@register_task("sort")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sort(UpToTask):
    """`<bos> x <sep> x in rising order <eos>`: the same for every order of x, so that it shows
    what positions cost where they are of no use (Ruoss et al. 2023, arXiv 2305.16843)."""

    symbols: int = 32
    """Different tokens; the vocabulary has four more."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, symbols=2)

    @property
    def symbols_needed(self):
        return SPECIAL + self.symbols

    def tokens(self, size):
        return 2 * size + 2

    def example(self, key, size, largest, variant):
        content = draw(key, largest, self.symbols)
        past = jnp.arange(largest, dtype=jnp.int32) >= size
        ordered = jnp.sort(jnp.where(past, self.symbols_needed, content))
        return join(
            self.tokens(largest),
            token(BOS),
            Part(content, size),
            token(SEP),
            Part(ordered, size, answer=True),
            token(EOS, answer=True),
        )
