"""The commands behind `flax-pos` that work on pretrained models: arguments in, text out."""

import dataclasses
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table

from flax_pos.arguments import parse
from flax_pos.interop import extension as extending
from flax_pos.interop.artefact import export_model
from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.export_check import check_export
from flax_pos.interop.pretrained import load_pretrained
from flax_pos.interop.quantize import quantize_weights
from flax_pos.interop.tokenizer import end_tokens, load_tokenizer
from flax_pos.nnx import CausalLM, stream
from flax_pos.terminal import printable


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateCommand:
    """Continue a text with a pretrained model, token by token as they come."""

    model: Annotated[Path, tyro.conf.Positional]
    """A Hugging Face directory or a GGUF file."""
    prompt: Annotated[str | None, tyro.conf.Positional] = None
    """The text to continue; default: what standard input holds."""
    chat: bool = False
    """The text is what a user says: the model answers it, in the form of its chat template."""
    system: str | None = None
    """With --chat: what the model is told first."""
    max_new_tokens: int = 64
    temperature: float = 0.0
    """0 takes the best token; otherwise tokens are drawn."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    """For drawing."""
    dtype: str | None = None
    """Of the parameters and of all products; default: as stored, quantised ones in float32."""
    ignore_end: bool = False
    """Go on after an end token."""


def generate(argv: Sequence[str], prog: str, console: Console) -> None:
    """The command `generate`: the continuation on the console, figures on standard error.

    Raises:
      CheckpointError: bad input.
    """
    command = parse(GenerateCommand, argv, prog)
    if command.max_new_tokens < 1:
        raise CheckpointError(f"--max-new-tokens must be at least 1, got {command.max_new_tokens}")
    if command.system is not None and not command.chat:
        raise CheckpointError("--system needs --chat")
    tokenizer = load_tokenizer(command.model)
    prompt = sys.stdin.read() if command.prompt is None else command.prompt
    ids = _chat(command, tokenizer, prompt) if command.chat else tokenizer.encode(prompt).ids
    if not ids:
        raise CheckpointError("the prompt holds no token")
    model = load_pretrained(command.model, dtype=command.dtype, param_dtype=command.dtype)
    choice: dict[str, Any] = {
        name: getattr(command, name) for name in ("top_k", "top_p", "min_p", "temperature")
    }
    if command.temperature > 0:
        choice["key"] = jax.random.key(command.seed)
    ends = () if command.ignore_end else end_tokens(command.model)
    try:
        steps = stream(
            model,
            jnp.asarray(ids)[None],
            max_new_tokens=command.max_new_tokens,
            eos_id=ends or None,
            **choice,
        )
    except ValueError as error:  # settings out of range, or a prompt that is too long
        raise CheckpointError(str(error)) from error
    times = [time.perf_counter()]
    write = lambda text: console.file.write(printable(text))
    if not command.chat:
        write(prompt)
    for piece in text_of(tokenizer, ids, timed(steps, times), ends):
        write(piece)
        console.file.flush()
    write("\n")
    print(speed(len(ids), times), file=sys.stderr)


def _chat(command: GenerateCommand, tokenizer, prompt: str) -> list[int]:
    first = [] if command.system is None else [{"role": "system", "content": command.system}]
    messages = [*first, {"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


def timed(steps, times: list[float]) -> Iterator[int]:
    """The tokens of a batch of one row; when each came is noted in `times`."""
    for (token,) in steps:
        times.append(time.perf_counter())
        yield int(token)


def text_of(
    tokenizer, prompt: Sequence[int], tokens: Iterator[int], ends: Sequence[int] = ()
) -> Iterator[str]:
    """What tokens add to the text of a prompt, as soon as it is certain: bytes of a character that
    is not whole yet are held back."""
    ids = list(prompt)
    shown = tokenizer.decode(ids)
    for token in tokens:
        if token in ends:
            break
        ids.append(token)
        text = tokenizer.decode(ids)
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
    yield tokenizer.decode(ids)[len(shown) :]


def speed(prompt: int, times: Sequence[float]) -> str:
    """One line about `times`: the start, then when each token came. The first two steps compile."""
    new = len(times) - 1
    line = f"{prompt} + {new} tokens"
    if new > 2:
        rate = (new - 2) / (times[-1] - times[2])
        line += f", {rate:.1f} tokens/s after {times[2] - times[0]:.1f} s for loading programs"
    return line


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtendCommand:
    """Let a pretrained model with RoPE read further than it was trained to, by several ways of
    scaling its positions, and show its loss by position. Nothing is trained."""

    model: Annotated[Path, tyro.conf.Positional]
    """A Hugging Face directory or a GGUF file."""
    text: Path
    """The text to read (UTF-8)."""
    lengths: str = "4096,8192"
    """Tokens to read at once, separated by commas."""
    scaling: str = "none,linear,ntk,dynamic,yarn"
    """Ways to scale, separated by commas; also llama3, rerope, leaky_rerope, self_extend, string,
    dual_chunk, and drop, which takes the positions away."""
    windows: int = 1
    """Pieces of the text to average over."""
    original: int | None = None
    """What the model was trained to read; default: what its config says."""
    factor: float | None = None
    """Of the scaling; default: length / original."""
    figure: Path | None = None
    """Where to draw loss by position (.png, .svg or .pdf)."""


def extend(argv: Sequence[str], prog: str, console: Console) -> None:
    """The command `extend`.

    Raises:
      CheckpointError: bad input.
    """
    command = parse(ExtendCommand, argv, prog)
    try:
        lengths = [int(length) for length in command.lengths.split(",")]
    except ValueError:
        raise CheckpointError(f"--lengths must be whole numbers, got {command.lengths!r}") from None
    try:
        text = command.text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read {command.text}: {error}") from error
    ids = load_tokenizer(command.model).encode(text).ids
    model = load_pretrained(command.model, scan_layers=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("length", "scaling", "factor", "windows", "loss", "within", "beyond"):
        table.add_column(title, justify="left" if title == "scaling" else "right")

    def add(found: extending.Extension) -> None:
        losses = (found.mean, found.within, found.beyond)
        table.add_row(
            str(found.length),
            found.scaling,
            f"{found.factor:g}",
            str(found.windows),
            *("" if math.isnan(loss) else f"{loss:.4f}" for loss in losses),
        )

    try:
        with Live(table, console=console, transient=True):
            found = extending.extend(
                model,
                ids,
                lengths=lengths,
                scalings=command.scaling.split(","),
                windows=command.windows,
                original=command.original,
                factor=command.factor,
                report=add,
            )
        if command.figure is not None:
            extending.draw(found, command.figure)
    except ValueError as error:  # lengths, scalings and texts that do not fit
        raise CheckpointError(str(error)) from error
    console.print(table)
    console.print(
        f"Loss in nats per token, over all positions, within the first {found[0].original} and "
        "beyond them; windows follow one another and do not overlap.",
        highlight=False,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Write a pretrained model as programs for other processes, which need nothing but jax and
    flatbuffers to run them: `python DIRECTORY/run.py IDS`."""

    model: Annotated[Path, tyro.conf.Positional]
    """A Hugging Face directory or a GGUF file."""
    directory: Annotated[Path, tyro.conf.Positional]
    """Where to; files of the same names are replaced."""
    platforms: str = "cpu,cuda,tpu"
    """What the programs are to run on, separated by commas."""
    dtype: str | None = None
    """Of the parameters and of all products; default: as stored, quantised ones in float32."""
    quantize: Literal["int8", "int4"] | None = None
    """Round the matrices of the blocks (extra `quantize`)."""
    group: int | None = None
    """With --quantize: inputs that share a scale; default: 32 for int4, for int8 all of an output
    channel."""


def export(argv: Sequence[str], prog: str, console: Console) -> None:
    """The command `export`; what was written is compared with its source where it can run.

    Raises:
      CheckpointError: bad input, or an artefact that is not its source.
    """
    command = parse(ExportCommand, argv, prog)
    if command.directory.exists() and not command.directory.is_dir():
        raise CheckpointError(f"{command.directory} is there and is no directory")
    platforms = command.platforms.split(",")
    unknown = set(platforms) - {"cpu", "cuda", "rocm", "tpu"}
    if unknown:
        raise CheckpointError(f"--platforms: {unknown.pop()!r} is none of cpu, cuda, rocm, tpu")
    if command.group is not None and (command.quantize is None or command.group < 1):
        raise CheckpointError("--group needs --quantize, and must be at least 1")
    model = load_pretrained(command.model, dtype=command.dtype, param_dtype=command.dtype)
    if command.quantize is not None:
        model = _quantized(model, command.quantize, command.group)
    try:
        export_model(model, command.directory, platforms=platforms)
    except OSError as error:
        raise CheckpointError(f"cannot write {command.directory}: {error.strerror}") from error
    if jax.default_backend() in platforms:
        found = check_export(command.directory, model)
        if not found:
            raise CheckpointError(f"{command.directory}: {found.finding}")
        console.print(f"{command.directory}: {found.finding}", highlight=False, soft_wrap=True)


def _quantized(model: CausalLM, kind: Literal["int8", "int4"], group: int | None) -> CausalLM:
    try:
        if kind == "int8":
            return quantize_weights(model, 8, group=group)
        return quantize_weights(model, 4, group=group or 32)
    except (ImportError, ValueError) as error:
        raise CheckpointError(f"--quantize: {error}") from error


__all__ = ["export", "extend", "generate"]
