"""Adding two numbers digit by digit."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import (
    BOS,
    EOS,
    SEP,
    SPECIAL,
    Part,
    alternate,
    backwards,
    draw,
    join,
    token,
)
from flax_pos.lab.tasks.sequence import UpToTask

PLUS = SPECIAL
DIGIT = PLUS + 1
HINT = DIGIT + 10


@register_task("addition")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Addition(UpToTask):
    """`<bos> a + b <sep> a+b <eos>`: two numbers of n digits and their sum of n + 1, all padded
    with zeros and digits uniform, so that carries are as in a uniform draw (Zhou et al. 2024,
    arXiv 2402.09371; Cho et al. 2024, arXiv 2405.20671)."""

    unit = "digits"

    max_size: int = 10
    test_size: int = 20
    order: Literal["plain", "reversed"] = "reversed"
    """All three numbers with the highest digit first, or with the lowest, as carries go."""
    index_hints: bool = False
    """Each digit comes after a token that names its place, counted from a random start so that
    every name is seen in training (Zhou et al. 2023, arXiv 2310.16028)."""

    @property
    def hints(self) -> int:
        """How many names of places there are."""
        return self.test_size + 1 if self.index_hints else 0

    @property
    def symbols_needed(self):
        return HINT + self.hints

    def tokens(self, size):
        digits = 3 * size + 1
        return digits * (2 if self.index_hints else 1) + 3

    def example(self, key, size, largest, variant):
        first_key, second_key, hint_key = jax.random.split(key, 3)
        real = jnp.arange(largest, dtype=jnp.int32) < size
        a, b = (jnp.where(real, draw(k, largest, 10, first=0), 0) for k in (first_key, second_key))

        def add(carry, column):
            total = column[0] + column[1] + carry
            return total // 10, total % 10

        carry, low = jax.lax.scan(add, jnp.int32(0), (a, b))
        total = jnp.concatenate([low, carry[None]])
        start = jax.random.randint(hint_key, (), 0, jnp.maximum(self.hints - size, 1), jnp.int32)

        def number(digits, count, answer=False):
            places = jnp.arange(digits.shape[0], dtype=jnp.int32)
            if self.order == "plain":
                digits, places = backwards(digits, count), backwards(places, count)
            if not self.index_hints:
                return Part(digits + DIGIT, count, answer)
            return Part(alternate(places + start + HINT, digits + DIGIT), 2 * count, answer)

        return join(
            self.tokens(largest),
            token(BOS),
            number(a, size),
            token(PLUS),
            number(b, size),
            token(SEP),
            number(total, size + 1, answer=True),
            token(EOS, answer=True),
        )
