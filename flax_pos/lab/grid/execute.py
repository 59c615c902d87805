"""Runs the cells of a grid, each into a folder of its own, and picks up where a kill left off."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console

from flax_pos.lab import tomlio
from flax_pos.lab.environment import cpu_cores, describe
from flax_pos.lab.errors import UserError, full_disk_is_one_line, new_folder
from flax_pos.lab.grid.after import measure_after
from flax_pos.lab.grid.budget import fit_to_budget
from flax_pos.lab.grid.cells import Cell, check_extensions, extensions_of, make_cells
from flax_pos.lab.grid.config import GridConfig, load_grid
from flax_pos.lab.grid.results import GRID, PLAN
from flax_pos.lab.lock import alone
from flax_pos.lab.members import make_entries, parse_scheme
from flax_pos.lab.placement import prepare_cpu
from flax_pos.lab.plan import Plan, try_extension, try_out
from flax_pos.lab.progress import RunProgress, counted, duration
from flax_pos.lab.records import Records, write_atomic, write_json
from flax_pos.lab.results import ENVIRONMENT, METRICS
from flax_pos.lab.run import Interrupted, SchemeRun
from flax_pos.lab.stop import StopSignal
from flax_pos.lab.tasks import Evaluation, Loaded
from flax_pos.lab.tasks.check import load_checked


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
    batch_size = grid.train.batch_size
    made = {label: load_checked(task, batch_size) for label, task in grid.tasks.items()}
    loaded = {label: data for label, (data, _) in made.items()}
    evaluations = {label: evaluation for label, (_, evaluation) in made.items()}
    cells = make_cells(grid, loaded)
    prepared = Prepared(grid, cells, loaded, evaluations)
    for cell in cells:
        plan = prepared.plan(cell)
        try_out(plan, plan.entries[0])
        for label, extension in extensions_of(grid, cell).items():
            try_extension(plan, plan.entries[0], label, parse_scheme(extension.scheme))
    return prepared


def start_grid(
    grid: GridConfig,
    folder: Path,
    console: Console,
    *,
    budget: float | None = None,
    tensorboard: bool = False,
) -> Path:
    """Runs a grid into `folder`, where cells that are there already are not run again.

    Args:
      budget: seconds that it may take; what is dropped for it is said and recorded.
      tensorboard: also write scalars as events, under `tensorboard/`.

    Raises:
      UserError: bad settings, a budget that nothing fits, another grid's folder, a full disk.
      Interrupted: stopped by the user.
    """
    prepared = prepare(grid.absolute())
    notes: list[str] = []
    if budget is not None:
        smaller, notes = fit_to_budget(prepared, budget, console)
        if smaller != prepared.grid:
            prepared = prepare(smaller)
    with alone(folder):
        with new_folder(folder):
            write_atomic(folder / GRID, tomlio.dumps(prepared.grid))
            write_json(folder / PLAN, {"budget": budget, "dropped": notes})
        return _execute(prepared, folder, console, tensorboard)


def resume_grid(folder: Path, console: Console, *, tensorboard: bool = False) -> Path:
    """Goes on with a grid that was stopped, by the settings in its folder."""
    if not (folder / GRID).is_file():
        raise UserError(f"{str(folder)!r} is not a grid folder: it has no {GRID}")
    prepared = prepare(load_grid(folder / GRID))
    with alone(folder):
        return _execute(prepared, folder, console, tensorboard)


def _execute(prepared: Prepared, folder: Path, console: Console, tensorboard: bool) -> Path:
    from flax_pos.lab.grid.report import write_grid_outputs

    environment = describe()
    cells = prepared.cells
    plans = map(prepared.plan, cells)
    programs = [plan.updates_and_tokens(plan.entries[0]) for plan in plans]
    steps = sum(updates for updates, _ in programs)
    console.print(
        f"{counted(len(cells), 'cell')} ({counted(len(prepared.grid.tasks), 'task')}, "
        f"{counted(len(prepared.grid.models), 'model')}), {counted(steps, 'update')} in all, on "
        f"{len(jax.devices())} "
        f"{environment['device_kind']} device(s)\ngrid folder: {folder}",
        highlight=False,
        soft_wrap=True,
    )
    began = time.monotonic()
    try:
        with full_disk_is_one_line(folder):
            write_json(folder / ENVIRONMENT, environment)
            with StopSignal() as stop, RunProgress(console, programs) as progress:
                inner: Any = prepared.grid.train.placement
                for cell in cells:
                    board = folder / "tensorboard" / cell.task / cell.model if tensorboard else None
                    inner = _run_cell(prepared, cell, folder, progress, stop, inner, board)
            write_grid_outputs(folder, console)
    except Interrupted:
        raise Interrupted(folder) from None
    console.print(
        f"done in {duration(time.monotonic() - began)}; report: {folder / 'report.html'}",
        highlight=False,
        soft_wrap=True,
    )
    return folder


def cell_folder(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / cell.key


def _run_cell(
    prepared: Prepared, cell: Cell, grid_folder: Path, progress, stop, inner, board: Path | None
) -> str:
    folder = cell_folder(grid_folder, cell)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.toml").exists():
        settings = tomlio.dumps(cell.config)
        for other in grid_folder.glob("cells/*/config.toml"):
            if other.read_text(encoding="utf-8") == settings:
                progress.line(
                    f"{cell.label} on {cell.task}: its code or data has changed since "
                    f"{other.parent.name}; trained anew"
                )
        write_atomic(folder / "config.toml", settings)
    records = Records(folder / METRICS)
    plan = prepared.plan(cell)
    events = records.read()
    if any(e["event"] == "result" for e in events):
        progress.skip(*plan.updates_and_tokens(plan.entries[0]), whole=True)
    else:
        inner = SchemeRun(plan, plan.entries[0], folder, records, progress, stop, board).run(inner)
    measure_after(prepared.grid, cell, plan, folder, records, progress, stop, inner)
    return inner
