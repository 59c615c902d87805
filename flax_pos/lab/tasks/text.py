"""Language modelling on text."""

import dataclasses
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from flax_pos.lab.corpus import read_corpus
from flax_pos.lab.errors import UserError
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


@register_task("text")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Task):
    """Predict the next token of real text, trained on short windows, tested on longer ones.

    Held-out windows of every tested length end at the same places: the last tokens of all of
    them are the same targets, seen with more or less context.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.arg(aliases=("--data",))] = ()
    """Text files or folders of your own; none: the documentation inside CPython."""
    tokenizer: Annotated[Path | None, tyro.conf.arg(aliases=("--tokenizer",))] = None
    """A tokenizer file (JSON of the `tokenizers` library); none: bytes."""
    length: int = 64
    """Training length."""
    multiples: tuple[int, ...] = (1, 2, 4, 8)
    """Tested lengths, times the training length."""
    held_out: float = 0.1
    """Share of the text, at its end, that is never trained on."""
    windows: int = 64
    """Held-out windows per tested length."""
    tolerance: float = 0.1
    """A length is reached while the loss on the last tokens is at most this many nats above that
    at the training length."""

    def __post_init__(self):
        if self.length < 2:
            raise ValueError(f"length={self.length} must be at least 2")
        if (
            not self.multiples
            or self.multiples[0] != 1
            or list(self.multiples) != sorted(set(self.multiples))
        ):
            raise ValueError(f"multiples={list(self.multiples)} must rise and begin with 1")
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out={self.held_out} must lie between 0 and 1")
        if self.windows < 1:
            raise ValueError(f"windows={self.windows} must be at least 1")

    @property
    def train_length(self) -> int:
        return self.length

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tested lengths in tokens."""
        return tuple(m * self.length for m in self.multiples)

    @property
    def tail(self) -> int:
        """How many tokens count as the last ones."""
        return self.length // 2

    def load(self) -> Loaded:
        corpus = read_corpus(self.paths, self.tokenizer)
        cut = int(corpus.ids.size * (1 - self.held_out))
        longest = self.lengths[-1]
        parts = (("for training", cut, self.length), ("held out", corpus.ids.size - cut, longest))
        for part, size, window in parts:
            if size < window + 1:
                raise UserError(
                    f"the corpus is too short: of its {corpus.ids.size} tokens {size} are {part}, "
                    f"fewer than one window of {window} + 1; give more text, or lower "
                    "task.length or task.multiples"
                )
        return Loaded(
            vocab_size=corpus.vocab_size,
            data={"train": corpus.ids[:cut], "held_out": corpus.ids[cut:]},
            about=corpus.about,
            tokenizer=corpus.tokenizer,
        )

    def batch(self, data, key, batch_size) -> Batch:
        train = data["train"]
        starts = jax.random.randint(key, (batch_size,), 0, train.shape[0] - self.length)
        offsets = jnp.arange(self.length + 1, dtype=starts.dtype)
        windows = train[starts[:, None] + offsets[None, :]].astype(jnp.int32)
        ids, labels = windows[:, :-1], windows[:, 1:]
        return Batch(ids, labels, jnp.ones(labels.shape, jnp.float32))

    def evaluation(self, loaded) -> Evaluation:
        text = loaded.data["held_out"].astype(np.int32)
        longest = self.lengths[-1]
        ends = self.ends_of_windows(loaded)
        ids = np.zeros((len(self.lengths), self.windows, longest), np.int32)
        labels = np.zeros_like(ids)
        scored = np.zeros(ids.shape, bool)
        for i, length in enumerate(self.lengths):
            at = ends[:, None] - length + np.arange(length)
            ids[i, :, :length] = text[at]
            labels[i, :, :length] = text[at + 1]
            scored[i, :, :length] = True
        flat = lambda a: a.reshape(-1, longest)
        length = np.repeat(np.asarray(self.lengths, np.int32), self.windows)
        return Evaluation(flat(ids), flat(labels), flat(scored), length)

    def long_text(self, loaded):
        return loaded.data["held_out"]

    @property
    def tested_lengths(self):
        return self.lengths

    def ends_of_windows(self, loaded: Loaded) -> np.ndarray:
        """Where the last label of each test window stands in the held-out text."""
        size = loaded.data["held_out"].size
        return np.linspace(self.lengths[-1], size - 1, self.windows).astype(int)

    def measure(self, evaluation, nll, correct, defined) -> Measures:
        scalars: dict[str, float | None] = {}
        by_position: list[float | None] = []
        width = max(self.length // 4, 1)
        edges = range(0, self.lengths[-1], width)
        for length in self.lengths:
            rows = (evaluation.length == length) & defined
            if not rows.any():
                scalars[f"loss@{length}"] = scalars[f"last@{length}"] = None
                continue
            losses = nll[rows, :length].astype(np.float64)
            scalars[f"loss@{length}"] = float(losses.mean())
            scalars[f"last@{length}"] = float(losses[:, -self.tail :].mean())
            by_position = [float(losses[:, e : e + width].mean()) for e in edges if e < length]
        by_position += [None] * (len(edges) - len(by_position))
        centres = [e + width / 2 for e in edges]

        reached = 0
        limit = scalars[f"last@{self.length}"]
        for length in self.lengths:
            last = scalars[f"last@{length}"]
            if limit is None or last is None or not last <= limit + self.tolerance:
                break
            reached = length
        reach = Reach(reached, open=reached == self.lengths[-1])
        return Measures(scalars, {"loss by position": (centres, by_position)}, reach)

    @property
    def columns(self) -> tuple[Column, ...]:
        named = list(zip(self.multiples, self.lengths, strict=True))
        windows = f"{self.windows} held-out windows"
        every = [
            Column(
                key=f"loss@{length}",
                group="loss, all tokens",
                title=f"{m}×",
                help=f"Mean loss in nats over all tokens of {windows} of {length} tokens",
            )
            for m, length in named
        ]
        last = [
            Column(
                key=f"last@{length}",
                group=f"loss, last {self.tail} tokens",
                title=f"{m}×",
                help=f"The same over the last {self.tail} tokens only: the same targets at every "
                f"length, here with up to {length} tokens of context",
            )
            for m, length in named
        ]
        return (*every, *last)

    @property
    def curves(self) -> tuple[Curve, ...]:
        longest = self.lengths[-1]
        return (
            Curve(
                key="loss by position",
                title="Loss by position in a long document",
                x="position (tokens)",
                y="loss (nats)",
                caption=f"Held-out windows of {longest} tokens, read in one pass without sliding. "
                f"Shaded: positions seen in training. {SEEDS}",
                trained_to=float(self.length),
                ticks=tuple(float(n) for n in self.lengths),
            ),
        )
