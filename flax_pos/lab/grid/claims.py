"""Claims measured by a grid: reproduced, not reproduced, undecided, or not testable here."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from flax_pos.lab.grid.results import GridRun, Row
from flax_pos.lab.statistics import Estimate, estimate, probability_of_improvement

Verdict = Literal["reproduced", "not reproduced", "undecided", "not testable here"]


class Finding(NamedTuple):
    """A claim's figures and verdict."""

    verdict: Verdict
    figure: str
    """Our numbers, or why there are none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A published statement and how to see whether it holds."""

    text: str
    source: str
    """Paper and arXiv number."""
    published: str
    """The paper's own figures."""
    task: str
    """Name of the task that can show it."""
    labels: tuple[str, ...]
    """Rows that it needs."""
    check: Callable[["Evidence"], Finding]


class Evidence(NamedTuple):
    """The rows that a claim needs, in its order."""

    rows: tuple[Row, ...]

    def column(self, name: str) -> str | None:
        """The key of a column, with `4x` for four training lengths; None where it is not there."""
        task = self.rows[0].task_settings
        times = re.search(r"(\d+)x$", name)
        if times is not None:
            name = f"{name[: times.start()]}{int(times[1]) * task.train_length}"
        return name if name in self.rows[0].part["scalars"] else None


def check_claim(claim: Claim, run: GridRun) -> Finding:
    """What a grid says of a claim."""
    labels = [label for label, task in run.config.tasks.items() if task.name == claim.task]
    if not labels:
        return Finding("not testable here", f"no task {claim.task} in this grid")
    rows = {row.label: row for row in run.panel(labels[0])}
    missing = [label for label in claim.labels if label not in rows]
    if missing:
        return Finding("not testable here", f"no {', '.join(missing)} in this grid")
    needed = tuple(rows[label] for label in claim.labels)
    unfitted = [row.label for row in needed if not row.fitted]
    if unfitted:
        shares = ", ".join(f"{r.label} {r.fitted_share:.0%}" for r in needed if not r.fitted)
        return Finding(
            "not testable here", f"not fitted inside the trained sizes ({shares} of seeds)"
        )
    return claim.check(Evidence(needed))


def text_of(found: Estimate, digits: int = 2) -> str:
    """A value with its interval."""
    value = f"{found.value:.{digits}f}"
    if found.low is None or found.high is None:
        return f"{value} (too few seeds)"
    return f"{value} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


# Ways to check ---------------------------------------------------------------------------------


def ahead(column: str, *, by: float = 0.0, low: bool = False):
    """The first row is better than the second, by at least `by` in the interquartile mean; `low`:
    smaller is better."""

    def check(evidence: Evidence) -> Finding:
        key = evidence.column(column)
        if key is None:
            return _untested(column)
        a, b = evidence.rows
        first, second = a.scores(key), b.scores(key)
        both = a.estimate(key), b.estimate(key)
        if first is None or second is None or both[0] is None or both[1] is None:
            return Finding("not testable here", "undefined for one of the two")
        sign = -1 if low else 1
        better = probability_of_improvement(
            [[sign * v for v in first]], [[sign * v for v in second]]
        )
        figure = (
            f"{a.label} {text_of(both[0])}, {b.label} {text_of(both[1])}; a seed of {a.label} is "
            f"better with probability {text_of(better)}"
        )
        gap = sign * (both[0].value - both[1].value)
        if better.low is None or better.high is None:
            return Finding("undecided", figure)
        if better.low > 0.5 and gap >= by:
            return Finding("reproduced", figure)
        if better.high < 0.5 or (better.low > 0.5 and gap < by):
            return Finding("not reproduced", figure)
        return Finding("undecided", figure)

    return check


def within(column: str, least: float = -math.inf, most: float = math.inf):
    """The row's interquartile mean lies in a range, with all of its interval."""

    def check(evidence: Evidence) -> Finding:
        (row,) = evidence.rows
        key = evidence.column(column)
        if key is None:
            return _untested(column)
        found = row.estimate(key)
        if found is None:
            return Finding("not testable here", f"undefined for {row.label}")
        return Finding(_inside(found, least, most), f"{row.label} {text_of(found)}")

    return check


def change(first: str, second: str, least: float = -math.inf, most: float = math.inf):
    """The second column minus the first, seed by seed, lies in a range."""

    def check(evidence: Evidence) -> Finding:
        (row,) = evidence.rows
        keys = evidence.column(first), evidence.column(second)
        if keys[0] is None or keys[1] is None:
            return _untested(first if keys[0] is None else second)
        before, after = row.scores(keys[0]), row.scores(keys[1])
        if before is None or after is None or not all(map(math.isfinite, (*before, *after))):
            return Finding("not testable here", f"undefined for {row.label}")
        found = estimate([[b - a for a, b in zip(before, after, strict=True)]])
        values = [row.estimate(c) for c in keys if c is not None]
        shown = " to ".join(f"{e.value:.2f}" for e in values if e is not None)
        return Finding(
            _inside(found, least, most), f"{row.label} from {shown}: change {text_of(found)}"
        )

    return check


def slower(evidence: Evidence) -> Finding:
    """The first row needs more updates than the second until it has fitted."""
    slow, fast = ([math.inf if s is None else s for s in row.fit_steps] for row in evidence.rows)
    shown = "; ".join(
        f"{row.label} {', '.join('never' if s is None else str(s) for s in row.fit_steps)}"
        for row in evidence.rows
    )
    if not slow or not fast:
        return Finding("not testable here", "no record of training")
    if min(slow) > max(fast):
        return Finding("reproduced", f"updates to fit: {shown}")
    if max(slow) < min(fast):
        return Finding("not reproduced", f"updates to fit: {shown}")
    return Finding("undecided", f"updates to fit: {shown}")


def _untested(column: str) -> Finding:
    return Finding("not testable here", f"this grid does not measure {column}")


def _inside(found: Estimate, least: float, most: float) -> Verdict:
    if found.low is None or found.high is None:
        return "undecided"
    if least <= found.low and found.high <= most:
        return "reproduced"
    if found.high < least or found.low > most:
        return "not reproduced"
    return "undecided"
