"""The oracle of short context: what a model makes of the last tokens alone."""

from collections.abc import Callable

import numpy as np

from flax_pos.lab.tasks import Evaluation


def cut(evaluation: Evaluation, length: int, stride: int | None = None):
    """Sequences cut into windows of at most `length` tokens, so that each target is predicted from
    the `length - stride + 1 .. length` tokens before it (fewer at the start of a sequence).

    Args:
      evaluation: sequences of any length.
      length: tokens of a window.
      stride: tokens from one window to the next; None: an eighth of `length`.

    Returns:
      the windows as an evaluation, and a function from their scores `... n T` to the scores
      `... N T` of the sequences; what no window scored is 0 or False.
    """
    stride = max(length // 8, 1) if stride is None else stride
    rows, starts, firsts = [], [], []
    for row, total in enumerate(evaluation.length):
        end = 0
        while end < total:
            start = 0 if end == 0 else min(end + stride, int(total)) - length
            rows.append(row)
            starts.append(max(start, 0))
            firsts.append(end)
            end = min(starts[-1] + length, int(total))
    row, start = np.asarray(rows, np.int64), np.asarray(starts, np.int64)
    at = start[:, None] + np.arange(length)
    total = evaluation.length[row]
    inside = at < total[:, None]
    new = inside & (at >= np.asarray(firsts, np.int64)[:, None])
    safe = np.minimum(at, evaluation.ids.shape[1] - 1)
    take = lambda a: np.where(inside, a[row[:, None], safe], 0)
    windows = Evaluation(
        take(evaluation.ids),
        take(evaluation.labels),
        new & evaluation.scored[row[:, None], safe],
        inside.sum(axis=1).astype(np.int32),
    )

    def restore(scores: np.ndarray) -> np.ndarray:
        out = np.zeros((*scores.shape[:-2], *evaluation.ids.shape), scores.dtype)
        which = np.nonzero(new)
        out[..., row[which[0]], at[which]] = scores[..., which[0], which[1]]
        return out

    back: Callable[[np.ndarray], np.ndarray] = restore
    return windows, back
