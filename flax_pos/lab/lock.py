"""One process at a time in a run folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from flax_pos.lab.errors import UserError, new_folder

try:
    import fcntl
except ImportError:  # Windows: nothing watches over the folder there
    fcntl = None

LOCK = ".lock"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing a run or grid folder, which is made if it is not there,
    until the block ends. The system lets go when a process dies, however it dies.

    Raises:
      UserError: another process is at work in it, or it cannot be made.
    """
    with new_folder(folder):
        file = (folder / LOCK).open("wb")
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"another process is at work in {str(folder)!r}; wait for it or stop it"
                ) from None
            except OSError:  # a file system without locks
                pass
        yield
