"""The commands behind `flax-pos`: arguments in, text out."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from flax_pos.arguments import parse
from flax_pos.lab.accounting import PRESETS, Account, account
from flax_pos.lab.config import (
    Config,
    find_preset,
    list_presets,
    load_config,
    load_imports,
)
from flax_pos.lab.errors import UserError, suggest
from flax_pos.lab.members import parse_scheme
from flax_pos.lab.scalars import check_tensorboard
from flax_pos.lab.tasks import get_task
from flax_pos.nnx import ModelConfig
from flax_pos.scheme import HOOKS, list_schemes
from flax_pos.terminal import printable


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train one small language model per position scheme, several seeds at once, and report how
    the schemes compare: inside the training length and past it.

    Without arguments: six schemes on the documentation inside CPython, in a few minutes on two
    CPU cores.
    """

    config: str | None = None
    """A TOML file, or the name of a config that comes with the package. What it sets, the options
    below can override."""
    resume: Path | None = None
    """A run folder to go on with, after Ctrl-C or a kill. Its settings are kept."""
    out: Path | None = None
    """Folder for the run; default: a new one under runs/."""
    task_name: str | None = None
    """Another task than the config's, with its defaults: text, copy, or one of your own."""
    tensorboard: bool = False
    """Also write scalars as TensorBoard events while models train (the extra `tensorboard`)."""
    settings: Annotated[Config, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Config)


def train(argv: Sequence[str], prog: str, console: Console) -> Path:
    """The command `train`; returns the run folder.

    Raises:
      UserError: bad input.
      Interrupted: stopped by the user.
    """
    from flax_pos.lab.run import resume, start

    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    before.add_argument("--config")
    before.add_argument("--name")
    before.add_argument("--resume", type=Path)
    before.add_argument("--task-name")
    before.add_argument("--tensorboard", action="store_true")
    before.add_argument("--import", "--imports", dest="imports", nargs="*", default=[])
    try:
        known, others = before.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from None
    if known.tensorboard:
        check_tensorboard()
    if known.resume is not None and "-h" not in argv and "--help" not in argv:
        if others or known.config or known.name or known.task_name or known.imports:
            raise UserError("--resume keeps the settings of the run; give no other option with it")
        return resume(known.resume, console, tensorboard=known.tensorboard)

    load_imports(known.imports)
    config = quick = load_config(find_preset(known.config)) if known.config else default_config()
    if known.task_name:
        config = dataclasses.replace(config, task=get_task(known.task_name)())
    command = parse(TrainCommand, argv, prog, TrainCommand(settings=config))
    settings = command.settings
    load_imports(settings.imports)
    if not (known.config or known.name) and settings != quick:  # the user's own, not the preset
        settings = dataclasses.replace(settings, name=settings.task.name)
    return start(settings, command.out, console, tensorboard=command.tensorboard)


def default_config() -> Config:
    """The `quick` config where it is at hand, else the defaults."""
    return load_config(find_preset("quick")) if "quick" in list_presets() else Config()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParamsCommand:
    """Print embedding, head and positional parameters of a model, and their bytes."""

    model: Annotated[str, tyro.conf.Positional] = "quick"
    """A known model, a config that comes with the package, or a TOML file (a run's, or one whose
    [model] table names vocab_size)."""
    schemes: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--scheme",))] = ()
    """Other position schemes than the model's."""


def params(argv: Sequence[str], prog: str, console: Console) -> None:
    """The command `params`."""
    command = parse(ParamsCommand, argv, prog)
    names = (*PRESETS, *list_presets())
    if command.model in PRESETS:
        config, scheme = PRESETS[command.model]
        cases = [(config, s) for s in command.schemes or (scheme,)]
    else:
        if command.model not in names and not Path(command.model).suffix:
            raise UserError(f"unknown model {command.model!r}{suggest(command.model, names)}")
        settings = load_config(find_preset(command.model))
        needed = settings.model.vocab_size or settings.task.load().vocab_size
        config = settings.model.resolve(settings.task, needed)
        cases = [(config, s) for s in command.schemes or settings.schemes]
    _print_sizes(config, command.model, console)
    for config, label in cases:
        _print_account(config, label, _account(config, label), console, len(cases) == 1)


def _account(config: ModelConfig, label: str) -> Account:
    try:
        return account(config, parse_scheme(label))
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"scheme {label!r} does not fit this model: {error}") from error


def _print_sizes(config: ModelConfig, name: str, console: Console) -> None:
    dims = config.dims
    console.print(
        f"{name}: V = {config.vocab_size:,}, D = {dims.width:,}, {dims.layers} layers, "
        f"{dims.heads} query and {dims.kv_heads} key/value heads of {dims.head_dim}, "
        f"{'tied' if config.tied else 'untied'} head, {config.param_dtype}",
        highlight=False,
        soft_wrap=True,
    )


def _print_account(config, label, found: Account, console: Console, details: bool) -> None:
    if not details:
        console.print(
            f"{label}: {found.total.parameters:,} parameters, "
            f"{found.positional.parameters:,} of them positional",
            highlight=False,
            soft_wrap=True,
        )
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "parameters", "", "bytes"):
        table.add_column(title, justify="right" if title else "left")
    parts = {
        "embedding": found.embedding,
        "head": found.head,
        f"positions ({label})": found.positional,
        "attention, MLP, norms": found.rest,
        "total": found.total,
    }
    for name, part in parts.items():
        table.add_row(name, f"{part.parameters:,}", billions(part.parameters), size(part.bytes))
    console.print(table)
    saving = f"{billions(found.tying.parameters)} parameters, {size(found.tying.bytes)}"
    console.print(
        f"tying {'saves' if config.tied else 'would save'} {saving}",
        highlight=False,
        soft_wrap=True,
    )


def billions(count: int) -> str:
    """
    >>> billions(525336576), billions(16384)
    ('0.53 B', '0.02 M')
    """
    return f"{count / 1e9:.2f} B" if count >= 5e7 else f"{count / 1e6:.2f} M"


def size(count: int) -> str:
    """
    >>> size(1050673152), size(65536)
    ('1.05 GB', '65.5 kB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchemesCommand:
    """List all registered position schemes."""

    markdown: bool = False
    """As a Markdown table."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--import",))] = ()
    """Python files or modules of your own that register schemes."""


REFERENCE = ModelConfig(vocab_size=256, width=768, layers=12, heads=12, max_len=1024)
"""The model of which `schemes` counts positional parameters (GPT-2's sizes)."""


def schemes(argv: Sequence[str], prog: str, console: Console) -> None:
    """The command `schemes`."""
    command = parse(SchemesCommand, argv, prog)
    load_imports(command.imports)
    rows = scheme_rows()
    if command.markdown:
        console.print(markdown_schemes(rows), highlight=False, markup=False, soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in HEADINGS:
        right = title == "parameters"
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    # A file has no width to keep to: identifiers stay whole there.
    if not console.is_terminal:
        console.width = max(console.width, 140)
    console.print(table)
    console.print(PARAMETERS_NOTE, style="dim", soft_wrap=True)


HEADINGS = ("scheme", "hooks", "claims", "parameters", "source")
PARAMETERS_NOTE = (
    f"parameters: of a model with {REFERENCE.layers} layers, width {REFERENCE.width}, "
    f"{REFERENCE.heads} heads and {REFERENCE.max_len} positions; schemes with their defaults"
)


def scheme_rows() -> list[tuple[str, ...]]:
    """One row for each registered scheme, under `HEADINGS`."""
    rows = []
    for name in list_schemes():
        scheme = parse_scheme(name)
        claims = [
            "relative" if scheme.relative else "absolute",
            "unbounded" if scheme.unbounded else "bounded",
            *(["causal only"] if scheme.causal_only else []),
            *(["depends on length"] if scheme.depends_on_length else []),
        ]
        hooks = [h for h in HOOKS if h in scheme.uses]
        count = account(REFERENCE, scheme).positional.parameters
        rows.append(
            (name, ", ".join(hooks) or "none", ", ".join(claims), f"{count:,}", scheme.paper)
        )
    return rows


def markdown_schemes(rows: Sequence[tuple[str, ...]]) -> str:
    """The rows as a Markdown table: what the README holds."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "| --- | --- | --- | ---: | --- |"]
    for name, hooks, claims, count, paper in rows:
        marked = ", ".join(f"`{h}`" for h in hooks.split(", ")) if hooks != "none" else "none"
        lines.append(f"| `{name}` | {marked} | {claims} | {count} | {paper} |")
    return "\n".join([*lines, "", f"{PARAMETERS_NOTE}."])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleCommand:
    """Continue a text with a trained model of a run."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder."""
    scheme: str | None = None
    """A scheme of the run, as its table names it; default: the only one."""
    prompt: str = "The "
    """Text to continue."""
    tokens: int = 200
    """Tokens to add."""
    temperature: float = 0.8
    """0: always the most likely token."""
    seed: str | None = None
    """Which of the trained seeds; default: the first."""
    draw: int = 0
    """Seed of the drawing."""


def sample(argv: Sequence[str], prog: str, console: Console) -> None:
    """The command `sample`."""
    import jax
    import numpy as np

    from flax_pos.lab.run import load_model
    from flax_pos.nnx import generate

    command = parse(SampleCommand, argv, prog)
    model, loaded = load_model(command.run, command.scheme, command.seed)
    if loaded.tokenizer is None:
        raise UserError("this run's task has no text to continue")
    ids = loaded.tokenizer.encode(command.prompt)
    if not ids:
        raise UserError("--prompt is empty")
    try:
        out = generate(
            model,
            jax.numpy.asarray([ids], np.int32),
            max_new_tokens=command.tokens,
            temperature=command.temperature,
            key=jax.random.key(command.draw),
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    text = loaded.tokenizer.decode([int(i) for i in np.asarray(out)[0]])
    print(printable(text), file=console.file)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportCommand:
    """Write a run's or a grid's tables, figures and report again."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder."""


def report(argv: Sequence[str], prog: str, console: Console) -> None:
    """The command `report`."""
    from flax_pos.lab.grid.report import write_grid_outputs
    from flax_pos.lab.grid.results import GRID
    from flax_pos.lab.report import write_outputs
    from flax_pos.lab.results import read_run

    command = parse(ReportCommand, argv, prog)
    if (command.run / GRID).is_file():
        write_grid_outputs(command.run, console)
    else:
        write_outputs(read_run(command.run), console)
    console.print(f"report: {command.run / 'report.html'}", highlight=False, soft_wrap=True)


__all__ = [
    "default_config",
    "markdown_schemes",
    "params",
    "report",
    "sample",
    "scheme_rows",
    "schemes",
    "train",
]
