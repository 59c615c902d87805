"""Scalars for TensorBoard while models train; needs the extra `tensorboard`."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax_pos.lab.errors import optional
from flax_pos.lab.members import Entry

TRAINED = ("loss", "accuracy", "gradient_norm", "learning_rate")


def check_tensorboard() -> None:
    """Raises UserError where events cannot be written."""
    _module("event_file_writer")


def _module(name: str) -> Any:
    return optional(f"tensorboardX.{name}", "tensorboard", "--tensorboard")


class Scalars:
    """Writes what the records of a scheme hold as events, one TensorBoard run for each model.

    After a resume a new events file goes on where the last one stopped; TensorBoard joins them.
    """

    def __init__(self, folder: Path, models: Sequence[str]):
        """
        Args:
          folder: for all models of one scheme.
          models: their names, in the order of the records' values.
        """
        self._folders = [folder / name.replace("/", "-") for name in models]
        self._writers: list[Any] = []

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        """Takes a line of the records; the result is the last one, other lines are left out."""
        if event == "train":
            for name in TRAINED:
                for writer, value in zip(self._open(), fields[name], strict=True):
                    _write(writer, f"training/{name}", float(value), fields["step"])
        if event == "result":
            models = [
                {key: values[i] for key, values in row["scalars"].items()}
                for row in fields["rows"]
                for i in range(len(row["seeds"]))
            ]
            for writer, scalars in zip(self._open(), models, strict=True):
                for key, value in scalars.items():
                    if value is not None:
                        _write(writer, f"results/{key}", float(value), 0)
        for writer in self._writers:
            writer.close() if event == "result" else writer.flush()

    def _open(self) -> list[Any]:
        if not self._writers:
            # Not its SummaryWriter: that has a thread and a queue for each file, and what it has
            # flushed need not be on the disk.
            files = _module("event_file_writer")
            for folder in self._folders:
                folder.mkdir(parents=True, exist_ok=True)
                self._writers.append(files.EventsWriter(str(folder / "events")))
        return self._writers


def _write(writer: Any, tag: str, value: float, step: int) -> None:
    kinds = _module("proto.summary_pb2")
    summary = kinds.Summary(value=[kinds.Summary.Value(tag=tag, simple_value=value)])
    event = _module("proto.event_pb2").Event(wall_time=time.time(), step=step, summary=summary)
    writer.write_event(event)


def model_names(entry: Entry, seeds: Sequence[str]) -> list[str]:
    """The models of a scheme, by point of a sweep and seed, as the records order them."""
    return [f"{row} seed {seed}" for row in entry.rows for seed in seeds]
