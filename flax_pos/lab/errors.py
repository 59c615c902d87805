"""What goes wrong because of what the user gave, told in one line."""

import contextlib
import difflib
import errno
import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)


class UserError(ValueError):
    """Bad input: shown as one line, exit code 2, no traceback."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'rope'?` where something known is close to `name`, else what is known."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def optional(module: str, extra: str, what: str) -> Any:
    """A module of a package that comes with an extra only.

    Raises:
      UserError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UserError(
            f"{what} needs the package {package}; install the extra: flax-pos[{extra}]"
        ) from None


@contextlib.contextmanager
def new_folder(folder: Path):
    """Makes a folder for what is then written into it.

    Raises:
      UserError: it cannot be made, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"cannot write to the folder {str(folder)!r}: {error.strerror}") from None


@contextlib.contextmanager
def full_disk_is_one_line(folder: Path):
    """Turns "no space left", from whatever library writes, into a message that says how to go on.
    What was finished before is whole: lines and checkpoints count once they are written."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number not in FULL and os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise UserError(
            f"no space left on the disk of {str(folder)!r}; make some and go on with --resume "
            f"{folder}: everything finished is kept"
        ) from None
