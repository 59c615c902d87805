"""Checkpoints that are either whole or not there."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

COMPLETE = "complete.json"


class Checkpoints:
    """The checkpoints of one scheme, a folder for each, named by updates done.

    The state is written by Orbax into a folder with another name, then a file that marks it as
    complete, then the folder is renamed. What a kill leaves behind is never taken for a
    checkpoint.
    """

    def __init__(self, folder: Path):
        self.folder = folder.absolute()

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, rising."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if self._is_complete(p))

    def incomplete(self) -> list[Path]:
        """What looks like a checkpoint but is not complete."""
        if not self.folder.is_dir():
            return []
        return sorted(p for p in self.folder.iterdir() if not self._is_complete(p))

    @staticmethod
    def _is_complete(path: Path) -> bool:
        if not path.name.isdigit():
            return False
        try:
            return json.loads((path / COMPLETE).read_text())["step"] == int(path.name)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def save(self, step: int, state: Any) -> None:
        """Writes the state after `step` updates and removes older checkpoints."""
        import orbax.checkpoint as ocp

        older = self.steps()
        target = self.folder / str(step)
        partial = self.folder / f"{step}.partial"
        for leftover in (*self.incomplete(), *([target] if step in older else [])):
            shutil.rmtree(leftover)
        partial.mkdir(parents=True)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(partial / "state", _host(state))
        with (partial / COMPLETE).open("w") as file:
            json.dump({"step": step}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(target)
        for old in older:
            if old != step:
                shutil.rmtree(self.folder / str(old))

    def restore(self, step: int, like: Any) -> Any:
        """The state saved at `step`, as numpy arrays in the structure of `like`."""
        import orbax.checkpoint as ocp

        empty = jax.tree.map(lambda a: np.empty(a.shape, a.dtype), like)
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(self.folder / str(step) / "state", empty)


def _host(state: Any) -> Any:
    return jax.tree.map(np.asarray, state)
