"""The induction head: what came after this token the last time?"""

import dataclasses

import jax
import jax.numpy as jnp

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import BOS, SPECIAL, Part, draw, join, token
from flax_pos.lab.tasks.sequence import WindowTask, check_at_least


@register_task("induction")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Induction(WindowTask):
    """`<bos> ... a b ... a` and then b: a random pair somewhere in random tokens, its first token
    nowhere else but at the end (Olsson et al. 2022, arXiv 2209.11895). Trained at one length."""

    symbols: int = 32
    """Different tokens; the vocabulary has four more."""

    shortest = 4

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, symbols=2)

    @property
    def symbols_needed(self):
        return SPECIAL + self.symbols

    def example(self, key, size, largest, variant):
        content_key, trigger_key, place_key = jax.random.split(key, 3)
        count = size - 2
        trigger = jax.random.randint(trigger_key, (), 0, self.symbols, jnp.int32)
        others = draw(content_key, largest, self.symbols - 1, first=0)
        content = jnp.where(others >= trigger, others + 1, others)
        place = jax.random.randint(place_key, (), 0, count - 1, jnp.int32)
        content = content.at[place].set(trigger) + SPECIAL
        return join(
            self.tokens(largest),
            token(BOS),
            Part(content, count),
            token(trigger + SPECIAL),
            token(content[place + 1], answer=True),
        )
