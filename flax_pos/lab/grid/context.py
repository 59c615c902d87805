"""Loss in windows over one held-out text, and what more context gains on the same targets."""

from typing import Any

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


def window_evaluation(task: Task, text: np.ndarray) -> tuple[Evaluation, dict[int, Windows]]:
    """Windows of every context over the same stretch of text, each half a window after the one
    before, as one evaluation; and the windows by context."""
    longest = max(contexts(task, text))
    stretch = text[: longest + TARGETS + 1]
    made = {n: windows(stretch, n, max(n // 2, 1)) for n in contexts(task, text)}
    pad = lambda a: np.pad(a, ((0, 0), (0, longest - a.shape[1])))
    join = lambda field: np.concatenate([pad(getattr(w, field)) for w in made.values()])
    length = np.concatenate([w.length for w in made.values()])
    return Evaluation(join("ids"), join("labels"), join("scored"), length), made


def context_curves(
    nll: np.ndarray, defined: np.ndarray, made: dict[int, Windows]
) -> dict[str, dict[str, Any]]:
    """What the losses of `window_evaluation` say, by seed.

    Args:
      nll: `seeds windows T`.
      defined: bool `windows`.
      made: the windows by context.

    Returns:
      curves as a row's `part` holds them; None where the scheme is undefined.
    """
    longest, first = max(made), 0
    curves: dict[str, list[list[float | None]]] = {PLAIN: [], SLIDING: [], GAIN: []}
    for losses in nll:
        plain, sliding, targets, first = [], [], {}, 0
        for n, w in made.items():
            rows = slice(first, first + len(w.length))
            first += len(w.length)
            if not defined[rows].all():
                plain.append(None)
                sliding.append(None)
                continue
            own = losses[rows, :n]
            real = np.arange(n) < w.length[:, None]
            # Every other window overlaps none of the others.
            plain.append(mean_loss(own[::2], real[::2]))
            sliding.append(mean_loss(own, w.scored))
            targets[n] = own[w.scored][longest:]
        gains = context_gain(targets)
        curves[PLAIN].append(plain)
        curves[SLIDING].append(sliding)
        curves[GAIN].append([gains.get(n) for n in made])
    x = [float(n) for n in made]
    return {key: {"x": x, "y": y} for key, y in curves.items()}


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
