"""Runs the cells of a grid, each into a folder of its own, and picks up where a kill left off."""

import errno
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from flax_pos.lab import tomlio
from flax_pos.lab.environment import cpu_cores, describe
from flax_pos.lab.errors import UserError
from flax_pos.lab.grid.budget import fit_to_budget
from flax_pos.lab.grid.cells import Cell, check_extensions, extensions_of, make_cells
from flax_pos.lab.grid.config import GridConfig, load_grid
from flax_pos.lab.grid.last import cut
from flax_pos.lab.grid.results import GRID, PLAN
from flax_pos.lab.members import make_entries, make_members, parse_scheme
from flax_pos.lab.placement import place, prepare_cpu
from flax_pos.lab.program import Model, Program, blank_state
from flax_pos.lab.progress import RunProgress, duration
from flax_pos.lab.records import Records, write_atomic
from flax_pos.lab.results import ENVIRONMENT, METRICS
from flax_pos.lab.run import Interrupted, Plan, SchemeRun, StopSignal, result_rows, try_out
from flax_pos.lab.tasks import Evaluation, Loaded
from flax_pos.scheme import Scheme


class Prepared(NamedTuple):
    """A grid whose parts have been read and found to fit each other."""

    grid: GridConfig
    cells: tuple[Cell, ...]
    loaded: Mapping[str, Loaded]
    evaluations: Mapping[str, Evaluation]

    def plan(self, cell: Cell) -> Plan:
        loaded = self.loaded[cell.task]
        model = cell.config.model.resolve(cell.config.task, loaded.vocab_size)
        entries = make_entries(cell.config)
        return Plan(cell.config, entries, loaded, model, self.evaluations[cell.task])


def prepare(grid: GridConfig) -> Prepared:
    """Reads all data and checks every cell before anything is trained.

    Raises:
      UserError: what is wrong, in one line.
    """
    models = max(len(grid.learning_rates), 1) * grid.train.models
    prepare_cpu(models, cpu_cores())
    check_extensions(grid)
    loaded = {label: task.load() for label, task in grid.tasks.items()}
    cells = make_cells(grid, loaded)
    evaluations = {label: task.evaluation(loaded[label]) for label, task in grid.tasks.items()}
    prepared = Prepared(grid, cells, loaded, evaluations)
    for cell in cells:
        plan = prepared.plan(cell)
        try_out(plan, plan.entries[0])
        for label, extension in extensions_of(grid, cell).items():
            _try_extension(plan, label, parse_scheme(extension.scheme))
    return prepared


def _try_extension(plan: Plan, label: str, scheme: Scheme) -> None:
    """Traces a forward of the trained model with another scheme."""
    trained = Model(plan.model, plan.entries[0].scheme)

    def forward():
        ids = jax.numpy.zeros((1, plan.config.task.train_length), np.int32)
        params = trained.init(jax.random.key(0))
        return Model(plan.model, scheme).with_params(params)(ids, length=ids.shape[1])

    try:
        jax.eval_shape(forward)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"extension {label!r} does not fit a trained {plan.entries[0].label!r}: {error}"
        ) from error


def start_grid(
    grid: GridConfig, folder: Path, console: Console, *, budget: float | None = None
) -> Path:
    """Runs a grid into `folder`, where cells that are there already are not run again.

    Args:
      budget: seconds that it may take; what is dropped for it is said and recorded.

    Raises:
      UserError: bad settings, a budget that nothing fits, another grid's folder, a full disk.
      Interrupted: stopped by the user.
    """
    prepared = prepare(grid)
    notes: list[str] = []
    if budget is not None:
        smaller, notes = fit_to_budget(prepared, budget, console)
        if smaller != grid:
            prepared = prepare(smaller)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / GRID, tomlio.dumps(prepared.grid))
    write_atomic(folder / PLAN, json.dumps({"budget": budget, "dropped": notes}, indent=1) + "\n")
    return _execute(prepared, folder, console)


def resume_grid(folder: Path, console: Console) -> Path:
    """Goes on with a grid that was stopped, by the settings in its folder."""
    if not (folder / GRID).is_file():
        raise UserError(f"{str(folder)!r} is not a grid folder: it has no {GRID}")
    return _execute(prepare(load_grid(folder / GRID)), folder, console)


def _execute(prepared: Prepared, folder: Path, console: Console) -> Path:
    from flax_pos.lab.grid.report import write_grid_outputs

    environment = describe()
    cells = prepared.cells
    steps = sum(cell.config.train.steps for cell in cells)
    console.print(
        f"{len(cells)} cells ({len(prepared.grid.tasks)} tasks, {len(prepared.grid.models)} "
        f"models), {steps} updates in all, on {len(jax.devices())} "
        f"{environment['device_kind']} device(s)\ngrid folder: {folder}",
        highlight=False,
        soft_wrap=True,
    )
    began = time.monotonic()
    try:
        write_atomic(folder / ENVIRONMENT, json.dumps(environment, indent=2) + "\n")
        with StopSignal() as stop, RunProgress(console, steps) as progress:
            inner: Any = prepared.grid.train.placement
            for cell in cells:
                inner = _run_cell(prepared, cell, folder, progress, stop, inner)
    except Interrupted:
        raise Interrupted(folder) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left on the disk of {str(folder)!r}; make some and go on with --resume "
                f"{folder}: everything finished is kept"
            ) from None
        raise
    write_grid_outputs(folder, console)
    console.print(
        f"done in {duration(time.monotonic() - began)}; report: {folder / 'report.html'}",
        highlight=False,
        soft_wrap=True,
    )
    return folder


def cell_folder(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / cell.key


def _run_cell(prepared: Prepared, cell: Cell, grid_folder: Path, progress, stop, inner) -> str:
    folder = cell_folder(grid_folder, cell)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.toml").exists():
        write_atomic(folder / "config.toml", tomlio.dumps(cell.config))
    records = Records(folder / METRICS)
    plan = prepared.plan(cell)
    events = records.read()
    if any(e["event"] == "result" for e in events):
        progress.done += plan.config.train.steps
    else:
        inner = SchemeRun(plan, plan.entries[0], folder, records, progress, stop).run(inner)
    wanted = {
        label: (extension.scheme, False)
        for label, extension in extensions_of(prepared.grid, cell).items()
    }
    if "last" in prepared.grid.controls and cell.label == "rope":
        wanted["control: last"] = (cell.scheme, True)
    done = {(e["label"], e["scheme"]) for e in events if e["event"] == "extension"}
    for label, (scheme, last_only) in wanted.items():
        if (label, scheme) not in done:
            progress.phase(label, "scoring")
            rows = _score_as(plan, folder, scheme, last_only, inner)
            records.append("extension", label=label, scheme=scheme, rows=rows)
    return inner


def _score_as(plan: Plan, folder: Path, label: str, last_only: bool, inner) -> list[dict]:
    """The trained models of a cell, scored with another scheme or with little context."""
    config, entry, train = plan.config, plan.entries[0], plan.config.train
    members = make_members(config, entry)
    trained = SchemeRun.checkpoints_of(folder, entry)
    like = blank_state(Model(plan.model, entry.scheme), config.optimizer, len(members["init_seed"]))
    params = trained.restore(trained.steps()[-1], like).params
    scheme = parse_scheme(label)
    members |= {"settings": {}} if scheme != entry.scheme else {}
    program = Program(
        model=Model(plan.model, scheme),
        task=config.task,
        loaded=plan.loaded,
        members=members,
        placement=place(len(members["init_seed"]), inner),
        optimizer=config.optimizer,
        steps=train.steps,
        batch_size=train.batch_size,
        log_every=train.log_every,
    )
    evaluation, restore = plan.evaluation, lambda a: a
    if last_only:
        evaluation, restore = cut(plan.evaluation, config.task.train_length)
    scores = program.score(program.placement.put(params), evaluation)
    nll, correct = restore(scores[0]), restore(scores[1])
    defined = scores[2] if not last_only else plan.evaluation.length > 0
    skipped = np.zeros(len(nll), np.int32)
    return result_rows(config, entry, plan.evaluation, (nll, correct, defined), skipped)
