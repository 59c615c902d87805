"""A grid made to fit the time there is, from what its programs were measured to cost."""

import dataclasses
import time
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from flax_pos.lab.errors import UserError
from flax_pos.lab.grid.config import GridConfig
from flax_pos.lab.members import make_members
from flax_pos.lab.placement import place
from flax_pos.lab.program import Model, Program
from flax_pos.lab.progress import duration
from flax_pos.lab.statistics import FEWEST

if TYPE_CHECKING:
    from flax_pos.lab.grid.execute import Prepared

PROBE_STEPS = 4
MARGIN = 1.25
"""Scoring, checkpoints and schemes that cost more than the one measured."""


class Cost(NamedTuple):
    """What one program costs, in seconds."""

    compile: float
    model_step: float
    """One update of one model."""


def fit_to_budget(
    prepared: "Prepared", budget: float, console: Console
) -> tuple[GridConfig, list[str]]:
    """A grid of the same schemes, tasks and updates that fits, and what was dropped for it.

    Learning rates go first, down to the middle one, then seeds, down to five: with fewer nothing
    could be said of the result. Updates are never cut, since a model that was trained less is
    another experiment.

    Raises:
      UserError: not even the smallest such grid fits.
    """
    grid = prepared.grid
    costs = _probe(prepared)
    spent = sum(c.compile for c in costs.values())
    smallest, notes = grid, []
    for candidate, note in _smaller(grid):
        notes += [note] if note else []
        smallest = candidate
        seconds = _estimate(prepared, candidate, costs) + spent
        if seconds <= budget:
            dropped = f"; dropped: {', '.join(notes)}" if notes else ""
            text = f"estimated {duration(seconds)} of {duration(budget)}{dropped}"
            console.print(text, highlight=False, soft_wrap=True)
            return candidate, notes
    seconds = _estimate(prepared, smallest, costs) + spent
    raise UserError(
        f"--budget {duration(budget)} is too short: even with one learning rate and "
        f"{smallest.train.seeds} seeds this grid takes about {duration(seconds)}; take fewer "
        "schemes, tasks or updates"
    )


def _smaller(grid: GridConfig):
    """The grid, and smaller ones in the order in which they are tried."""
    yield grid, ""
    rates = list(grid.learning_rates)
    while len(rates) > 1:
        dropped = rates.pop(0 if len(rates) % 2 else -1)
        grid = dataclasses.replace(grid, learning_rates=tuple(rates))
        yield grid, f"learning rate {dropped:g}"
    seeds = grid.train.seeds
    while seeds > FEWEST:
        seeds -= 1
        train = dataclasses.replace(grid.train, seeds=seeds)
        grid = dataclasses.replace(grid, train=train)
        yield grid, f"seed {grid.train.first_seed + seeds}"


def _probe(prepared: "Prepared") -> dict[tuple[str, str], Cost]:
    """Compiles and runs a few updates of the first scheme of each task and model."""
    costs = {}
    for cell in prepared.cells:
        if (cell.task, cell.model) in costs:
            continue
        plan = prepared.plan(cell)
        members = make_members(plan.config, plan.entries[0])
        count = len(members["init_seed"])
        inner = plan.config.train.placement
        program = Program(
            model=Model(plan.model, plan.entries[0].scheme),
            task=plan.config.task,
            loaded=plan.loaded,
            members=members,
            placement=place(count, "auto" if inner == "measure" else inner),
            optimizer=plan.config.optimizer,
            steps=plan.config.train.steps,
            batch_size=plan.config.train.batch_size,
            log_every=PROBE_STEPS,
        )
        clock = time.monotonic()
        state = program.init()
        program.compile(state)
        compiled = time.monotonic() - clock
        state, _ = program.advance(state, 1)
        clock = time.monotonic()
        program.advance(state, PROBE_STEPS)
        step = (time.monotonic() - clock) / (PROBE_STEPS * count)
        costs[cell.task, cell.model] = Cost(compiled, step)
    return costs


def _estimate(prepared: "Prepared", grid: GridConfig, costs) -> float:
    models = max(len(grid.learning_rates), 1) * grid.train.models
    seconds = 0.0
    for cell in prepared.cells:
        cost = costs[cell.task, cell.model]
        seconds += cost.compile + cost.model_step * models * grid.train_of(cell.task).steps
    return MARGIN * seconds
