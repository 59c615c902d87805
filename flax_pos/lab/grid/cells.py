"""A grid taken apart: a cell for each scheme, task and model, named by what decides its numbers."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

from flax_pos.lab import tomlio
from flax_pos.lab.accounting import account
from flax_pos.lab.config import Config
from flax_pos.lab.errors import UserError
from flax_pos.lab.grid.config import Extension, GridConfig
from flax_pos.lab.members import parse_scheme
from flax_pos.lab.own import code_of
from flax_pos.lab.tasks import Loaded
from flax_pos.scheme import to_dict

FORMAT = 2
"""Raised when the meaning of stored results changes, so that old ones are not taken for new."""

Kind = Literal["scheme", "control", "extension"]


class Cell(NamedTuple):
    """One scheme trained on one task in one model: all learning rates and seeds, one program."""

    task: str
    model: str
    label: str
    """What the scheme is called in tables and figures."""
    kind: Kind
    config: Config
    """A run of this scheme alone."""
    data: str | None = None
    """Digest of the task's data, where it is read from files."""

    @property
    def scheme(self) -> str:
        return self.config.schemes[0]

    @property
    def key(self) -> str:
        """A digest of everything that decides the numbers, and of nothing else: the settings, what
        the data holds, and the files of schemes and tasks from outside the package."""
        named = dataclasses.replace(self.config, name="cell", imports=())
        scheme = parse_scheme(self.scheme)
        code = code_of(self.config.task, scheme)
        decides = [FORMAT, tomlio.dumps(named), to_dict(scheme), self.data, code]
        text = json.dumps(decides, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_cells(grid: GridConfig, loaded: Mapping[str, Loaded]) -> tuple[Cell, ...]:
    """The cells of a grid, those of one task and model together.

    Args:
      grid: the settings.
      loaded: each task's data, which decides the vocabulary.

    Raises:
      UserError: an unknown scheme or setting, or a model that does not fit.
    """
    cells = []
    for task_label, task in grid.tasks.items():
        data = loaded[task_label].about.get("sha256")
        for model_label, model in grid.models.items():
            named: dict[str, tuple[str, Kind]] = {s: (s, "scheme") for s in grid.schemes}
            for control in grid.controls:
                if control != "last":
                    scheme = _control(control, task.train_length)
                    named.setdefault(scheme, (f"control: {control}", "control"))
            configs = {
                scheme: Config(
                    name=grid.name,
                    schemes=(scheme,),
                    imports=grid.imports,
                    sweep={"learning_rate": grid.learning_rates} if grid.learning_rates else {},
                    task=task,
                    model=model,
                    train=grid.train_of(task_label),
                    optimizer=grid.optimizer,
                )
                for scheme in named
            }
            if grid.match_parameters:
                configs = _matched(configs, loaded[task_label].vocab_size)
            cells += [
                Cell(task_label, model_label, *named[scheme], config, data)
                for scheme, config in configs.items()
            ]
    return tuple(cells)


def _control(name: str, length: int) -> str:
    if name == "shuffled":
        import flax_pos.lab.controls  # noqa: F401 - registers the scheme
    return {"none": "none", "shuffled": "shuffled", "window": f"window(window={length})"}[name]


def _matched(configs: dict[str, Config], vocab_size: int) -> dict[str, Config]:
    """MLPs widened until all models have, to half a column, as many parameters as the largest."""
    sizes = {}
    for scheme, config in configs.items():
        resolved = config.model.resolve(config.task, vocab_size)
        sizes[scheme] = account(resolved, parse_scheme(scheme)).total.parameters, resolved
    largest = max(count for count, _ in sizes.values())
    made = {}
    for scheme, config in configs.items():
        count, resolved = sizes[scheme]
        wider = resolved.replace(mlp_width=resolved.hidden_width + 1)
        column = account(wider, parse_scheme(scheme)).total.parameters - count
        width = resolved.hidden_width + round((largest - count) / column)
        model = dataclasses.replace(config.model, mlp_width=width)
        made[scheme] = dataclasses.replace(config, model=model)
    return made


def extensions_of(grid: GridConfig, cell: Cell) -> dict[str, Extension]:
    """What a trained cell is tested with beside its own scheme, by label."""
    return {label: e for label, e in grid.extensions.items() if e.of == cell.scheme}


def check_extensions(grid: GridConfig) -> None:
    """Raises UserError for an extension whose scheme does not exist."""
    for label, extension in grid.extensions.items():
        try:
            parse_scheme(extension.scheme)
        except UserError as error:
            raise UserError(f"extension {label!r}: {error}") from None
