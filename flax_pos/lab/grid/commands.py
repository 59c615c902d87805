"""The commands `grid` and `compare`."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from flax_pos.arguments import parse
from flax_pos.lab.config import find_preset
from flax_pos.lab.errors import UserError
from flax_pos.lab.grid.compare import compare_folders, to_markdown
from flax_pos.lab.grid.config import load_grid
from flax_pos.lab.scalars import check_tensorboard


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridCommand:
    """Train every scheme on every task of a grid, pick learning rates, check published claims, and
    write a report. Cells that the folder holds already are not run again."""

    config: Annotated[str | None, tyro.conf.Positional] = None
    """A TOML file with tables [tasks.NAME], or the name of one that comes with the package."""
    out: Path | None = None
    """Folder of the grid; default: runs/NAME."""
    resume: Path | None = None
    """Go on with a grid that was stopped, by the settings in its folder."""
    tensorboard: bool = False
    """Also write scalars as TensorBoard events while models train (the extra `tensorboard`)."""
    budget: str | None = None
    """Time it may take, such as 20m or 1h30m: learning rates, then seeds are dropped to fit."""


def grid(argv: Sequence[str], prog: str, console: Console) -> Path:
    """The command `grid`; returns the grid folder.

    Raises:
      UserError: bad input.
      Interrupted: stopped by the user.
    """
    from flax_pos.lab.grid.execute import resume_grid, start_grid

    command = parse(GridCommand, argv, prog)
    if command.tensorboard:
        check_tensorboard()
    if command.resume is not None:
        if command.config or command.out or command.budget:
            raise UserError("--resume keeps the settings of the grid; give nothing else with it")
        return resume_grid(command.resume, console, tensorboard=command.tensorboard)
    if command.config is None:
        raise UserError("which grid? give a TOML file, or one that comes with the package")
    settings = load_grid(find_preset(command.config))
    folder = command.out or Path("runs") / settings.name
    budget = None if command.budget is None else seconds(command.budget)
    return start_grid(settings, folder, console, budget=budget, tensorboard=command.tensorboard)


def seconds(text: str) -> float:
    """
    >>> seconds("20m"), seconds("1h30m"), seconds("45s")
    (1200.0, 5400.0, 45.0)
    """
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text.strip())
    if not text.strip() or found is None:
        raise UserError(f"--budget {text!r} is no time; write it as 20m, 1h30m or 45s")
    hours, minutes, rest = (int(n or 0) for n in found.groups())
    return float(3600 * hours + 60 * minutes + rest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Set the rows that two runs or grids share side by side, seed by seed where they agree."""

    first: Annotated[Path, tyro.conf.Positional]
    """A run or grid folder."""
    second: Annotated[Path, tyro.conf.Positional]
    """Another one."""


def compare(argv: Sequence[str], prog: str, console: Console) -> None:
    """The command `compare`."""
    command = parse(CompareCommand, argv, prog)
    text = to_markdown(compare_folders(command.first, command.second))
    console.print(text, highlight=False, markup=False, soft_wrap=True)
