"""Side-by-side timing: alternating rounds in one process, medians, ratios to a baseline."""

import statistics
import time
from collections.abc import Callable, Mapping

import jax


def alternate(
    calls: Mapping[str, Callable[[], object]], *, rounds: int = 15, warmup: int = 2
) -> dict[str, float]:
    """Median seconds of each call. Every round runs each call once, so that drift of the machine
    (clock, other processes) falls on all alike; results are waited for."""
    for _ in range(warmup):
        for call in calls.values():
            jax.block_until_ready(call())
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(seconds: Mapping[str, float], *, baseline: str) -> str:
    """Plain-text table: milliseconds and multiples of the baseline."""
    width = max(map(len, seconds))
    unit = seconds[baseline]
    return "\n".join(
        f"{name:{width}s} {1e3 * value:10.2f} ms {value / unit:8.2f} x"
        for name, value in seconds.items()
    )
