"""A run from its config to its report: validated first, resumable at any moment."""

import dataclasses
import datetime
import hashlib
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from flax_pos.lab import tomlio
from flax_pos.lab.checkpoint import Checkpoints
from flax_pos.lab.config import Config, absolute
from flax_pos.lab.environment import describe, made_with
from flax_pos.lab.errors import UserError, full_disk_is_one_line, new_folder, suggest
from flax_pos.lab.lock import alone
from flax_pos.lab.members import Entry, make_entries, make_members
from flax_pos.lab.placement import Placement, measure, place
from flax_pos.lab.plan import Plan, make_plan
from flax_pos.lab.program import Model, Program, State, blank_state
from flax_pos.lab.progress import RunProgress, counted, duration
from flax_pos.lab.records import Records, write_atomic, write_json
from flax_pos.lab.results import CONFIG, ENVIRONMENT, METRICS, read_run
from flax_pos.lab.scalars import Scalars, model_names
from flax_pos.lab.stop import StopSignal
from flax_pos.lab.tasks import Evaluation, Loaded
from flax_pos.nnx import CausalLM
from flax_pos.scheme import to_dict


class Interrupted(Exception):
    """The user stopped the run; what is needed to go on is on the disk."""

    def __init__(self, folder: Path):
        super().__init__(str(folder))
        self.folder = folder


def start(
    config: Config, folder: Path | None, console: Console, *, tensorboard: bool = False
) -> Path:
    """Runs a config in a new run folder (None: one under `runs/`), which it returns; with
    `tensorboard` its scalars are also written as events, under `tensorboard/`."""
    plan = make_plan(config)
    config = absolute(config)
    plan = plan._replace(config=config)
    if folder is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        digest = hashlib.sha256(tomlio.dumps(config).encode()).hexdigest()[:6]
        folder = Path("runs") / f"{stamp}-{config.name}-{digest}"
    with alone(folder):
        if (folder / CONFIG).exists():
            raise UserError(
                f"{str(folder)!r} holds a run already; go on with --resume {folder}, or take "
                "another"
            )
        with new_folder(folder):
            write_atomic(folder / CONFIG, tomlio.dumps(config))
        return _execute(plan, folder, console, tensorboard)


def resume(folder: Path, console: Console, *, tensorboard: bool = False) -> Path:
    """Goes on with a run that was stopped. Nothing that is finished is done again."""
    plan = make_plan(read_run(folder).config)
    with alone(folder):
        return _execute(plan, folder, console, tensorboard)


def _execute(plan: Plan, folder: Path, console: Console, tensorboard: bool) -> Path:
    from flax_pos.lab.report import write_outputs

    records = Records(folder / METRICS)
    environment = describe()
    write_json(folder / ENVIRONMENT, environment)
    events = records.read()
    if not any(e["event"] == "data" for e in events):
        records.append("data", about=plan.loaded.about, code=plan.code)
    began_with = next((e for e in events if e["event"] == "data"), {})
    about = began_with.get("about", plan.loaded.about)
    if about.get("sha256") != plan.loaded.about.get("sha256"):
        raise UserError(f"the data of run {str(folder)!r} has changed since it began")
    for name, digest in began_with.get("code", {}).items():
        if plan.code.get(name) != digest:
            raise UserError(
                f"the code of {name} has changed since run {str(folder)!r} began; start another run"
            )
    finished = {e["scheme"] for e in events if e["event"] == "result"}

    train = plan.config.train
    members = sum(len(e.points) for e in plan.entries) * train.models
    console.print(
        f"{counted(len(plan.entries), 'scheme')} × {counted(train.models, 'seed')}, "
        f"{counted(train.steps, 'update')} each, {counted(members, 'model')} on "
        f"{len(jax.devices())} {environment['device_kind']} device(s)\n"
        f"task {plan.config.task.name}: {about['source']}\nrun folder: {folder}",
        highlight=False,
        soft_wrap=True,
    )
    began = time.monotonic()
    programs = [plan.updates_and_tokens(entry) for entry in plan.entries]
    with full_disk_is_one_line(folder):
        with StopSignal() as stop, RunProgress(console, programs) as progress:
            inner = train.placement
            for entry, program in zip(plan.entries, programs, strict=True):
                if entry.label in finished:
                    progress.skip(*program, whole=True)
                    continue
                board = folder / "tensorboard" if tensorboard else None
                scheme_run = SchemeRun(plan, entry, folder, records, progress, stop, board)
                inner = scheme_run.run(inner)
        write_outputs(read_run(folder), console)
    console.print(
        f"done in {duration(time.monotonic() - began)}; report: {folder / 'report.html'}",
        highlight=False,
        soft_wrap=True,
    )
    return folder


class SchemeRun:
    """Training and scoring of one scheme, from wherever an earlier try left it."""

    def __init__(
        self,
        plan: Plan,
        entry: Entry,
        folder: Path,
        records: Records,
        progress: RunProgress,
        stop: StopSignal,
        board: Path | None = None,
    ):
        self.plan = plan
        self.entry = entry
        self.folder = folder
        self.records = records
        self.progress = progress
        self.stop = stop
        self.checkpoints = self.checkpoints_of(folder, entry)
        self.members = make_members(plan.config, entry)
        names = model_names(entry, list(plan.config.train.runs))
        self.scalars = None if board is None else Scalars(board, names)

    @staticmethod
    def checkpoints_of(folder: Path, entry: Entry) -> Checkpoints:
        return Checkpoints(folder / "checkpoints" / entry.slug)

    def program(self, placement: Placement) -> Program:
        train = self.plan.config.train
        return Program(
            model=Model(self.plan.model, self.entry.scheme),
            task=self.plan.config.task,
            loaded=self.plan.loaded,
            members=self.members,
            placement=placement,
            optimizer=self.plan.config.optimizer,
            steps=train.steps,
            batch_size=train.batch_size,
            log_every=train.log_every,
            skip_nonfinite=train.skip_nonfinite,
        )

    def run(self, inner) -> str:
        """Everything up to the `result` event; returns the placement used."""
        entry, config = self.entry, self.plan.config
        self.progress.begin()
        if inner == "measure":
            self.progress.phase(entry.label, "measuring placements")
            inner = measure(self.program, len(self.members["init_seed"]))
        program = self.program(place(len(self.members["init_seed"]), inner))
        state, step = self._restore(program)

        self.progress.phase(entry.label, "compiling")
        clock = time.monotonic()
        program.compile(state)
        compile_seconds = time.monotonic() - clock
        self._record("start", step=step, compile_seconds=compile_seconds)
        self.progress.skip(step, self.plan.tokens(entry, step))
        state, step = self._train(program, state, step)

        self.progress.phase(entry.label, "scoring")
        clock = time.monotonic()
        scores = program.score(state.params, self.plan.evaluation)
        score_seconds = time.monotonic() - clock
        final = program.take(state)
        self._record(
            "result",
            settings=to_dict(entry.scheme),
            uses=sorted(entry.scheme.uses),
            **_count_parameters(final.params),
            rows=result_rows(
                config, entry, self.plan.evaluation, scores, np.asarray(final.skipped)
            ),
            placement=program.placement.inner,
            devices=program.placement.mesh.size,
            compile_seconds=compile_seconds,
            score_seconds=score_seconds,
            memory_bytes=program.memory_bytes(),
            made_with=made_with(),
            **self._throughput(compile_seconds + score_seconds),
        )
        return inner

    def _record(self, event: str, **fields: Any) -> None:
        self.records.append(event, scheme=self.entry.label, **fields)
        if self.scalars is not None:
            self.scalars(event, fields)

    def _restore(self, program: Program) -> tuple[State, int]:
        for leftover in self.checkpoints.incomplete():
            self.progress.line(f"{leftover} is not a complete checkpoint; it is not read")
        steps = self.checkpoints.steps()
        if not steps:
            return program.init(), 0
        like = blank_state(program.model, program.optimizer, len(self.members["init_seed"]))
        return program.put(self.checkpoints.restore(steps[-1], like)), steps[-1]

    def _train(self, program: Program, state: State, step: int) -> tuple[State, int]:
        train = self.plan.config.train
        saved = step
        while step < train.steps:
            count = min(train.log_every, train.steps - step)
            clock = time.monotonic()
            state, log = program.advance(state, count)
            seconds = time.monotonic() - clock
            step += count
            self._record(
                "train",
                step=step,
                loss=log.loss.mean(axis=1),
                accuracy=log.accuracy.mean(axis=1),
                gradient_norm=log.gradient_norm.mean(axis=1),
                learning_rate=log.learning_rate[:, -1],
                seconds=seconds,
            )
            tokens = self.plan.tokens(self.entry, count)
            self.progress.trained(count, seconds, float(log.loss.mean()), tokens)
            due = step - saved >= train.checkpoint_every or step == train.steps
            if due or self.stop.asked:
                self.checkpoints.save(step, program.take(state))
                saved = step
            if self.stop.asked:
                raise Interrupted(self.folder)
        return state, step

    def _throughput(self, other_seconds: float) -> dict[str, float]:
        """From the log, so that it covers what ran before a resume."""
        train = self.plan.config.train
        events = [
            e
            for e in self.records.read()
            if e["event"] == "train" and e["scheme"] == self.entry.label
        ]
        seconds = sum(e["seconds"] for e in events)
        return {
            "tokens_per_second": self.plan.tokens(self.entry, train.steps) / seconds,
            "train_seconds": seconds,
            "total_seconds": seconds + other_seconds,
        }


def _count_parameters(params: dict[str, Any]) -> dict[str, int]:
    """Of one model; the first axis counts models."""
    sizes = {name: int(np.prod(a.shape[1:])) for name, a in params.items()}
    return {
        "parameters": sum(sizes.values()),
        "positional_parameters": sum(
            n for name, n in sizes.items() if name.startswith("position.")
        ),
    }


def result_rows(
    config: Config, entry: Entry, evaluation: Evaluation, scores, skipped: np.ndarray
) -> list[dict[str, Any]]:
    """What the models of one scheme scored, one row for each point of a sweep.

    Args:
      scores: as from `Program.score`, for all of the scheme's models.
      skipped: for each of them the updates left out.
    """
    nll, correct, defined = scores
    task, runs = config.task, config.train.runs
    inside = task.inside(evaluation)[:, None] & evaluation.scored
    rows = []
    for i, (label, point) in enumerate(zip(entry.rows, entry.points, strict=True)):
        models = range(i * len(runs), (i + 1) * len(runs))
        own = [task.measure(evaluation, nll[m], correct[m], defined) for m in models]
        rows.append(
            {
                "row": label,
                "point": point,
                "seeds": list(runs),
                "validation": [nll[m][inside].astype(np.float64).mean() for m in models],
                "scalars": {k: [m.scalars[k] for m in own] for k in own[0].scalars},
                "curves": {
                    k: {"x": x, "y": [m.curves[k][1] for m in own]}
                    for k, (x, _) in own[0].curves.items()
                },
                "reach": [m.reach._asdict() for m in own],
                "skipped": [skipped[m] for m in models],
            }
        )
    return rows


def load_model(
    folder: Path, label: str | None = None, seed: int | str | None = None
) -> tuple[CausalLM, Loaded]:
    """A trained model of a run, and its task's data with the tokenizer.

    Args:
      folder: the run folder.
      label: a scheme as the run's table names it, with the point of a sweep if there was one;
        None: the only one.
      seed: one of the run's seeds; None means the first.

    Raises:
      UserError: no such run, scheme or seed, several schemes and none named, or no complete
        checkpoint yet.
    """
    run = read_run(folder)
    entries = make_entries(run.config)
    found = {row: (e, i) for e in entries for i, row in enumerate(e.rows)}
    if label is None:
        if len(found) > 1:
            raise UserError(f"which scheme? this run has {', '.join(map(repr, found))}")
        (label,) = found
    if label not in found:
        raise UserError(f"no {label!r} in this run{suggest(label, found)}")
    entry, point = found[label]
    runs = list(run.config.train.runs)
    seed = runs[0] if seed is None else str(seed)
    if seed not in runs:
        raise UserError(f"no seed {seed} in this run; it has {', '.join(runs)}")
    loaded = run.config.task.load()
    config = run.config.model.resolve(run.config.task, loaded.vocab_size)
    settings = {k: v for k, v in entry.points[point].items() if k != "learning_rate"}
    model = Model(config, dataclasses.replace(entry.scheme, **settings))
    checkpoints = SchemeRun.checkpoints_of(folder, entry)
    if not checkpoints.steps():
        raise UserError(f"{label!r} has no complete checkpoint yet")
    like = blank_state(model, run.config.optimizer, len(entry.points) * len(runs))
    params = checkpoints.restore(checkpoints.steps()[-1], like).params
    row = point * len(runs) + runs.index(seed)
    return model.with_params(
        {name: jax.numpy.asarray(a[row]) for name, a in params.items()}
    ), loaded
