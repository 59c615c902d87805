"""A run folder read back: what the table, the figures and the report are made of."""

import dataclasses
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from flax_pos.lab.config import Config, load_config
from flax_pos.lab.errors import UserError
from flax_pos.lab.records import Records
from flax_pos.lab.statistics import Summary, summarise
from flax_pos.lab.tasks import Column, Reach

CONFIG = "config.toml"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
TAIL = 0.1
"""Share of the steps, at the end, over which the training loss is averaged."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One scheme at one point of a sweep, over its seeds."""

    label: str
    scheme: str
    result: dict[str, Any]
    """The scheme's `result` event: parameters, seconds, settings."""
    part: dict[str, Any]
    """This row's part of it: seeds, scalars, curves, reach."""
    steps: tuple[int, ...]
    losses: tuple[tuple[float, ...], ...]
    """For each seed the mean training loss between log lines."""

    @property
    def train_loss(self) -> Summary | None:
        last = self.steps[-1] if self.steps else 0
        tail = [i for i, s in enumerate(self.steps) if s > last * (1 - TAIL)]
        return summarise([sum(seed[i] for i in tail) / len(tail) for seed in self.losses])

    def summary(self, column: Column) -> Summary | None:
        """A column over seeds; None where the scheme is undefined."""
        return summarise(self.part["scalars"][column.key], column.spread)

    @property
    def reach(self) -> Reach:
        """The median over seeds (the lower one of an even number)."""
        seeds = sorted(Reach(int(r["length"]), bool(r["open"])) for r in self.part["reach"])
        return seeds[(len(seeds) - 1) // 2]


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
            found = row.summary(column)
            columns[column.key] = "undefined" if found is None else _summary(found)
        rows[row.label] = {
            "scheme": row.result["settings"],
            "parameters": row.result["parameters"],
            "positional_parameters": row.result["positional_parameters"],
            "point": row.part["point"],
            "seeds": row.part["seeds"],
            "train_loss": _summary(row.train_loss) if row.train_loss else None,
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


def _summary(summary: Summary) -> dict[str, Any]:
    n = len(summary.values)
    spread = sum((v - summary.mean) ** 2 for v in summary.values)
    return {
        "mean": summary.mean,
        "std": (spread / (n - 1)) ** 0.5 if n > 1 else None,
        "interval": "too few seeds" if summary.too_few else [summary.low, summary.high],
        "interval_method": summary.method,
        "values": list(summary.values),
    }
