"""Command lines parsed into dataclasses, mistakes told in one line."""

import contextlib
import io
import re
from collections.abc import Sequence
from typing import TypeVar

import tyro

T = TypeVar("T")


class UsageError(ValueError):
    """Options that cannot be understood; one line."""


def parse(kind: type[T], argv: Sequence[str], prog: str, default: T | None = None) -> T:
    """The dataclass `kind` from a command line; `--help` prints and exits.

    Raises:
      UsageError: an unknown option, or a value that does not fit or that `kind` refuses.
    """
    told = io.StringIO()
    start = tyro.MISSING_NONPROP if default is None else default
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(kind, args=list(argv), prog=prog, default=start)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(_one_line(told.getvalue())) from None
    except ValueError as error:  # tyro words those of nested dataclasses only
        raise UsageError(" ".join(str(error).split())) from None


def _one_line(box: str) -> str:
    """The message of a framed error, with the option that was probably meant."""
    blocks: list[list[str]] = [[]]
    for row in box.splitlines():
        row = row.strip("│| ")
        if re.match("[╭╰]|[─-]{4}", row):
            blocks.append([])
        elif row:
            blocks[-1].append(row)
    # The title stands before the first rule, or in it.
    text = " ".join(blocks[min(1, len(blocks) - 1)]).replace("settings.", "")
    for block in blocks:
        if block and block[0] == "Perhaps you meant:":
            options = [word for word in block[1].split() if word.startswith("--")]
            text += f"; did you mean {options[-1].strip(',')}?"
    return text or "bad options"
