"""The command itself: arguments in, text and a picture out."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from flax_pos.arguments import parse
from flax_pos.lab.errors import UserError
from flax_pos.lab.rope.figure import save
from flax_pos.lab.rope.pairs import DYNAMIC, Case, read_cases, treatment


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeCommand:
    """Print and draw what a config's rotary embedding does: each pair's wavelength, its turns
    within the trained length, how the config and the usual scalings treat it, and which pairs
    meet angles at a given length that training did not show."""

    config: Annotated[Path, tyro.conf.Positional]
    """A Hugging Face `config.json`, or the folder that holds it."""
    length: int | None = None
    """Length of the text; default: the config's longest."""
    trained: int | None = None
    """Length that the unscaled frequencies were trained for; default: the original length that
    the scaling names, else the config's longest."""
    out: Path = Path("rope.png")
    """Where the picture goes."""


def rope(argv: Sequence[str], prog: str, console: Console) -> Path:
    """The command `rope`; returns the picture's path.

    Raises:
      UserError: bad input.
    """
    command = parse(RopeCommand, argv, prog)
    cases = read_cases(command.config, command.length, command.trained)
    for case in cases:
        _print_case(case, console)
    try:
        save(cases, command.out)
    except OSError as error:
        raise UserError(f"cannot write {command.out}: {error.strerror}") from error
    console.print(f"picture: {command.out}", highlight=False, soft_wrap=True)
    return command.out


def _print_case(case: Case, console: Console) -> None:
    spec, own, plain = case.spec, case.own, case.plain
    others = case.others()
    layers = "all layers" if case.kind is None else f"{case.kind} layers"
    console.print(
        f"{layers}: {spec.scaling.rope_type}, theta {spec.theta:g}, {2 * len(own)} of "
        f"{spec.head_dim} channels, {spec.layout}; trained to {case.trained:,}, "
        f"looked at from {case.length:,}; cos and sin x {case.factor:.6g}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for name in ("pair", "wavelength", "turns", spec.scaling.rope_type, *others):
        table.add_column(name, justify="right", no_wrap=True)
    assumed = {name: DYNAMIC if name == "dynamic" else case.stretch for name in others}
    factors = ", ".join(f"{name} {factor:.4g}" for name, factor in assumed.items())
    outside = case.leaves(own)
    for i, w in enumerate(plain):
        cells = [
            treatment(w, changed[i]) + (" *" if case.leaves(changed)[i] else "")
            for changed in (own, *others.values())
        ]
        wavelength = "-" if w == 0 else f"{2 * np.pi / w:,.{0 if w < 0.006 else 1}f}"
        table.add_row(str(i), wavelength, f"{case.turns[i]:.4g}", *cells)
    # A narrow terminal wraps lines; rich would cut figures short.
    natural = console.measure(table, options=console.options.update(width=10_000)).maximum
    whole = Console(file=console.file, width=max(natural, console.width))
    whole.print(table)
    console.print(
        f"turns: within the trained length, unscaled. Laws: what became of the frequency"
        f"{f', with the factor {factors}' if factors else ''}.\n"
        f"* leaves the trained range at length {case.length:,}: {_ranges(outside)} as configured",
        highlight=False,
        soft_wrap=True,
    )


def _ranges(flags: np.ndarray) -> str:
    """`no pair`, or the pairs that are True as `pairs 3-7, 9`."""
    found = np.flatnonzero(flags)
    if not len(found):
        return "no pair"
    runs = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1)
    parts = [f"{r[0]}" if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs]
    return f"pair{'s' if len(found) > 1 else ''} {', '.join(parts)}"
