"""What is measured once a cell is trained: extensions, controls, windows, what attention does.

Each measurement is a line of the cell's records. One that is there is not made again, so a grid
that was trained before a measurement existed gets it by `--resume`.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from flax_pos.lab.grid.anatomy import anatomy
from flax_pos.lab.grid.cells import Cell, extensions_of
from flax_pos.lab.grid.config import GridConfig
from flax_pos.lab.grid.context import context_curves, stretches
from flax_pos.lab.grid.last import cut
from flax_pos.lab.grid.results import best_point, find_measured
from flax_pos.lab.members import Members, make_members, parse_scheme
from flax_pos.lab.own import code_of
from flax_pos.lab.placement import place
from flax_pos.lab.plan import Plan
from flax_pos.lab.program import Model, Params, Program, blank_state
from flax_pos.lab.records import Records
from flax_pos.lab.run import Interrupted, SchemeRun, result_rows
from flax_pos.scheme import Scheme


class _Trained(NamedTuple):
    """All models of a cell."""

    plan: Plan
    scheme: Scheme
    members: Members
    params: Params
    inner: Any

    def models(self, point: int) -> "_Trained":
        """Those of one learning rate."""
        runs = self.plan.config.train.models
        rows = slice(point * runs, (point + 1) * runs)
        pick = lambda tree: jax.tree.map(lambda a: a[rows], tree)
        return self._replace(members=pick(self.members), params=pick(self.params))

    def score(self, scheme: Scheme, evaluation):
        """As `Program.score`, with any scheme."""
        config, train = self.plan.config, self.plan.config.train
        own = {} if scheme == self.scheme else {"settings": {}}
        program = Program(
            model=Model(self.plan.model, scheme),
            task=config.task,
            loaded=self.plan.loaded,
            members=self.members | own,
            placement=place(len(self.members["init_seed"]), self.inner),
            optimizer=config.optimizer,
            steps=train.steps,
            batch_size=train.batch_size,
            log_every=train.log_every,
        )
        return program.score(program.placement.put(self.params), evaluation)


def measure_after(
    grid: GridConfig, cell: Cell, plan: Plan, folder: Path, records: Records, progress, stop, inner
) -> None:
    """Makes all measurements of a trained cell that its records do not hold.

    Raises:
      Interrupted: the user asked to stop; what was measured is kept.
    """
    events = records.read()
    others = {label: e.scheme for label, e in extensions_of(grid, cell).items()}
    schemes = {cell.label: cell.scheme, **others}
    last = "last" in grid.controls and cell.label == "rope"
    wanted = [("extension", label, scheme) for label, scheme in others.items()]
    wanted += [("extension", "control: last", cell.scheme)] if last else []
    wanted += [("anatomy", *item) for item in schemes.items()]
    text = plan.config.task.long_text(plan.loaded)
    wanted += [("context", *item) for item in schemes.items() if text is not None]
    wanted = [item for item in wanted if find_measured(events, *item) is None]
    if not wanted:
        return
    trained = _restore(plan, folder, inner)
    best = best_point(next(e for e in events if e["event"] == "result"))
    for event, label, text_of_scheme in wanted:
        if stop.asked:
            raise Interrupted(folder)
        progress.phase(label, "measuring" if event != "extension" else "scoring")
        scheme = parse_scheme(text_of_scheme)
        if event == "extension":
            found = {"rows": _rows(trained, scheme, label == "control: last")}
        elif event == "anatomy":
            found = _anatomy(trained.models(best), scheme)
        else:
            found = _context(trained.models(best), scheme, text)
        code = code_of(scheme)
        records.append(event, label=label, scheme=text_of_scheme, code=code, **found)


def _restore(plan: Plan, folder: Path, inner) -> _Trained:
    entry = plan.entries[0]
    members = make_members(plan.config, entry)
    checkpoints = SchemeRun.checkpoints_of(folder, entry)
    model = Model(plan.model, entry.scheme)
    like = blank_state(model, plan.config.optimizer, len(members["init_seed"]))
    params = checkpoints.restore(checkpoints.steps()[-1], like).params
    return _Trained(plan, entry.scheme, members, params, inner)


def _rows(trained: _Trained, scheme: Scheme, last_only: bool) -> list[dict]:
    """What the models score with another scheme or with little context."""
    plan = trained.plan
    evaluation, restore = plan.evaluation, lambda a: a
    if last_only:
        evaluation, restore = cut(plan.evaluation, plan.config.task.train_length)
    scores = trained.score(scheme, evaluation)
    nll, correct = restore(scores[0]), restore(scores[1])
    defined = scores[2] if not last_only else plan.evaluation.length > 0
    skipped = np.zeros(len(nll), np.int32)
    entry = plan.entries[0]
    return result_rows(plan.config, entry, plan.evaluation, (nll, correct, defined), skipped)


def _anatomy(trained: _Trained, scheme: Scheme) -> dict[str, Any]:
    plan = trained.plan
    first = {name: jax.numpy.asarray(a[0]) for name, a in trained.params.items()}
    model = Model(plan.model, scheme)
    return anatomy(model, first, plan.config.task, plan.evaluation, trained.scheme)


def _context(trained: _Trained, scheme: Scheme, text) -> dict[str, Any]:
    scored = []
    for stretch in stretches(trained.plan.config.task, text):
        nll, _, defined = trained.score(scheme, stretch.evaluation)
        scored.append((stretch, nll, defined))
    return {"curves": context_curves(scored)}
