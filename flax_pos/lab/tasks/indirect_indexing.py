"""Indirect indexing: find a token, then go some places from it."""

import dataclasses

import jax
import jax.numpy as jnp

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import BOS, SEP, SPECIAL, Part, draw_different, join, token
from flax_pos.lab.tasks.sequence import UpToTask, check_at_least


@register_task("indirect_indexing")
@dataclasses.dataclass(frozen=True, kw_only=True)
class IndirectIndexing(UpToTask):
    """`<bos> x <sep> s d` and then the token d places after s in x (before it, where d is
    negative): content says where, position says how far (the diagnostic of PoPE, Gopalakrishnan et
    al. 2025, arXiv 2509.10534). No token occurs twice in x."""

    min_size = 2

    symbols: int = 64
    """Different tokens of x."""
    max_shift: int = 10
    """d lies in -max_shift .. max_shift and is never 0."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, symbols=self.test_size, max_shift=1)

    @property
    def chance(self):
        return 1 / (2 * self.max_shift)

    @property
    def symbols_needed(self):
        return SPECIAL + self.symbols + 2 * self.max_shift + 1

    def tokens(self, size):
        return size + 4

    def example(self, key, size, largest, variant):
        content_key, source_key, target_key = jax.random.split(key, 3)
        content = draw_different(content_key, largest, self.symbols)
        source = jax.random.randint(source_key, (), 0, size, jnp.int32)
        low = jnp.maximum(source - self.max_shift, 0)
        high = jnp.minimum(source + self.max_shift, size - 1)
        target = jax.random.randint(target_key, (), low, high, jnp.int32)
        target += (target >= source).astype(jnp.int32)
        shift = SPECIAL + self.symbols + self.max_shift + target - source
        return join(
            self.tokens(largest),
            token(BOS),
            Part(content, size),
            token(SEP),
            token(content[source]),
            token(shift),
            token(content[target], answer=True),
        )
