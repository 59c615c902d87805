"""Schemes and tasks that users bring: what their files hold, and where in them something fails."""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flax_pos.lab.errors import UserError
from flax_pos.scheme.contract import HookError

PACKAGE = "flax_pos"


def code_of(*things: Any) -> dict[str, str]:
    """What decides the numbers beside settings: the files that hold the classes of these schemes
    and tasks, and of the schemes inside them.

    Only those from outside the package, whose own numbers go with its version. What such a file
    imports is not looked at.

    Returns:
      a digest of each file by the class's name; none where Python cannot find the file.
    """
    return {f"{kind.__module__}.{kind.__qualname__}": digest(file) for kind, file in _own(*things)}


@functools.cache
def digest(file: Path) -> str:
    """Of what the file holds when it is first asked for: what this process has imported, also
    where the file is edited while it runs."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _own(*things: Any) -> Iterator[tuple[type, Path]]:
    for thing in things:
        if isinstance(thing, tuple):
            yield from _own(*thing)
        if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
            continue
        kind = type(thing)
        if kind.__module__.partition(".")[0] != PACKAGE:
            with contextlib.suppress(TypeError, OSError):  # made in a shell
                yield kind, Path(inspect.getfile(kind))
        yield from _own(*(getattr(thing, f.name) for f in dataclasses.fields(thing)))


@contextlib.contextmanager
def told_in_one_line(*things: Any):
    """Tells an error in a user's scheme or task in one line: what a hook returned wrong, or the
    place in the file of one of `things`; other errors pass.

    Raises:
      UserError: what failed and where.
    """
    try:
        yield
    except UserError:
        raise
    except HookError as error:
        raise UserError(str(error)) from error
    except (Exception, SystemExit) as error:
        files = {str(file) for _, file in _own(*things)}
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
        if not frames:
            raise
        first = (str(error).strip() or "no message").splitlines()[0]
        raise UserError(
            f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name}: "
            f"{type(error).__name__}: {first}"
        ) from error
