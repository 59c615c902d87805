"""Loss in windows over one held-out text, and what more context gains on the same targets."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from flax_pos.lab.losses import Windows, context_gain, mean_loss, windows
from flax_pos.lab.tasks import Curve, Evaluation, Task
from flax_pos.lab.tasks.base import SEEDS

TARGETS = 1024
"""Tokens of the text whose loss is compared between contexts."""
PLAIN, SLIDING, GAIN = "loss in windows", "loss in sliding windows", "context gain"


def contexts(task: Task, text: np.ndarray) -> tuple[int, ...]:
    """Tokens of context: a quarter and half of the trained length, and the tested lengths."""
    shorter = [n for n in (task.train_length // 4, task.train_length // 2) if n > 1]
    return tuple(n for n in (*shorter, *task.tested_lengths) if n < len(text) - 1)


class Stretch(NamedTuple):
    """Windows over one held-out text, to be scored by one program."""

    evaluation: Evaluation
    """All windows, padded to the longest."""
    windows: dict[int, Windows]
    """The same by context, in this order."""


def stretches(task: Task, text: np.ndarray) -> tuple[Stretch, ...]:
    """Windows of every context over the same stretch of text, each half a window after the one
    before; those that are no longer than in training apart from the rest, since padding many short
    ones to the longest would be most of the work."""
    lengths = contexts(task, text)
    read = text[: max(lengths) + TARGETS + 1]
    made = {n: windows(read, n, max(n // 2, 1)) for n in lengths}
    inside = {n: w for n, w in made.items() if n <= task.train_length}
    beyond = {n: w for n, w in made.items() if n > task.train_length}
    return tuple(Stretch(_joined(part), part) for part in (inside, beyond) if part)


def _joined(made: dict[int, Windows]) -> Evaluation:
    longest = max(made)
    pad = lambda a: np.pad(a, ((0, 0), (0, longest - a.shape[1])))
    join = lambda field: np.concatenate([pad(getattr(w, field)) for w in made.values()])
    length = np.concatenate([w.length for w in made.values()])
    return Evaluation(join("ids"), join("labels"), join("scored"), length)


def context_curves(
    scored: Iterable[tuple[Stretch, np.ndarray, np.ndarray]],
) -> dict[str, dict[str, Any]]:
    """What the losses of `stretches` say, by seed.

    Args:
      scored: each stretch with its losses, `seeds windows T`, and with whether the scheme is
        defined there, bool `windows`.

    Returns:
      curves as a row's `part` holds them; None where the scheme is undefined.
    """
    made: dict[int, Windows] = {}
    losses: dict[int, np.ndarray | None] = {}
    seeds = 0
    for stretch, nll, defined in scored:
        seeds, first = len(nll), 0
        for n, w in stretch.windows.items():
            rows = slice(first, first + len(w.length))
            first = rows.stop
            made[n] = w
            losses[n] = nll[:, rows, :n] if defined[rows].all() else None
    plain = lambda own, n: mean_loss(own[::2], _real(made[n])[::2])  # every other: no overlap
    sliding = lambda own, n: mean_loss(own, made[n].scored)
    by_seed = lambda seed, of: [
        None if own is None else of(own[seed], n) for n, own in losses.items()
    ]
    found = {
        PLAIN: [by_seed(seed, plain) for seed in range(seeds)],
        SLIDING: [by_seed(seed, sliding) for seed in range(seeds)],
        GAIN: [_gains(seed, losses, made) for seed in range(seeds)],
    }
    x = [float(n) for n in made]
    return {key: {"x": x, "y": y} for key, y in found.items()}


def _real(w: Windows) -> np.ndarray:
    return np.arange(w.ids.shape[1]) < w.length[:, None]


def _gains(seed: int, losses: dict[int, np.ndarray | None], made) -> list[float | None]:
    first = max(made)  # targets that have this much text before them
    targets = {n: own[seed][made[n].scored][first:] for n, own in losses.items() if own is not None}
    gains = context_gain(targets) if targets else {}
    return [gains.get(n) for n in made]


def context_figures(task: Task) -> tuple[Curve, ...]:
    """How these curves are shown."""
    lengths = tuple(float(n) for n in task.tested_lengths)
    about = {
        PLAIN: (
            "Loss in windows that do not overlap",
            "loss (nats)",
            "What a reader with so many tokens gets. Longer windows have fewer tokens with little "
            "before them, so that this falls even where far context is not used.",
        ),
        SLIDING: (
            "Loss in sliding windows",
            "loss (nats)",
            "Each window half of its length after the one before, so that every target has at "
            "least half a window before it.",
        ),
        GAIN: (
            "Gain from more context, on the same targets",
            "gain (nats)",
            f"How much lower the loss of the same {TARGETS} targets is than with the shortest "
            "window. Flat past the trained length: what lies further back is not used. Falling: "
            "it does harm.",
        ),
    }
    return tuple(
        Curve(
            key=key,
            title=title,
            x="tokens in a window",
            y=y,
            caption=f"{caption} Shaded: lengths seen in training. {SEEDS}",
            trained_to=float(task.train_length),
            ticks=lengths,
        )
        for key, (title, y, caption) in about.items()
    )
