"""What tasks of state tracking share: a finite automaton reads symbols and is asked its state."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.lab.tasks.parts import BOS, EOS, PAD, SEP, SPECIAL, Example, Part, draw, join, token
from flax_pos.lab.tasks.sequence import UpToTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutomatonTask(UpToTask):
    """n random symbols; the state after them is asked.

    `last`: `<bos> x <sep> s_n`, one label a sequence. `scratchpad`: `<bos> x <sep> s_1 .. s_n
    <eos>`, the states written out, so that each step looks up one symbol by its place. `every`:
    `<bos> x`, and at each symbol the state after it is asked but never shown.
    """

    unit = "symbols"

    ask: Literal["last", "scratchpad", "every"] = "every"
    """Where the state is asked."""

    @property
    def table(self) -> np.ndarray:
        """int32 `states symbols`: the state after a symbol; state 0 comes first."""
        raise NotImplementedError

    @property
    def metric(self):  # type: ignore[override]
        return "token" if self.ask == "every" else "exact"

    @property
    def chance(self):
        return 0.0 if self.ask == "scratchpad" else 1 / self.table.shape[0]

    @property
    def symbols_needed(self):
        return SPECIAL + sum(self.table.shape)

    def tokens(self, size):
        return {"last": size + 2, "scratchpad": 2 * size + 2, "every": size + 1}[self.ask]

    def example(self, key, size, largest, variant):
        table = jnp.asarray(self.table, jnp.int32)
        states, symbols = table.shape
        moves = draw(key, largest, symbols, first=0)

        def step(state, move):
            state = table[state, move]
            return state, state

        after = jax.lax.scan(step, jnp.int32(0), moves)[1] + SPECIAL
        moves = moves + SPECIAL + states
        width = self.tokens(largest)
        given = (token(BOS), Part(moves, size), token(SEP))
        if self.ask == "last":
            return join(width, *given, token(after[size - 1], answer=True))
        if self.ask == "scratchpad":
            return join(width, *given, Part(after, size, answer=True), token(EOS, answer=True))
        ids = join(width, *given).ids  # without the last, which is <sep>
        at = jnp.arange(width, dtype=jnp.int32)
        scored = (at >= 1) & (at <= size)
        labels = jnp.concatenate([jnp.full(1, PAD, jnp.int32), after])
        return Example(ids, jnp.where(scored, labels, PAD), scored)
