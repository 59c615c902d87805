"""Ways to measure the loss of long text, each of which answers another question.

- Non-overlapping windows (`windows(ids, n)`): what a reader with windows of n tokens gets. Tokens
  early in a window have little context, which longer windows dilute: a mean that falls with n
  says nothing of far context (the early-token curse, Press et al. 2021, arXiv 2108.12409, B).
- Sliding windows (`windows(ids, n, stride)`): every target with at least n - stride tokens of
  context.
- Loss by position in one long pass (`by_position`).
- Context gain (`context_gain`): the same targets with more and with less context.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Windows(NamedTuple):
    """Windows over a text, right-padded; every target of the text is scored once."""

    ids: np.ndarray
    """int32 `N T`."""
    labels: np.ndarray
    """int32 `N T`: the token after each."""
    scored: np.ndarray
    """bool `N T`: the targets that count in this window."""
    length: np.ndarray
    """int32 `N`: tokens before the padding."""


def windows(ids: np.ndarray, length: int, stride: int | None = None) -> Windows:
    """Windows of `length` tokens, each starting `stride` tokens after the one before.

    Each window scores what no window before it has scored. The last one may be shorter.

    Args:
      ids: one text, int `n`.
      length: tokens that the model sees at once.
      stride: None: `length`, windows that do not overlap.

    Raises:
      ValueError: sizes that do not fit.
    """
    ids = np.asarray(ids)
    stride = length if stride is None else stride
    if ids.ndim != 1 or len(ids) < 2:
        raise ValueError(f"ids must be one text of at least 2 tokens, got shape {ids.shape}")
    if not 1 <= stride <= length:
        raise ValueError(f"stride={stride} must lie in 1 .. length={length}")
    targets = len(ids) - 1
    starts = [0]
    while starts[-1] + length < targets:
        starts.append(starts[-1] + stride)
    shape = (len(starts), length)
    out = Windows(
        np.zeros(shape, np.int32),
        np.zeros(shape, np.int32),
        np.zeros(shape, bool),
        np.zeros(len(starts), np.int32),
    )
    done = 0
    for row, start in enumerate(starts):
        end = min(start + length, targets)
        out.ids[row, : end - start] = ids[start:end]
        out.labels[row, : end - start] = ids[start + 1 : end + 1]
        out.scored[row, done - start : end - start] = True
        out.length[row] = end - start
        done = end
    return out


def mean_loss(nll: np.ndarray, scored: np.ndarray) -> float:
    """Mean over the scored targets, of which there must be at least one."""
    if not scored.any():
        raise ValueError("no target is scored")
    return float(nll[scored].astype(np.float64).mean())


class ByPosition(NamedTuple):
    """Loss by position, in buckets."""

    centre: np.ndarray
    """float64: middle of each bucket, in tokens."""
    loss: np.ndarray
    """float64: mean over its scored targets; NaN without any."""
    count: np.ndarray
    """int: how many these are; weighted by it, `loss` averages to the mean of all."""


def by_position(nll: np.ndarray, scored: np.ndarray, width: int) -> ByPosition:
    """Mean loss of the targets in each `width` positions.

    Args:
      nll: `N T`. scored: bool `N T`.
      width: positions in a bucket; the last bucket may be narrower.
    """
    if width < 1:
        raise ValueError(f"width={width} must be at least 1")
    edges = np.arange(0, nll.shape[1], width)
    count = np.add.reduceat(scored.sum(axis=0), edges)
    losses = np.where(scored, nll, 0).astype(np.float64).sum(axis=0)
    with np.errstate(invalid="ignore"):
        loss = np.add.reduceat(losses, edges) / count
    ends = np.append(edges[1:], nll.shape[1])
    return ByPosition((edges + ends) / 2, loss, count)


def context_gain(nll: Mapping[int, np.ndarray]) -> dict[int, float]:
    """How much less the loss of the same targets is than with the shortest context, in nats.

    A scheme whose loss is flat in length, but whose gain past the training length is zero, ignores
    what is far away rather than using it.

    Args:
      nll: for each context length the losses of the same targets in the same order.

    Raises:
      ValueError: different numbers of targets.
    """
    shapes = {length: np.shape(losses) for length, losses in nll.items()}
    if len(set(shapes.values())) != 1:
        raise ValueError(f"context gain needs the same targets at every length, got {shapes}")
    least = np.asarray(nll[min(nll)], np.float64)
    return {n: float((least - np.asarray(nll[n], np.float64)).mean()) for n in sorted(nll)}


__all__ = [
    "ByPosition",
    "Windows",
    "by_position",
    "context_gain",
    "mean_loss",
    "windows",
]
