"""A run folder read back: what the table, the figures and the report are made of."""

import dataclasses
import itertools
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flax_pos.lab.config import Config, load_config
from flax_pos.lab.errors import UserError
from flax_pos.lab.records import Records
from flax_pos.lab.statistics import Estimate, estimate
from flax_pos.lab.tasks import Column, Reach

CONFIG = "config.toml"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
TAIL = 0.1
"""Least share of the steps, at the end, over which the training loss is averaged: whole log lines
are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scored:
    """What a row of a run and one of a grid have in common."""

    label: str
    part: dict[str, Any]
    """What the seeds scored: `seeds`, `scalars`, `curves`, `reach`."""
    steps: tuple[int, ...]
    """Updates at each log line; empty for what was not trained."""
    losses: tuple[tuple[float, ...], ...]
    """For each seed the mean training loss between log lines."""

    def scores(self, column: Column | str) -> list[float] | None:
        """A column by seed; None where the scheme is undefined."""
        values = self.part["scalars"][column if isinstance(column, str) else column.key]
        return None if any(v is None for v in values) else [float(v) for v in values]

    def estimate(self, column: Column | str) -> Estimate | None:
        """Interquartile mean over seeds; None where undefined or not finite."""
        return estimate_of(self.scores(column))

    @property
    def tail(self) -> tuple[int, ...]:
        """Updates behind each of the last log lines, those that `train_loss` averages."""
        start = max(self.steps, default=0) * (1 - TAIL)
        return tuple(
            end - begin for begin, end in itertools.pairwise((0, *self.steps)) if end > start
        )

    @property
    def train_loss(self) -> list[float]:
        """By seed the mean loss over the last `sum(tail)` updates."""
        counts = self.tail
        return [float(np.average(seed[-len(counts) :], weights=counts)) for seed in self.losses]

    @property
    def reach(self) -> Reach:
        """The median over seeds (the lower one of an even number)."""
        seeds = sorted(Reach(int(r["length"]), bool(r["open"])) for r in self.part["reach"])
        return seeds[(len(seeds) - 1) // 2]


def estimate_of(scores: list[float] | None) -> Estimate | None:
    """Interquartile mean of the scores by seed; None where there are none or one is not finite."""
    known = scores is not None and bool(np.isfinite(scores).all())
    return estimate([scores]) if known and scores else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Scored):
    """One scheme at one point of a sweep, over its seeds."""

    scheme: str
    result: dict[str, Any]
    """The scheme's `result` event: parameters, seconds, settings."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished or unfinished run."""

    folder: Path
    config: Config
    environment: dict[str, Any]
    events: tuple[dict[str, Any], ...]

    @cached_property
    def about(self) -> dict[str, Any]:
        """Facts on the data."""
        return next((e["about"] for e in self.events if e["event"] == "data"), {})

    @cached_property
    def finished(self) -> dict[str, dict[str, Any]]:
        """`result` events by scheme."""
        return {e["scheme"]: e for e in self.events if e["event"] == "result"}

    @cached_property
    def seconds(self) -> float:
        """Time spent on the schemes, over all resumes."""
        return sum(e["total_seconds"] for e in self.finished.values())

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Finished rows in the order of the config."""
        rows = []
        for label in self.config.schemes:
            result = self.finished.get(label)
            if result is None:
                continue
            train = [e for e in self.events if e["event"] == "train" and e["scheme"] == label]
            seeds = self.config.train.models
            for i, part in enumerate(result["rows"]):
                members = range(i * seeds, (i + 1) * seeds)
                rows.append(
                    Row(
                        label=part["row"],
                        scheme=label,
                        result=result,
                        part=part,
                        steps=tuple(e["step"] for e in train),
                        losses=tuple(tuple(float(e["loss"][m]) for e in train) for m in members),
                    )
                )
        return tuple(rows)


def read_run(folder: Path) -> Run:
    """What a run folder holds.

    Raises:
      UserError: it is none.
    """
    if not (folder / CONFIG).is_file():
        raise UserError(f"{str(folder)!r} is not a run folder: it has no {CONFIG}")
    environment = {}
    if (folder / ENVIRONMENT).is_file():
        environment = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    events = tuple(Records(folder / METRICS).read())
    return Run(folder, load_config(folder / CONFIG), environment, events)


def summary_json(run: Run) -> dict[str, Any]:
    """The results as plain data, with how they were measured."""
    task, train = run.config.task, run.config.train
    rows = {}
    for row in run.rows:
        columns = {}
        for column in task.columns:
            found = row.scores(column)
            columns[column.key] = "undefined" if found is None else _summary(found)
        rows[row.label] = {
            "scheme": row.result["settings"],
            "parameters": row.result["parameters"],
            "positional_parameters": row.result["positional_parameters"],
            "point": row.part["point"],
            "seeds": row.part["seeds"],
            "train_loss": _summary(row.train_loss),
            "measures": columns,
            "curves": row.part["curves"],
            "reach": row.part["reach"],
            "skipped_updates": row.part["skipped"],
        }
    return {
        "task": task.name,
        "train_length": task.train_length,
        "reach_unit": task.unit,
        "seeds": train.models,
        "vary": train.vary,
        "steps": train.steps,
        "method": {c.key: c.help for c in task.columns} | {c.key: c.caption for c in task.curves},
        "rows": rows,
    }


def _summary(scores: list[float]) -> dict[str, Any]:
    found = estimate_of(scores)
    few = found is not None and found.too_few
    return {
        "iqm": None if found is None else found.value,
        "interval": "too few seeds" if few else None if found is None else list(found[1:]),
        "mean": float(np.mean(scores)),
        "std": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        "values": scores,
    }
