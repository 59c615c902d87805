"""Everything that decides a run, as one frozen dataclass: TOML file and command line alike."""

import dataclasses
import importlib
import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from flax_pos.lab import tomlio
from flax_pos.lab.errors import UserError
from flax_pos.lab.optimizer import OptimizerConfig
from flax_pos.lab.tasks import Task, get_task, list_tasks
from flax_pos.lab.tasks.text import Text
from flax_pos.nnx import ModelConfig
from flax_pos.scheme import list_schemes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings(ModelConfig):
    """The model that every scheme is trained in."""

    vocab_size: int = 0
    """Number of token ids; 0: as many as the data needs."""
    max_len: int = 0
    """Positions of bounded schemes such as learned; 0: the training length."""
    width: int = 64
    layers: int = 2
    heads: int = 4

    def __post_init__(self):
        pass  # checked by `resolve`, when all sizes are known

    def resolve(self, task: Task, needed: int) -> ModelConfig:
        """The model's config for a task whose ids need a vocabulary of `needed`.

        Raises:
          UserError: a vocabulary smaller than that, or sizes that do not fit each other.
        """
        if self.vocab_size and self.vocab_size < needed:
            raise UserError(
                f"vocabulary too small: model.vocab_size={self.vocab_size}, but the data of task "
                f"{task.name!r} needs {needed}; raise it, or leave it at 0 to have it follow"
            )
        fields: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["vocab_size"] = self.vocab_size or needed
        fields["max_len"] = self.max_len or task.train_length
        try:
            return ModelConfig(**fields)
        except ValueError as error:
            raise UserError(f"in [model]: {error}") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, on how much, how often."""

    steps: Annotated[int, tyro.conf.arg(aliases=("--steps",))] = 1000
    """Optimizer updates per model."""
    batch_size: int = 32
    """Sequences per update."""
    seeds: Annotated[int, tyro.conf.arg(aliases=("--seeds",))] = 4
    """Models per scheme, trained at once."""
    first_seed: int = 0
    """Seeds are first_seed, first_seed + 1, ..."""
    vary: Literal["both", "init", "data", "cross"] = "both"
    """What differs between seeds: initial weights, order of the data, or both; `cross`: every seed
    of the weights with each of `data_seeds` orders of the data. Batch t of a seed is the same for
    every scheme whatever this is."""
    data_seeds: int = 1
    """Orders of the data under `cross`."""
    log_every: int = 20
    """Updates per program call: between log lines, and for the smallest loss on Ctrl-C."""
    checkpoint_every: int = 200
    """Updates between checkpoints."""
    skip_nonfinite: bool = True
    """Leave weights and optimizer as they are where a gradient is not finite (always counted)."""
    placement: Literal["auto", "vmap", "map", "measure"] = "auto"
    """How seeds lie on the devices: `vmap` batches them, `map` runs them in turn; both spread over
    all devices. `auto`: map on CPU, vmap elsewhere; `measure`: the faster in a short trial."""

    def __post_init__(self):
        for name in ("steps", "batch_size", "seeds", "log_every", "checkpoint_every", "data_seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.first_seed < 0:
            raise ValueError(f"first_seed={self.first_seed} must not be negative")
        if self.data_seeds > 1 and self.vary != "cross":
            raise ValueError(f"data_seeds={self.data_seeds} needs vary='cross', got {self.vary!r}")

    @property
    def runs(self) -> dict[str, tuple[int, int]]:
        """Seeds of the initial weights and of the data for each model of a scheme, by name."""
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        if self.vary == "cross":
            data = range(self.first_seed, self.first_seed + self.data_seeds)
            return {f"{i}/{d}": (i, d) for d in data for i in seeds}
        fixed = self.first_seed
        return {
            str(s): (fixed if self.vary == "data" else s, fixed if self.vary == "init" else s)
            for s in seeds
        }

    @property
    def models(self) -> int:
        """Models of a scheme at one point of a sweep."""
        return len(self.runs)


def _sweep_from_text(args: Sequence[str]) -> dict[str, tuple[float, ...]]:
    sweep = {}
    for arg in args:
        name, _, values = arg.partition("=")
        try:
            sweep[name] = tuple(float(v) for v in values.split(","))
        except ValueError:
            raise ValueError(f"{arg!r} is not NAME=NUMBER,NUMBER...") from None
    return sweep


Sweep = Annotated[
    dict[str, tuple[float, ...]],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=V,V...",
        instance_from_str=_sweep_from_text,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda sweep: [
            f"{name}={','.join(map(str, values))}" for name, values in sweep.items()
        ],
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A run: schemes, a task, a model, and how to train it."""

    name: str = "quick"
    """Name of the run; part of its folder's name."""
    schemes: tuple[str, ...] = ("none", "sinusoidal", "learned", "rope", "alibi", "t5")
    """What to compare: names as `flax-pos schemes` lists them, settings in brackets where they
    differ from the defaults: `rope "rope(theta=500.0)"`."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--import",))] = ()
    """Python files or modules of your own that register schemes or tasks."""
    sweep: Sweep = dataclasses.field(default_factory=dict)
    """Numbers to vary inside one program: `learning_rate=0.001,0.003`, or any float field of a
    scheme, as in `theta=100,10000` (schemes without that field run once)."""
    task: Task = dataclasses.field(default_factory=Text)
    """What to train on."""
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)

    def __post_init__(self):
        if not self.schemes:
            raise ValueError("schemes is empty; name at least one")
        twice = sorted({s for s in self.schemes if self.schemes.count(s) > 1})
        if twice:
            raise ValueError(f"scheme {twice[0]!r} is listed twice")
        for name, values in self.sweep.items():
            if not values or len(set(values)) < len(values):
                raise ValueError(f"sweep of {name!r} needs different numbers, got {list(values)}")
            if not all(math.isfinite(v) for v in values):
                raise ValueError(f"sweep of {name!r} needs finite numbers, got {list(values)}")


def config_from_table(table: dict[str, Any]) -> Config:
    """A config from the tables of a TOML file; what is not named keeps its default.

    Raises:
      UserError: an unknown key, task or scheme file, or a value of the wrong type.
    """
    table = dict(table)
    if "tasks" in table:
        raise UserError("this config is a grid of tasks: run it with the command `grid`")
    task_table = table.pop("task", {})
    if not isinstance(task_table, dict):
        raise UserError(f"config key 'task' is a table with a name, got {task_table!r}")
    task_table = dict(task_table)
    config = tomlio.update(Config(), table)
    load_imports(config.imports)
    task = get_task(str(task_table.pop("name", Text.name)))()
    return dataclasses.replace(config, task=tomlio.update(task, task_table, "task."))


def absolute(config: Config) -> Config:
    """The config with every file named from the root, so that a run can be gone on with from any
    folder."""
    return dataclasses.replace(
        config, task=absolute_task(config.task), imports=absolute_imports(config.imports)
    )


def absolute_task(task: Task) -> Task:
    """The task with the paths in its settings made absolute."""

    def rooted(value: Any) -> Any:
        if isinstance(value, Path):
            return value.absolute()
        if isinstance(value, tuple):
            return tuple(rooted(v) for v in value)
        return value

    fields = {f.name: rooted(getattr(task, f.name)) for f in dataclasses.fields(task) if f.init}
    return dataclasses.replace(task, **fields)


def absolute_imports(names: Sequence[str]) -> tuple[str, ...]:
    """Files among `names` made absolute; modules as they are."""
    return tuple(str(Path(n).absolute()) if n.endswith(".py") else n for n in names)


def load_config(path: Path) -> Config:
    """The config that a TOML file holds; errors as in `config_from_table`."""
    return config_from_table(tomlio.read(path))


def load_imports(names: Sequence[str]) -> None:
    """Imports the user's files and modules, which register what they define.

    Raises:
      UserError: no such file or module, it fails, or it registers nothing.
    """
    for name in names:
        before = list_schemes(), list_tasks()
        path = Path(name)
        if path.suffix != ".py":
            if name in sys.modules:
                continue
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                raise UserError(f"cannot import {name!r}: {error}") from None
            except (Exception, SystemExit) as error:
                raise _fails_on_import(name, error) from error
            _check_registered(name, before)
            continue
        if not path.is_file():
            raise UserError(f"no file {name!r} to import")
        if path.stem in sys.modules:
            known = getattr(sys.modules[path.stem], "__file__", None)
            if known is None or Path(known).resolve() != path.resolve():
                raise UserError(
                    f"cannot import {name!r}: a module named {path.stem!r} exists already; "
                    "rename the file"
                )
            continue
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[path.stem]
            raise _fails_on_import(name, error) from error
        _check_registered(name, before)


def _fails_on_import(name: str, error: BaseException) -> UserError:
    return UserError(f"{name} fails on import: {type(error).__name__}: {error}")


def _check_registered(name: str, before: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    if (list_schemes(), list_tasks()) == before:
        sys.modules.pop(Path(name).stem, None)
        raise UserError(
            f"{name} registers neither a scheme nor a task: put @register(NAME) above the class of "
            "a scheme, @register_task(NAME) above that of a task"
        )


def find_preset(name: str) -> Path:
    """The file of a config named by path, or by the bare name of one that comes with the package.

    Raises:
      UserError: neither exists.
    """
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return path
    package = Path(__file__).parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    raise UserError(f"no config {name!r}: give a .toml file or one of {', '.join(list_presets())}")


def list_presets() -> tuple[str, ...]:
    """Names of the configs that come with the package."""
    package = Path(__file__).parents[1]
    folders = (package / "configs", package.parent / "configs")
    return tuple(sorted({p.stem for folder in folders for p in folder.glob("*.toml")}))
