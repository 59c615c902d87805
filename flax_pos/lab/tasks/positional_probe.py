"""Whether a model knows where it is, and what stood some places ago."""

import dataclasses
from typing import Literal

import jax.numpy as jnp

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import BOS, PAD, SPECIAL, Example, Part, draw, join, token
from flax_pos.lab.tasks.sequence import WindowTask, check_at_least


@register_task("positional_probe")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionalProbe(WindowTask):
    """Asked at every one of the random tokens after `<bos>`: which token stood `back` places
    before it (a distance to be known exactly), or how many came before it, modulo `modulus` (an
    index to be known)."""

    unit = "tokens"

    probe: Literal["back", "index"] = "back"
    back: int = 5
    """Distance in tokens."""
    modulus: int = 8
    symbols: int = 16
    """Different tokens of the sequence."""

    metric = "token"

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, back=1, modulus=2, symbols=2, length=self.back + 2)

    @property
    def chance(self):
        return 1 / (self.symbols if self.probe == "back" else self.modulus)

    @property
    def symbols_needed(self):
        return SPECIAL + self.symbols + (self.modulus if self.probe == "index" else 0)

    def example(self, key, size, largest, variant):
        content = draw(key, largest, self.symbols)
        ids = join(self.tokens(largest), token(BOS), Part(content, size)).ids
        at = jnp.arange(largest, dtype=jnp.int32)
        first = 1 + (self.back if self.probe == "back" else 0)
        scored = (at >= first) & (at < size)
        if self.probe == "back":
            labels = jnp.roll(ids, self.back)
        else:
            labels = SPECIAL + self.symbols + (at - 1) % self.modulus
        return Example(ids, jnp.where(scored, labels, PAD), scored)
