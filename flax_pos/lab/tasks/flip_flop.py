"""Flip-flop: remember one bit for as long as it takes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import BOS, SPECIAL, Example, alternate, token
from flax_pos.lab.tasks.sequence import WindowTask, accuracy_column, plain

WRITE, READ, IGNORE = range(SPECIAL, SPECIAL + 3)
BIT = IGNORE + 1


@register_task("flip_flop")
@dataclasses.dataclass(frozen=True, kw_only=True)
class FlipFlop(WindowTask):
    """`<bos> w 1 i 0 i 1 r 1 ...`: after each read comes the bit last written; ignored bits are
    noise (Liu et al. 2023, arXiv 2306.00946). It starts with a write and ends with a read.

    Tested with as many ignored instructions as in training, and with more and fewer of them:
    `sparse` sequences need one bit from far away, `dense` ones overwrite it all the time.
    """

    multiples: tuple[int, ...] = (1, 2, 4)
    ignored: float = 0.8
    """Share of instructions that are ignored in training; the rest are half writes, half reads."""
    sparse: float = 0.98
    dense: float = 0.1

    metric = "token"
    shortest = 4

    def __post_init__(self):
        super().__post_init__()
        if self.length % 2:
            raise ValueError(f"length={self.length} must be even: instructions and bits alternate")
        for name in ("ignored", "sparse", "dense"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is a share and must lie in 0 .. 1")

    @property
    def symbols_needed(self):
        return BIT + 2

    @property
    def chance(self):
        return 0.5

    @property
    def variants(self):
        return (self.ignored, self.sparse, self.dense)

    def example(self, key, size, largest, variant):
        kind_key, bit_key = jax.random.split(key)
        at = jnp.arange(largest // 2, dtype=jnp.int32)
        draws = jax.random.uniform(kind_key, at.shape, jnp.float32)
        kinds = jnp.where(
            draws < variant, IGNORE, jnp.where(draws < (1 + variant) / 2, WRITE, READ)
        )
        kinds = jnp.where(at == 0, WRITE, jnp.where(at == size // 2 - 1, READ, kinds))
        bits = jax.random.randint(bit_key, at.shape, BIT, BIT + 2, jnp.int32)
        # The last write at or before each instruction.
        written = jax.lax.cummax(jnp.where(kinds == WRITE, at, 0))
        bits = jnp.where(kinds == READ, bits[written], bits)
        tokens = jnp.concatenate([token(BOS).tokens, alternate(kinds, bits)]).astype(jnp.int32)
        inside = jnp.arange(largest, dtype=jnp.int32) < size
        ids, labels = (jnp.where(inside, t, 0) for t in (tokens[:-1], tokens[1:]))
        return Example(ids, labels, inside & (ids == READ))

    def inside(self, evaluation):
        usual = np.arange(len(evaluation.length)) // self.samples % len(self.variants) == 0
        return super().inside(evaluation) & usual

    def measure(self, evaluation, nll, correct, defined):
        measures = super().measure(evaluation, nll, correct, defined)
        _, token = self.grid(evaluation, correct, defined)
        # Reach and the main curve go by sequences like those of training.
        curves = {"token by size": self._curve(token[:, 0])}
        return measures._replace(curves=curves, reach=self._reach(token[:, 0]))

    def scalars(self, exact, token):
        same, sparse, dense = token.T
        scalars = {f"token@{n}": plain(v) for n, v in zip(self.tested, same, strict=True)}
        return scalars | {"sparse": plain(sparse[-1]), "dense": plain(dense[-1])}

    @property
    def columns(self):
        longest = self.tested[-1]
        text = "Share of right bits after reads in sequences of {} tokens with {:.0%} ignored"
        same = [
            accuracy_column(f"token@{n}", "right reads", f"{m}×", text.format(n, self.ignored))
            for m, n in zip(self.multiples, self.tested, strict=True)
        ]
        tails = [
            accuracy_column(name, f"right reads {self.multiples[-1]}×", name, help_)
            for name, help_ in (
                ("sparse", text.format(longest, self.sparse)),
                ("dense", text.format(longest, self.dense)),
            )
        ]
        return (*same, *tails)

    @property
    def curves(self):
        return tuple(c for c in super().curves if c.key == "token by size")
