"""The commands behind `flax-pos` that work on pretrained models: arguments in, text out."""

import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console

from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.pretrained import load_pretrained
from flax_pos.interop.tokenizer import end_tokens, load_tokenizer
from flax_pos.nnx import stream


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateCommand:
    """Continue a text with a pretrained model, token by token as they come."""

    model: Annotated[Path, tyro.conf.Positional]
    """A Hugging Face directory or a GGUF file."""
    prompt: Annotated[str | None, tyro.conf.Positional] = None
    """The text to continue; default: what standard input holds."""
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
    command = tyro.cli(GenerateCommand, args=list(argv), prog=prog)
    if command.max_new_tokens < 1:
        raise CheckpointError(f"--max-new-tokens must be at least 1, got {command.max_new_tokens}")
    tokenizer = load_tokenizer(command.model)
    prompt = sys.stdin.read() if command.prompt is None else command.prompt
    ids = tokenizer.encode(prompt).ids
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
    write = console.file.write
    write(prompt)
    for piece in text_of(tokenizer, ids, timed(steps, times), ends):
        write(piece)
        console.file.flush()
    write("\n")
    print(speed(len(ids), times), file=sys.stderr)


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


__all__ = ["generate"]
