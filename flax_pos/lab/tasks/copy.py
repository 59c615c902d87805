"""Counting copy: one token repeated n times, to be repeated n times again."""

import dataclasses

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
    register_task,
)

PAD, BOS, SEP, EOS = range(4)
SPECIAL = 4


@register_task("copy")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Copy(Task):
    """`<bos> a a a <sep> a a a <eos>`: nothing but counting, so that it shows how a scheme counts
    past the lengths it saw (Kazemnejad et al. 2023, arXiv 2305.19466, their task `rsc`).

    An answer is right if every token after `<sep>` is the most likely one, `<eos>` included; for
    a task with one right answer this is the same as decoding greedily.
    """

    unit = "repeats"

    symbols: int = 12
    """Different tokens to be repeated; the vocabulary has four more."""
    max_count: int = 20
    """Largest n in training; n is uniform over 1 .. max_count."""
    test_count: int = 40
    """Largest n tested."""

    def __post_init__(self):
        if self.symbols < 1:
            raise ValueError(f"symbols={self.symbols} must be at least 1")
        if not 1 <= self.max_count < self.test_count:
            raise ValueError(
                f"max_count={self.max_count} must be at least 1 and below "
                f"test_count={self.test_count}"
            )

    @property
    def train_length(self) -> int:
        return 2 * self.max_count + 2

    @property
    def reach_at_training(self) -> int:
        return self.max_count

    def load(self) -> Loaded:
        return Loaded(
            vocab_size=SPECIAL + self.symbols,
            data={},
            about={
                "source": "made on the device",
                "sequences": f"one of {self.symbols} tokens, n of it, n uniform over 1 .. "
                f"{self.max_count}; tested on every token and n = 1 .. {self.test_count}",
            },
        )

    def batch(self, data, key, batch_size) -> Batch:
        token_key, count_key = jax.random.split(key)
        token = jax.random.randint(token_key, (batch_size,), SPECIAL, SPECIAL + self.symbols)
        count = jax.random.randint(count_key, (batch_size,), 1, self.max_count + 1)
        sequence = _sequence(jnp, token[:, None], count[:, None], self.train_length + 1)
        return Batch(
            sequence[:, :-1],
            sequence[:, 1:],
            _scored(jnp, count[:, None], self.train_length).astype(jnp.float32),
        )

    def evaluation(self, loaded) -> Evaluation:
        count, token = np.meshgrid(
            np.arange(1, self.test_count + 1, dtype=np.int32),
            np.arange(SPECIAL, SPECIAL + self.symbols, dtype=np.int32),
            indexing="ij",
        )
        count, token = count.reshape(-1, 1), token.reshape(-1, 1)
        longest = 2 * self.test_count + 2
        sequence = _sequence(np, token, count, longest + 1)
        scored = _scored(np, count, longest)
        return Evaluation(sequence[:, :-1], sequence[:, 1:], scored, 2 * count[:, 0] + 2)

    def measure(self, evaluation, nll, correct, defined) -> Measures:
        scored = evaluation.scored
        exact = np.asarray((correct | ~scored).all(axis=1))
        count = (evaluation.length - 2) // 2
        counts = list(range(1, self.test_count + 1))
        accuracy: list[float | None] = []
        for n in counts:
            rows = (count == n) & defined
            accuracy.append(float(exact[rows].mean()) if rows.any() else None)

        inside = np.asarray(count <= self.max_count)
        past = ~inside

        def mean(values, rows):
            return float(values[rows].mean()) if defined[rows].all() else None

        token_accuracy = (correct & scored).sum(axis=1) / scored.sum(axis=1)
        scalars = {
            "exact inside": mean(exact, inside),
            "exact past": mean(exact, past),
            "token past": mean(token_accuracy, past),
        }
        reached = 0
        for n, value in zip(counts, accuracy, strict=True):
            if value is None or value < 0.5:
                break
            reached = n
        fitted = reached >= self.max_count
        reach = Reach(reached if fitted else 0, open=reached == self.test_count)
        curve = ([float(n) for n in counts], accuracy)
        return Measures(scalars, {"accuracy by length": curve}, reach)

    @property
    def headline(self):
        return "exact past"

    @property
    def columns(self) -> tuple[Column, ...]:
        inside, past = f"1–{self.max_count}", f"{self.max_count + 1}–{self.test_count}"
        return (
            Column(
                key="exact inside",
                group="exact match",
                title=f"n = {inside}",
                help=f"Share of answers that are right in every token, n = {inside} as in training",
                better="high",
            ),
            Column(
                key="exact past",
                group="exact match",
                title=f"n = {past}",
                help=f"The same for n = {past}, never seen in training",
                better="high",
            ),
            Column(
                key="token past",
                group="right tokens",
                title=f"n = {past}",
                help=f"Share of right tokens in the answers, n = {past}",
                better="high",
            ),
        )

    @property
    def curves(self) -> tuple[Curve, ...]:
        return (
            Curve(
                key="accuracy by length",
                title="Accuracy by number of repeats",
                x="n (repeats)",
                y="exact match",
                caption=f"Share of the {self.symbols} possible answers that are right in every "
                f"token. Shaded: counts seen in training. {SEEDS}",
                trained_to=float(self.max_count),
                ticks=tuple(float(n) for n in range(0, self.test_count + 1, 5)),
                y_range=(-0.03, 1.03),
            ),
        )


def _sequence(xp, token, count, length):
    """`B length`: bos, count times token, sep, the same again, eos, padding."""
    at = xp.arange(length, dtype=xp.int32)[None, :]
    sequence = xp.where(at <= 2 * count + 1, token, PAD)
    sequence = xp.where(at == 0, BOS, sequence)
    sequence = xp.where(at == count + 1, SEP, sequence)
    sequence = xp.where(at == 2 * count + 2, EOS, sequence)
    return sequence.astype(xp.int32)


def _scored(xp, count, length):
    """Inputs whose label is part of the answer: from sep to the last repeat."""
    at = xp.arange(length, dtype=xp.int32)[None, :]
    return (at >= count + 1) & (at <= 2 * count + 1)
