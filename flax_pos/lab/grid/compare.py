"""The same rows of two folders side by side."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flax_pos.lab.errors import UserError
from flax_pos.lab.grid.results import GRID, read_grid
from flax_pos.lab.results import read_run
from flax_pos.lab.statistics import Estimate, estimate, sign_flip
from flax_pos.lab.tasks import Task


class Difference(NamedTuple):
    """One column of one row in both folders."""

    task: str
    row: str
    column: str
    digits: int
    first: Estimate
    second: Estimate
    change: Estimate | None
    """Second minus first, seed by seed; None where the seeds are not the same."""
    p: float | None
    """Of no change, by flipping signs; None also where there are too few seeds."""


Parts = dict[tuple[str, str], tuple[Task, dict[str, Any]]]
"""By task and row: the task and what its seeds scored."""


def compare_folders(first: Path, second: Path) -> list[Difference]:
    """Every column of the rows that both folders have.

    Raises:
      UserError: a folder that is no run and no grid, or nothing in common.
    """
    one, other = _parts(first), _parts(second)
    found = []
    for name in one:
        if name not in other:
            continue
        task, mine = one[name]
        theirs = other[name][1]
        for column in task.columns:
            values = [part["scalars"].get(column.key) for part in (mine, theirs)]
            if any(not v or not _known(v) for v in values):
                continue
            a, b = ([float(v) for v in own or ()] for own in values)
            change = p = None
            if list(map(str, mine["seeds"])) == list(map(str, theirs["seeds"])):
                differences = [y - x for x, y in zip(a, b, strict=True)]
                change = estimate([differences])
                p = None if change.too_few else sign_flip([differences])
            title = f"{column.group}, {column.title}"
            both = estimate([a]), estimate([b])
            found.append(Difference(*name, title, column.digits, *both, change, p))
    if not found:
        raise UserError(
            f"{str(first)!r} and {str(second)!r} have no row in common: theirs are "
            f"{_names(one)} and {_names(other)}"
        )
    return found


def _known(values: list[Any]) -> bool:
    return all(v is not None for v in values) and bool(
        np.isfinite([float(v) for v in values]).all()
    )


def _names(parts: Parts) -> str:
    return ", ".join(f"{row} on {task}" for task, row in parts) or "none"


def _parts(folder: Path) -> Parts:
    if (folder / GRID).is_file():
        rows = read_grid(folder).rows
        several = len({row.model for row in rows}) > 1
        return {
            (f"{r.task}, {r.model}" if several else r.task, r.label): (r.task_settings, r.part)
            for r in rows
        }
    run = read_run(folder)
    task = run.config.task
    return {(task.name, row.label): (task, row.part) for row in run.rows}


def to_markdown(found: list[Difference]) -> str:
    """The differences as a table."""
    lines = [
        "| task | row | measure | first | second | change | p |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for d in found:
        show = lambda e, digits=d.digits: _show(e, digits)
        change = "other seeds" if d.change is None else show(d.change)
        p = "" if d.p is None else f"{d.p:.3f}"
        lines.append(
            f"| {d.task} | {d.row} | {d.column} | {show(d.first)} | {show(d.second)} "
            f"| {change} | {p} |"
        )
    return "\n".join([*lines, "", "Interquartile means over seeds with 95 % bootstrap intervals."])


def _show(found: Estimate, digits: int) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.{digits}f} (too few)"
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"
