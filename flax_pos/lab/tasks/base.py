"""The task interface: data on the device, sequences to be scored, and what the scores mean."""

import dataclasses
import importlib
import importlib.metadata
import pkgutil
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import jax
import numpy as np

from flax_pos.lab.errors import UserError, suggest

ENTRY_POINT_GROUP = "flax_pos.tasks"
_REGISTRY: dict[str, type["Task"]] = {}


SEEDS = "Thin: every seed; bold: their interquartile mean."
"""How captions of curves end."""


class Batch(NamedTuple):
    """One training batch, made on the device."""

    ids: jax.Array
    """int32 `B T`."""
    labels: jax.Array
    """int32 `B T`: the token after each."""
    weights: jax.Array
    """float32 `B T`: 1 where the label counts, else 0."""
    segments: jax.Array | None = None
    """int32 `B T`: documents that do not see each other, from 1 on; None: one in each row."""


class Loaded(NamedTuple):
    """A task with its data read."""

    vocab_size: int
    """Smallest vocabulary that holds every id."""
    data: dict[str, np.ndarray]
    """Arrays that `Task.batch` reads on the device; empty for procedural tasks."""
    about: dict[str, Any]
    """Facts for the report: sources, sizes, tokenizer."""
    tokenizer: Any = None
    """Has `encode(text) -> ids` and `decode(ids) -> text`; None where ids are not text."""
    host: dict[str, np.ndarray] | None = None
    """Arrays too large for the device, such as memory-mapped files: only `Task.feed` and
    `Task.evaluation` read them."""


class Evaluation(NamedTuple):
    """Sequences to be scored, right-padded to one length."""

    ids: np.ndarray
    """int32 `N T`."""
    labels: np.ndarray
    """int32 `N T`."""
    scored: np.ndarray
    """bool `N T`: the targets that count."""
    length: np.ndarray
    """int32 `N`: tokens in the sequence before the padding."""


class Reach(NamedTuple):
    """How far a model carries past the length it was trained on."""

    length: int
    """Largest length, in the task's unit, up to which nothing breaks; 0: not fitted inside it."""
    open: bool
    """True where the largest length tried was reached."""


class Measures(NamedTuple):
    """What one trained model scored. A value is None where the scheme is undefined there."""

    scalars: dict[str, float | None]
    curves: dict[str, tuple[list[float], list[float | None]]]
    reach: Reach


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """How a scalar is shown in the table."""

    key: str
    group: str
    """Columns of one group stand together under this heading."""
    title: str
    help: str
    digits: int = 3
    better: Literal["low", "high"] = "low"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """How a curve is shown as a figure."""

    key: str
    title: str
    x: str
    y: str
    caption: str
    trained_to: float
    """The range from the left edge to here is shaded."""
    ticks: tuple[float, ...] = ()
    y_range: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeatMap:
    """How several curves over the same few places are shown together, one panel for each row of
    a table."""

    title: str
    x: str
    y: str
    keys: tuple[str, ...]
    """The curves from the bottom up, whose values lie in 0 .. 1."""
    x_labels: tuple[str, ...]
    y_labels: tuple[str, ...]
    caption: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A task. Concrete ones are frozen dataclasses with defaults for every field, entered by
    `register_task`, so that `get_task(name)()` always works."""

    name: ClassVar[str] = ""
    unit: ClassVar[str] = "tokens"
    """What `Reach.length` counts."""

    @property
    def train_length(self) -> int:
        """Tokens per training sequence: what the model is built for."""
        raise NotImplementedError

    @property
    def reach_at_training(self) -> int:
        """The trained length in the unit of `Reach.length`."""
        return self.train_length

    def load(self) -> Loaded:
        """Reads and checks the data.

        Raises:
          UserError: it cannot be used; the message says why.
        """
        raise NotImplementedError

    def batch(self, data: dict[str, jax.Array], key: jax.Array, batch_size: int) -> Batch:
        """A training batch: a pure function of `key`, run on the device."""
        raise NotImplementedError

    def feed(
        self, loaded: Loaded, data_seed: int, first: int, count: int, batch_size: int
    ) -> dict[str, np.ndarray]:
        """What `batch` is given beside `data`, for data that outgrows the device.

        Args:
          data_seed: which order of the data.
          first, count: the updates `first .. first + count - 1`. The same numbers mean the same
            batches whatever ran before, so that schemes are compared on the same data and a
            stopped run goes on with it.

        Returns:
          arrays whose first axis counts updates; empty where all data lies on the device.
        """
        return {}

    def evaluation(self, loaded: Loaded) -> Evaluation:
        """The sequences that every scheme is scored on."""
        raise NotImplementedError

    def inside(self, evaluation: Evaluation) -> np.ndarray:
        """bool `N`: the sequences that are like those of training. Learning rates are chosen by
        the loss on them and by nothing else."""
        return evaluation.length <= self.train_length

    def long_text(self, loaded: Loaded) -> np.ndarray | None:
        """Ids of one text that is not trained on, for losses in windows of `tested_lengths`; None
        where sequences stand alone."""
        return None

    @property
    def tested_lengths(self) -> tuple[int, ...]:
        """Rising lengths in tokens, the trained one first, for tasks with a long text."""
        return ()

    def measure(
        self, evaluation: Evaluation, nll: np.ndarray, correct: np.ndarray, defined: np.ndarray
    ) -> Measures:
        """What the scores of one model mean.

        Args:
          evaluation: the result of `evaluation`.
          nll: float32 `N T`, negative log likelihood of each label.
          correct: bool `N T`, whether the most likely token is the label.
          defined: bool `N`, False for sequences longer than the scheme is defined for; their
            `nll` and `correct` mean nothing.
        """
        raise NotImplementedError

    @property
    def columns(self) -> tuple[Column, ...]:
        """The first is of sequences like those of training: by it a model has fitted or not."""
        raise NotImplementedError

    @property
    def headline(self) -> str:
        """Key of the column that tells best how a model does past its training length."""
        return self.columns[-1].key

    @property
    def curves(self) -> tuple[Curve, ...]:
        raise NotImplementedError

    @property
    def heat_maps(self) -> tuple[HeatMap, ...]:
        """Curves that are shown together as maps rather than as figures of their own."""
        return ()


TaskType = TypeVar("TaskType", bound=type[Task])


def register_task(name: str):
    """Class decorator: enters a task under `name`.

    Raises:
      ValueError: the name is taken by another class.
      TypeError: the class is not a frozen dataclass derived from `Task`.
    """

    def add(cls: TaskType) -> TaskType:
        if not (isinstance(cls, type) and issubclass(cls, Task)):
            raise TypeError(f"register_task({name!r}) is for subclasses of Task, got {cls!r}")
        params = vars(cls).get("__dataclass_params__")
        if params is None or not params.frozen:
            raise TypeError(f"{cls.__name__}: put @dataclass(frozen=True, kw_only=True) under it")
        taken = _REGISTRY.get(name)
        if taken is not None and (taken.__module__, taken.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise ValueError(f"task {name!r} is already registered by {taken.__module__}")
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return add


def list_tasks() -> tuple[str, ...]:
    """Names of all registered tasks, sorted."""
    package = importlib.import_module("flax_pos.lab.tasks")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        entry.load()
    return tuple(sorted(_REGISTRY))


def get_task(name: str) -> type[Task]:
    """The task class registered under `name`.

    Raises:
      UserError: no such task; the message suggests one.
    """
    known = list_tasks()
    if name not in _REGISTRY:
        raise UserError(f"unknown task {name!r}{suggest(name, known)}")
    return _REGISTRY[name]
