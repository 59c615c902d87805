"""A grid folder read back: one row for each scheme, control and extension, at the learning rate
that was selected for it."""

import dataclasses
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flax_pos.lab.errors import UserError
from flax_pos.lab.grid.cells import Cell, Kind, extensions_of, make_cells
from flax_pos.lab.grid.config import GridConfig, load_grid
from flax_pos.lab.members import parse_scheme
from flax_pos.lab.own import code_of
from flax_pos.lab.records import Records
from flax_pos.lab.results import ENVIRONMENT, METRICS, Scored
from flax_pos.lab.tasks import Task
from flax_pos.scheme import to_dict

GRID = "grid.toml"
PLAN = "plan.json"
COSTS = (
    "parameters",
    "positional_parameters",
    "tokens_per_second",
    "compile_seconds",
    "memory_bytes",
)
FITTED = 0.95
"""A seed has fitted a task if it gets this share of sequences like those of training right."""
FIT_STEPS = 0.99
"""Steps to fit: updates until this share of new training sequences is right."""
RULE = (
    "For each scheme the learning rate with the lowest loss, averaged over seeds, on new sequences "
    "like those of training; nothing measured past the training length plays a part. A seed whose "
    "loss is not finite counts as infinite."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Scored):
    """One line of a grid's table."""

    task: str
    model: str
    kind: Kind
    scheme: dict[str, Any]
    """Resolved settings."""
    changed: tuple[str, ...]
    """Settings that are not the paper's defaults."""
    learning_rate: float
    validation: dict[float, float]
    """Mean loss on sequences like those of training, by learning rate."""
    fit_steps: tuple[int | None, ...]
    """For each seed the updates until it had fitted; None: never."""
    cost: dict[str, float]
    """`COSTS`, as far as the run measured them."""
    task_settings: Task
    made_with: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Versions, source revisions and device of the training."""
    anatomy: dict[str, Any] | None = None
    """What `anatomy` found of the first seed; None where it has not looked."""

    @property
    def fitted_share(self) -> float:
        """Share of seeds that fitted; 1 for tasks measured by loss, which are never fitted."""
        column = self.task_settings.columns[0]
        if column.better == "low":
            return 1.0
        scores = self.scores(column)
        return 0.0 if scores is None else float(np.mean(np.asarray(scores) >= FITTED))

    @property
    def fitted(self) -> bool:
        """Whether most seeds fitted: otherwise the row is shown but never ranked."""
        return self.fitted_share > 0.5


@dataclasses.dataclass(frozen=True)
class GridRun:
    """A finished or unfinished grid."""

    folder: Path
    config: GridConfig
    cells: tuple[Cell, ...]
    environment: dict[str, Any]
    dropped: tuple[str, ...]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Finished rows in the order of the config."""
        rows: list[Row] = []
        for cell in self.cells:
            events = Records(self.folder / "cells" / cell.key / METRICS).read()
            result = next((e for e in events if e["event"] == "result"), None)
            if result is None:
                continue
            own = _select(self.config, cell, result, events)
            made = [(own, cell.scheme)]
            others = extensions_of(self.config, cell).items()
            extra = [(label, e.scheme, "extension") for label, e in others]
            for label, scheme, kind in (*extra, ("control: last", cell.scheme, "control")):
                event = find_measured(events, "extension", label, scheme)
                if event is not None:
                    made.append((_extended(own, label, kind, event, best_point(result)), scheme))
            rows += [_with_measured(row, scheme, events) for row, scheme in made]
        return tuple(rows)

    @property
    def missing(self) -> list[str]:
        """Cells without a result."""
        have = {(r.task, r.model, r.label) for r in self.rows}
        return [
            f"{c.label} on {c.task}" + (f" ({c.model})" if len(self.config.models) > 1 else "")
            for c in self.cells
            if (c.task, c.model, c.label) not in have
        ]

    def panel(self, task: str, model: str | None = None) -> tuple[Row, ...]:
        """Rows of one task (and model, the first one by default)."""
        model = next(iter(self.config.models)) if model is None else model
        return tuple(r for r in self.rows if r.task == task and r.model == model)


def best_point(result: dict[str, Any]) -> int:
    """The point of a cell's `result` with the lowest validation loss, by `RULE`."""
    return int(np.argmin(_validation(result)))


def _validation(result: dict[str, Any]) -> list[float]:
    losses = [[float(v) for v in p["validation"]] for p in result["rows"]]
    return [float(np.mean(v)) if np.isfinite(v).all() else float("inf") for v in losses]


def find_measured(events, event: str, label: str, scheme: str) -> dict[str, Any] | None:
    """The record of what was measured after training under this label, with the scheme (as the
    settings write it) and its code as they are now; None where there is none."""
    wanted = (event, label, scheme, code_of(parse_scheme(scheme)))
    parts = lambda e: (e["event"], e.get("label"), e.get("scheme"), e.get("code", {}))
    return next((e for e in events if parts(e) == wanted), None)


def _with_measured(row: Row, scheme: str, events) -> Row:
    """The row with what was measured after training, where it has been."""
    context, looked_at = (
        find_measured(events, event, row.label, scheme) for event in ("context", "anatomy")
    )
    curves = row.part["curves"] | ({} if context is None else context["curves"])
    keys = ("lengths", "shift", "bands")
    anatomy = None if looked_at is None else {k: looked_at[k] for k in keys}
    return dataclasses.replace(row, part=row.part | {"curves": curves}, anatomy=anatomy)


def _select(grid: GridConfig, cell: Cell, result, events) -> Row:
    fallback = grid.optimizer.learning_rate
    rates = [p["point"].get("learning_rate", fallback) for p in result["rows"]]
    means, best = _validation(result), best_point(result)
    train = [e for e in events if e["event"] == "train"]
    runs = cell.config.train.models
    members = range(best * runs, (best + 1) * runs)
    scheme = parse_scheme(cell.scheme)
    return Row(
        task=cell.task,
        model=cell.model,
        label=cell.label,
        kind=cell.kind,
        scheme=to_dict(scheme),
        changed=_changed(scheme),
        learning_rate=rates[best],
        validation=dict(zip(rates, means, strict=True)),
        part=result["rows"][best],
        steps=tuple(e["step"] for e in train),
        losses=tuple(tuple(float(e["loss"][m]) for e in train) for m in members),
        fit_steps=tuple(_first_fit(train, m) for m in members),
        cost={key: result[key] for key in COSTS if key in result},
        made_with=result.get("made_with", {}),
        task_settings=cell.config.task,
    )


def _first_fit(train, member: int) -> int | None:
    return next((e["step"] for e in train if float(e["accuracy"][member]) >= FIT_STEPS), None)


def _changed(scheme) -> tuple[str, ...]:
    mine, papers = to_dict(scheme), to_dict(type(scheme)())
    return tuple(f"{k} = {v}" for k, v in mine.items() if v != papers[k])


def _extended(row: Row, label: str, kind, event, best: int) -> Row:
    scheme = parse_scheme(event["scheme"])
    return dataclasses.replace(
        row,
        label=label,
        kind=kind,
        scheme=to_dict(scheme),
        changed=_changed(scheme),
        part=event["rows"][best],
        steps=(),
        losses=(),
        fit_steps=(),
    )


def read_grid(folder: Path) -> GridRun:
    """What a grid folder holds.

    Raises:
      UserError: it is none.
    """
    if not (folder / GRID).is_file():
        raise UserError(f"{str(folder)!r} is not a grid folder: it has no {GRID}")
    grid = load_grid(folder / GRID)
    loaded = {label: task.load() for label, task in grid.tasks.items()}
    read = lambda name: (
        json.loads((folder / name).read_text(encoding="utf-8")) if (folder / name).is_file() else {}
    )
    dropped = tuple(read(PLAN).get("dropped", ()))
    return GridRun(folder, grid, make_cells(grid, loaded), read(ENVIRONMENT), dropped)


def results_json(run: GridRun) -> dict[str, Any]:
    """Everything that was measured, without what depends on the machine or the moment: the same
    for an undisturbed run and one that was stopped and went on."""
    return {
        "name": run.config.name,
        "selection": RULE,
        "dropped": list(run.dropped),
        "rows": [
            {
                "task": row.task,
                "model": row.model,
                "label": row.label,
                "kind": row.kind,
                "scheme": row.scheme,
                "paper_defaults": not row.changed,
                "learning_rate": row.learning_rate,
                "validation": {f"{rate:g}": value for rate, value in row.validation.items()},
                "fitted_share": row.fitted_share,
                "fit_steps": list(row.fit_steps),
                "parameters": row.cost["parameters"],
                "positional_parameters": row.cost["positional_parameters"],
                "train_loss": row.train_loss,
                "anatomy": row.anatomy,
                **{k: row.part[k] for k in ("seeds", "scalars", "curves", "reach", "skipped")},
            }
            for row in run.rows
        ],
    }
