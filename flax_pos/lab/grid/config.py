"""A grid's settings: one TOML file."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from flax_pos.lab import tomlio
from flax_pos.lab.config import (
    ModelSettings,
    TrainConfig,
    absolute_imports,
    absolute_task,
    load_imports,
)
from flax_pos.lab.errors import UserError
from flax_pos.lab.optimizer import OptimizerConfig
from flax_pos.lab.tasks import Task, get_task

Control = Literal["none", "shuffled", "window", "last"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extension:
    """Another scheme for a trained model, without further training."""

    of: str
    """The scheme that was trained, as `schemes` names it."""
    scheme: str
    """The scheme it is tested with; it can have no parameters of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridConfig:
    """Everything that decides a grid."""

    name: str = "grid"
    schemes: tuple[str, ...] = ()
    """What to compare, as in a run: names, with settings in brackets."""
    controls: tuple[Control, ...] = ()
    """What keeps the comparison honest: `none` (no positions), `shuffled` (RoPE whose positions
    are drawn at random), `window` (RoPE that sees the last L tokens in each layer), `last` (the
    trained RoPE model, given the last L tokens only); L is the training length."""
    imports: tuple[str, ...] = ()
    """Python files or modules of your own that register schemes or tasks; relative paths start
    where the command is run."""
    learning_rates: tuple[float, ...] = ()
    """Tried for every scheme; the one with the lowest loss on new sequences like those of training
    is taken. None: the optimizer's."""
    match_parameters: bool = False
    """Widen the MLP of schemes with fewer parameters, so that all models are as large as the
    largest."""
    tasks: Mapping[str, Task] = dataclasses.field(default_factory=dict)
    models: Mapping[str, ModelSettings] = dataclasses.field(default_factory=dict)
    extensions: Mapping[str, Extension] = dataclasses.field(default_factory=dict)
    steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Updates on tasks that need another number of them than `train.steps`."""
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)

    def train_of(self, task: str) -> TrainConfig:
        """How models are trained on one of the tasks."""
        return dataclasses.replace(self.train, steps=self.steps.get(task, self.train.steps))

    def absolute(self) -> "GridConfig":
        """Every file named from the root, so that the grid can be gone on with from any folder."""
        tasks = {label: absolute_task(task) for label, task in self.tasks.items()}
        return dataclasses.replace(self, tasks=tasks, imports=absolute_imports(self.imports))

    def __post_init__(self):
        for name in ("schemes", "learning_rates", "controls"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name}={list(values)} names one twice")
        for rate in self.learning_rates:
            dataclasses.replace(self.optimizer, learning_rate=rate)
        for label, steps in self.steps.items():
            if self.tasks and label not in self.tasks:
                raise ValueError(f"steps names the task {label!r}, which this grid does not have")
            if type(steps) is not int or steps < 1:
                raise ValueError(f"steps of {label!r} must be a whole number of at least 1")
        for label, extension in self.extensions.items():
            if self.schemes and extension.of not in self.schemes:
                raise ValueError(
                    f"extension {label!r} is of {extension.of!r}, which is not one of the schemes"
                )
        if "last" in self.controls and "rope" not in self.schemes:
            raise ValueError("the control 'last' reads the trained 'rope'; add it to the schemes")


def grid_from_table(table: Mapping[str, Any]) -> GridConfig:
    """A grid from the tables of a TOML file.

    Raises:
      UserError: an unknown key, scheme, task or value; nothing to compare, or nothing to do it on.
    """
    table = dict(table)
    steps = table.pop("steps", {})
    if not isinstance(steps, Mapping):
        raise UserError("config key 'steps' is a table [steps] by task; train.steps is for all")
    tasks, models, extensions = (
        _tables(table.pop(name, {}), name) for name in ("tasks", "models", "extensions")
    )
    grid = tomlio.update(GridConfig(), table)
    load_imports(grid.imports)
    made = {}
    for label, settings in tasks.items():
        task = get_task(str(settings.pop("name", label)))()
        made[label] = tomlio.update(task, settings, f"tasks.{label}.")
    if not grid.schemes or not made:
        raise UserError("a grid needs at least one of schemes and one table [tasks.NAME]")
    try:
        return dataclasses.replace(
            grid,
            tasks=made,
            steps=dict(steps),
            models={
                label: tomlio.update(ModelSettings(), settings, f"models.{label}.")
                for label, settings in (models or {"model": {}}).items()
            },
            extensions={
                label: _extension(settings, f"extensions.{label}")
                for label, settings in extensions.items()
            },
        )
    except ValueError as error:
        raise error if isinstance(error, UserError) else UserError(str(error)) from None


def _tables(value: Any, name: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        raise UserError(f"config key {name!r} is made of tables [{name}.LABEL], got {value!r}")
    return {label: dict(settings) for label, settings in value.items()}


def _extension(settings: dict[str, Any], where: str) -> Extension:
    if sorted(settings) != ["of", "scheme"] or not all(
        isinstance(v, str) for v in settings.values()
    ):
        raise UserError(f'[{where}] needs of = "SCHEME" and scheme = "SCHEME", got {settings}')
    return Extension(**settings)


def load_grid(path: Path) -> GridConfig:
    """The grid that a TOML file holds; errors as in `grid_from_table`."""
    return grid_from_table(tomlio.read(path))


def is_grid(path: Path) -> bool:
    """Whether a TOML file describes a grid rather than a run."""
    return "tasks" in tomlio.read(path)
