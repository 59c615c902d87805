"""Multi-query associative recall."""

import dataclasses

import jax
import jax.numpy as jnp

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import (
    BOS,
    SEP,
    SPECIAL,
    Part,
    alternate,
    draw,
    draw_different,
    join,
    questions,
    token,
)
from flax_pos.lab.tasks.sequence import UpToTask, check_at_least


@register_task("mqar")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MQAR(UpToTask):
    """`<bos> k v k v ... <sep> k v k v ...`: n keys with random values, then every key once in
    another order, each to be followed by its value (after Arora et al. 2023, arXiv 2312.04927).

    With `writes` above 1 every key is written that often, in random order, and the last value
    counts (as in MQAR-N; PaTH, Yang et al. 2025, arXiv 2505.16381).
    """

    unit = "keys"

    max_size: int = 8
    test_size: int = 16
    keys: int = 32
    values: int = 32
    """Different keys and values; the vocabulary has four more than both."""
    writes: int = 1

    metric = "token"

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, keys=self.test_size, values=2, writes=1)

    @property
    def chance(self):
        return 1 / self.values

    @property
    def symbols_needed(self):
        return SPECIAL + self.keys + self.values

    def tokens(self, size):
        return 2 * size * (self.writes + 1) + 1

    def example(self, key, size, largest, variant):
        name_key, order_key, value_key, asked_key = jax.random.split(key, 4)
        names = draw_different(name_key, largest, self.keys, first=0)
        # The first `size` numbers below `largest`, in random order and each `writes` times.
        written = _shuffled(order_key, size, largest, self.writes)
        values = draw(value_key, written.shape[0], self.values, first=SPECIAL + self.keys)
        at = jnp.arange(written.shape[0], dtype=jnp.int32)
        last = jnp.zeros(largest, jnp.int32).at[written].max(jnp.where(written < size, at, 0))
        asked = _shuffled(asked_key, size, largest, 1)
        answers = values[last[asked]]
        return join(
            self.tokens(largest),
            token(BOS),
            Part(alternate(names[written] + SPECIAL, values), 2 * size * self.writes),
            token(SEP),
            questions(names[asked] + SPECIAL, answers, size),
        )


def _shuffled(key: jax.Array, size: jax.Array, largest: int, times: int) -> jax.Array:
    """0 .. largest - 1, each `times` times: those below `size` first, in random order."""
    numbers = jnp.tile(jnp.arange(largest, dtype=jnp.int32), times)
    order = jax.random.uniform(key, numbers.shape, jnp.float32)
    return numbers[jnp.argsort(jnp.where(numbers < size, order, 2.0))]
