"""What tasks with right answers share: made on the device, scored by length, one short file each.

A concrete task derives from `UpToTask` (trained on sizes 1 .. n, tested past n) or `WindowTask`
(trained at one length, tested at multiples of it) and says what one example is.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.lab.tasks.base import (
    SEEDS,
    Batch,
    Column,
    Curve,
    Evaluation,
    Loaded,
    Measures,
    Reach,
    Task,
)
from flax_pos.lab.tasks.parts import Example

TEST_SEED = np.uint32(2**32 - 1)
"""Test sequences come from this seed, which no training run uses as its data seed."""


def check_at_least(task: Task, **bounds: int) -> None:
    """Raises ValueError for the first field below its bound."""
    for name, least in bounds.items():
        value = getattr(task, name)
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceTask(Task):
    """Sequences of some size, made on the device, with labels that are right or wrong.

    Every tested size is tested under each of `variants` (such as the depth of a needle) with the
    same number of sequences.
    """

    samples: int = 32
    """Test sequences for each tested size and variant."""

    metric: ClassVar[Literal["exact", "token"]] = "exact"
    """By which reach and the main curve go: whole sequences that are right, or labels."""

    # What a concrete task says -----------------------------------------------------------------

    @property
    def symbols_needed(self) -> int:
        """Size of the vocabulary."""
        raise NotImplementedError

    def tokens(self, size: int) -> int:
        """Exact number of ids in a sequence of this size."""
        raise NotImplementedError

    def example(self, key: jax.Array, size: jax.Array, largest: int, variant: jax.Array) -> Example:
        """A sequence of a (traced) size up to `largest`, padded to `tokens(largest)` ids."""
        raise NotImplementedError

    @property
    def chance(self) -> float:
        """What guessing scores by `metric`: reach ends halfway between it and 1."""
        return 0.0

    @property
    def variants(self) -> tuple[float, ...]:
        return (0.0,)

    def train_variant(self, key: jax.Array) -> jax.Array:
        """The variant of a training sequence."""
        return jnp.float32(self.variants[0])

    # What the two families say -----------------------------------------------------------------

    @property
    def trained(self) -> tuple[int, int]:
        """Smallest and largest size in training."""
        raise NotImplementedError

    @property
    def tested(self) -> tuple[int, ...]:
        """Tested sizes, rising."""
        raise NotImplementedError

    # Data --------------------------------------------------------------------------------------

    @property
    def train_length(self) -> int:
        return self.tokens(self.trained[1])

    @property
    def reach_at_training(self) -> int:
        return self.trained[1]

    def load(self) -> Loaded:
        low, high = self.trained
        sizes = f"{high}" if low == high else f"{low} .. {high}"
        return Loaded(
            vocab_size=self.symbols_needed,
            data={},
            about={
                "source": "made on the device",
                "sequences": f"trained on {sizes} {self.unit}, tested up to {self.tested[-1]}, "
                f"{self.samples * len(self.variants)} sequences for each of "
                f"{len(self.tested)} sizes",
            },
        )

    def batch(self, data, key, batch_size) -> Batch:
        low, high = self.trained
        size_key, variant_key, key = jax.random.split(key, 3)
        sizes = jax.random.randint(size_key, (batch_size,), low, high + 1, jnp.int32)
        variants = jax.vmap(self.train_variant)(jax.random.split(variant_key, batch_size))
        made = self._examples(jax.random.split(key, batch_size), sizes, high, variants)
        return Batch(made.ids, made.labels, made.scored.astype(jnp.float32))

    def _examples(self, keys, sizes, largest: int, variants) -> Example:
        one = lambda key, size, variant: self.example(key, size, largest, variant)
        return jax.vmap(one)(keys, sizes, variants)

    def evaluation(self, loaded) -> Evaluation:
        grid = np.meshgrid(
            np.asarray(self.tested, np.int32),
            np.asarray(self.variants, np.float32),
            np.arange(self.samples),
            indexing="ij",
        )
        sizes, variants, _ = (axis.reshape(-1) for axis in grid)
        keys = jax.random.split(jax.random.key(TEST_SEED), len(sizes))
        largest = self.tested[-1]
        make = lambda keys, sizes, variants: self._examples(keys, sizes, largest, variants)
        made = jax.jit(make)(keys, sizes, variants)
        length = np.asarray([self.tokens(int(n)) for n in sizes], np.int32)
        ids, labels, scored = map(np.asarray, made)
        return Evaluation(ids, labels, scored, length)

    # Scores ------------------------------------------------------------------------------------

    def grid(self, evaluation: Evaluation, correct: np.ndarray, defined: np.ndarray):
        """Share that is right for every tested size and variant; NaN where undefined.

        Returns:
          two float64 arrays `sizes variants`: whole sequences, and labels.
        """
        scored = evaluation.scored
        shape = (len(self.tested), len(self.variants), self.samples)
        exact = (correct | ~scored).all(axis=1).reshape(shape).mean(axis=2)
        right, all_ = ((mask & scored).sum(axis=1).reshape(shape) for mask in (correct, scored))
        token = right.sum(axis=2) / all_.sum(axis=2)
        known = defined.reshape(shape).all(axis=2)
        return np.where(known, exact, np.nan), np.where(known, token, np.nan)

    def measure(self, evaluation, nll, correct, defined) -> Measures:
        exact, token = self.grid(evaluation, correct, defined)
        scalars = self.scalars(exact, token)
        curves = {}
        for name, values in (("exact", exact), ("token", token)):
            curves[f"{name} by size"] = self._curve(values.mean(axis=1))
        main = (exact if self.metric == "exact" else token).mean(axis=1)
        return Measures(scalars, curves, self._reach(main))

    def _curve(self, values: np.ndarray) -> tuple[list[float], list[float | None]]:
        return [float(n) for n in self.tested], [plain(v) for v in values]

    def _reach(self, main: np.ndarray) -> Reach:
        enough = (1 + self.chance) / 2
        reached = 0
        for size, value in zip(self.tested, main, strict=True):
            if not value >= enough:
                break
            reached = size
        fitted = reached >= self.trained[1]
        return Reach(reached if fitted else 0, open=reached == self.tested[-1])

    def scalars(self, exact: np.ndarray, token: np.ndarray) -> dict[str, float | None]:
        """Scores of the columns, out of `grid`."""
        raise NotImplementedError

    @property
    def curves(self) -> tuple[Curve, ...]:
        low, high = float(self.tested[0]), float(self.tested[-1])
        ticks = tuple(sorted({low, float(self.trained[1]), (low + high) // 2, high}))
        wholes = {"exact": "answers that are right in every token", "token": "right tokens"}
        return tuple(
            Curve(
                key=f"{name} by size",
                title=f"{title} by {self.unit}",
                x=self.unit,
                y=title.lower(),
                caption=f"Share of {wholes[name]}, over {self.samples * len(self.variants)} new "
                f"sequences per size. Shaded: sizes seen in training. {SEEDS}",
                trained_to=float(self.trained[1]),
                ticks=ticks,
                y_range=(-0.03, 1.03),
            )
            for name, title in (("exact", "Exact match"), ("token", "Token accuracy"))
        )


def plain(value: float) -> float | None:
    """A float, or None for NaN."""
    return None if np.isnan(value) else float(value)


GROUPS = {"exact": "exact match", "token": "right tokens"}


def accuracy_column(key: str, group: str, title: str, text: str) -> Column:
    """A share of right answers: higher is better."""
    return Column(key=key, group=group, title=title, help=text, better="high")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpToTask(SequenceTask):
    """Trained on sizes drawn uniformly up to `max_size`, tested on those and on larger ones."""

    max_size: int = 20
    """Largest size in training."""
    test_size: int = 40
    """Largest size tested."""
    test_stride: int = 1
    """Sizes between one tested size and the next; `max_size`, the one after it and `test_size`
    are always tested."""

    min_size: ClassVar[int] = 1

    def __post_init__(self):
        check_at_least(self, max_size=self.min_size, samples=1, test_stride=1)
        if self.max_size >= self.test_size:
            raise ValueError(f"max_size={self.max_size} must be below test_size={self.test_size}")

    @property
    def trained(self) -> tuple[int, int]:
        return self.min_size, self.max_size

    @property
    def tested(self) -> tuple[int, ...]:
        regular = range(self.min_size, self.test_size + 1, self.test_stride)
        return tuple(sorted({*regular, self.max_size, self.max_size + 1, self.test_size}))

    @property
    def headline(self):
        return f"{self.metric} past"

    def scalars(self, exact, token):
        inside = np.asarray(self.tested) <= self.max_size
        return {
            "exact inside": plain(exact[inside].mean()),
            "exact past": plain(exact[~inside].mean()),
            "token inside": plain(token[inside].mean()),
            "token past": plain(token[~inside].mean()),
        }

    @property
    def columns(self) -> tuple[Column, ...]:
        inside = f"{self.min_size}–{self.max_size}"
        past = f"{self.max_size + 1}–{self.test_size}"
        kinds = (
            ("exact", "Share of answers that are right in every token"),
            ("token", "Share of right tokens in the answers"),
        )
        wheres = (
            ("inside", inside, f"{inside} {self.unit} as in training"),
            ("past", past, f"{past} {self.unit}, never seen in training"),
        )
        return tuple(
            accuracy_column(f"{kind} {where}", GROUPS[kind], title, f"{text}, {which}")
            for kind, text in kinds
            for where, title, which in wheres
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowTask(SequenceTask):
    """Trained at one length, tested at multiples of it."""

    length: int = 64
    """Training length."""
    multiples: tuple[int, ...] = (1, 2, 4)
    """Tested lengths, times the training length."""

    shortest: ClassVar[int] = 2

    def __post_init__(self):
        check_at_least(self, length=self.shortest, samples=1)
        rising = list(self.multiples) == sorted(set(self.multiples))
        if not self.multiples or self.multiples[0] != 1 or not rising:
            raise ValueError(f"multiples={list(self.multiples)} must rise and begin with 1")

    @property
    def trained(self) -> tuple[int, int]:
        return self.length, self.length

    @property
    def tested(self) -> tuple[int, ...]:
        return tuple(m * self.length for m in self.multiples)

    def tokens(self, size):
        return size

    @property
    def headline(self):
        return f"{self.metric}@{self.tested[-1]}"

    def scalars(self, exact, token):
        main = (exact if self.metric == "exact" else token).mean(axis=1)
        return {f"{self.metric}@{n}": plain(v) for n, v in zip(self.tested, main, strict=True)}

    @property
    def columns(self) -> tuple[Column, ...]:
        whole = {"exact": "answers that are right in every token", "token": "right tokens"}
        return tuple(
            accuracy_column(
                f"{self.metric}@{n}",
                GROUPS[self.metric],
                f"{m}×",
                f"Share of {whole[self.metric]} in sequences of {n} {self.unit}",
            )
            for m, n in zip(self.multiples, self.tested, strict=True)
        )
