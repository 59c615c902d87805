"""Counting with replacement: n times one token in, n times another out."""

import dataclasses

import jax.numpy as jnp

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import BOS, EOS, SEP, SPECIAL, Part, draw_different, join, token
from flax_pos.lab.tasks.sequence import UpToTask, check_at_least


@register_task("replace")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Replace(UpToTask):
    """`<bos> b a a a <sep> b b b <eos>`, b never a: the answer cannot be copied, only counted
    (Kazemnejad et al. 2023, arXiv 2305.19466, their task `rdc`)."""

    unit = "repeats"

    symbols: int = 12
    """Different tokens; the vocabulary has four more."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, symbols=2)

    @property
    def symbols_needed(self):
        return SPECIAL + self.symbols

    def tokens(self, size):
        return 2 * size + 3

    def example(self, key, size, largest, variant):
        given, wanted = draw_different(key, 2, self.symbols)
        repeat = lambda value: jnp.full(largest, value, jnp.int32)
        return join(
            self.tokens(largest),
            token(BOS),
            token(wanted),
            Part(repeat(given), size),
            token(SEP),
            Part(repeat(wanted), size, answer=True),
            token(EOS, answer=True),
        )
