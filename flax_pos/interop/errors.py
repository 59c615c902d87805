"""What goes wrong with foreign files, and with packages that are not installed."""

import importlib
from types import ModuleType


class CheckpointError(ValueError):
    """A file that cannot be read as what it claims to be, or that asks for something unknown."""


def require(package: str, purpose: str, *, extra: str = "weights") -> ModuleType:
    """An optional dependency.

    Raises:
      ImportError: it is not installed; the message says what would install it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs the package {package.split('.')[0]!r}: "
            f"pip install 'flax-pos[{extra}]'"
        ) from error


__all__ = ["CheckpointError", "require"]
