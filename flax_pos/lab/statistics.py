"""Summaries over seeds that do not promise more than the seeds hold."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

ENOUGH = 3
"""Below this many seeds no interval is given."""


class Summary(NamedTuple):
    """A value over seeds."""

    mean: float
    low: float | None
    """Lower end of the interval; None where there are too few seeds for one."""
    high: float | None
    values: tuple[float, ...]
    """Every seed's value, in seed order."""
    method: Literal["t95", "range"]

    @property
    def too_few(self) -> bool:
        return self.low is None


def summarise(
    values: Sequence[float | None], method: Literal["t95", "range"] = "t95"
) -> Summary | None:
    """Mean over seeds with an interval; None if any seed has no value.

    `t95` is the 95 % interval of the mean by Student's t: half width t(n - 1) s / sqrt(n).
    `range` is the smallest and the largest value, for values of which a t interval says nothing
    (accuracies near 0 or 1, seeds that either learn or do not).
    """
    if len(values) == 0 or any(v is None for v in values):
        return None
    array = np.asarray(values, np.float64)
    mean = float(array.mean())
    if len(array) < ENOUGH or not np.isfinite(array).all():
        low = high = None
    elif method == "range":
        low, high = float(array.min()), float(array.max())
    else:
        half = t_quantile(0.975, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array))
        low, high = mean - float(half), mean + float(half)
    return Summary(mean, low, high, tuple(float(v) for v in array), method)


def t_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t distribution, by bisection of its closed form."""
    if not 0.5 <= probability < 1:
        raise ValueError(f"probability={probability} must lie in 0.5 .. 1")
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def t_cdf(t: float, degrees: int) -> float:
    """P(T <= t) for t >= 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sin, cos2 = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2
    term, total = 1.0, 0.0
    for k in range(degrees // 2):
        total += term
        term *= cos2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    if odd:
        return 0.5 + (angle + sin * math.cos(angle) * total) / math.pi
    return 0.5 + sin * total / 2
