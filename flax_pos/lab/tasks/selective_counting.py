"""Counting some tokens and not others."""

import dataclasses

import jax
import jax.numpy as jnp

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import BOS, SPECIAL, Part, draw_different, join, questions, token
from flax_pos.lab.tasks.sequence import WindowTask, check_at_least

PASS = SPECIAL
NUMBER = PASS + 1


@register_task("selective_counting")
@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveCounting(WindowTask):
    """Operations on variables (set to zero, add one, or nothing) and then the value of each, in
    random order: `<bos> zero_x add_x pass ... x 3 y 1` (the counting task of Golovneva et
    al. 2024, arXiv 2405.18719, with sizes of our own).

    `add` past `max_value` is written as `pass`, so that the answers of training suffice.
    """

    unit = "operations"

    variables: int = 1
    max_value: int = 9
    idle: float = 0.5
    """Share of operations that do nothing."""
    reset: float = 0.05
    """Share that set a variable to zero; the rest add one."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, variables=1, max_value=1)
        shares = (self.idle, self.reset, 1 - self.idle - self.reset)
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError(
                f"idle={self.idle} and reset={self.reset} are shares; together at most 1"
            )

    @property
    def _zero(self) -> int:
        return NUMBER + self.max_value + 1

    @property
    def _add(self) -> int:
        return self._zero + self.variables

    @property
    def _name(self) -> int:
        return self._add + self.variables

    @property
    def symbols_needed(self):
        return self._name + self.variables

    def tokens(self, size):
        return size + 2 * self.variables

    def example(self, key, size, largest, variant):
        kind_key, which_key, order_key = jax.random.split(key, 3)
        kinds = jax.random.uniform(kind_key, (largest,), jnp.float32)
        which = jax.random.randint(which_key, (largest,), 0, self.variables, jnp.int32)
        real = jnp.arange(largest, dtype=jnp.int32) < size

        def step(values, operation):
            kind, variable, real = operation
            adds = (kind >= self.idle + self.reset) & (values[variable] < self.max_value) & real
            resets = (kind >= self.idle) & (kind < self.idle + self.reset) & real
            new = jnp.where(resets, 0, values[variable] + adds.astype(jnp.int32))
            written = jnp.where(adds, self._add, self._zero) + variable
            return values.at[variable].set(new), jnp.where(adds | resets, written, PASS)

        start = jnp.zeros(self.variables, jnp.int32)
        values, operations = jax.lax.scan(step, start, (kinds, which, real))
        order = draw_different(order_key, self.variables, self.variables, first=0)
        return join(
            self.tokens(largest),
            token(BOS),
            Part(operations, size),
            questions(order + self._name, values[order] + NUMBER, self.variables),
        )
