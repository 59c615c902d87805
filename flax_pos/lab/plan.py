"""What a run will do, read and checked before anything is computed."""

from typing import NamedTuple

import jax
import numpy as np

from flax_pos.lab.config import Config
from flax_pos.lab.environment import cpu_cores
from flax_pos.lab.errors import UserError
from flax_pos.lab.members import Entry, make_entries
from flax_pos.lab.own import code_of, told_in_one_line
from flax_pos.lab.placement import prepare_cpu
from flax_pos.lab.program import Model
from flax_pos.lab.tasks import Evaluation, Loaded
from flax_pos.lab.tasks.check import load_checked
from flax_pos.nnx import ModelConfig
from flax_pos.scheme import Scheme


class Plan(NamedTuple):
    """A config whose parts have been read and found to fit each other."""

    config: Config
    entries: tuple[Entry, ...]
    loaded: Loaded
    model: ModelConfig
    evaluation: Evaluation

    @property
    def code(self) -> dict[str, str]:
        """`code_of` its task and schemes."""
        return code_of(self.config.task, *(entry.scheme for entry in self.entries))

    def tokens(self, entry: Entry, updates: int) -> int:
        """How many all models of a scheme are trained on in so many updates."""
        train = self.config.train
        models = len(entry.points) * train.models
        return updates * models * train.batch_size * self.config.task.train_length

    def updates_and_tokens(self, entry: Entry) -> tuple[int, int]:
        """All updates of a scheme, and `tokens` of them."""
        updates = self.config.train.steps
        return updates, self.tokens(entry, updates)


def make_plan(config: Config) -> Plan:
    """Reads the data and checks everything that can be checked without computing.

    Sets JAX up for CPU, so it comes before anything is computed.

    Raises:
      UserError: what is wrong, in one line.
    """
    entries = make_entries(config)
    prepare_cpu(max(len(e.points) for e in entries) * config.train.models, cpu_cores())
    loaded, evaluation = load_checked(config.task, config.train.batch_size)
    model = config.model.resolve(config.task, loaded.vocab_size)
    plan = Plan(config, entries, loaded, model, evaluation)
    for entry in entries:
        try_out(plan, entry)
    return plan


def try_out(plan: Plan, entry: Entry) -> None:
    """Traces one forward of one model.

    Raises:
      UserError: the scheme does not fit the model.
    """
    try:
        _trace_forward(plan, entry.scheme, entry.scheme)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"scheme {entry.label!r} does not fit this model: {error}") from error


def try_extension(plan: Plan, entry: Entry, label: str, scheme: Scheme) -> None:
    """Traces a forward of a trained model with another scheme.

    Raises:
      UserError: the scheme does not fit what was trained.
    """
    try:
        _trace_forward(plan, entry.scheme, scheme)
    except UserError:
        raise
    except (KeyError, ValueError) as error:
        raise UserError(
            f"extension {label!r} does not fit a trained {entry.label!r}: {error}"
        ) from error


def _trace_forward(plan: Plan, trained: Scheme, scheme: Scheme) -> None:
    def forward():
        params = Model(plan.model, trained).init(jax.random.key(0))
        ids = jax.numpy.zeros((1, plan.config.task.train_length), np.int32)
        return Model(plan.model, scheme).with_params(params)(ids, length=ids.shape[1])

    with told_in_one_line(scheme):
        jax.eval_shape(forward)
