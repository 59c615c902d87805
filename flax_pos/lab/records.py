"""`metrics.jsonl`: one JSON object a line, only ever appended to."""

import json
import math
import os
from pathlib import Path
from typing import Any


class Records:
    """The append-only log of a run.

    A line counts once its newline is there: what a kill leaves of a last line is never read, and
    appending to such a file starts a new line first.
    """

    def __init__(self, path: Path):
        self.path = path

    def append(self, event: str, **fields: Any) -> None:
        """Adds one line and puts it on the disk before returning."""
        line = json.dumps({"event": event, **_plain(fields)}, allow_nan=False) + "\n"
        with self.path.open("ab") as file:
            if file.tell() and not self._ends_in_newline():
                line = "\n" + line
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def _ends_in_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    def read(self) -> list[dict[str, Any]]:
        """All whole lines, in order; a scheme's steps that were trained again after a resume are
        given once, as they were last."""
        if not self.path.exists():
            return []
        events: list[dict[str, Any]] = []
        for line in self.path.read_bytes().split(b"\n")[:-1]:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if not isinstance(event, dict):
                continue
            if event.get("event") == "start":  # from this step on, earlier lines are superseded
                events = [
                    e
                    for e in events
                    if not (
                        e.get("event") == "train"
                        and e["scheme"] == event["scheme"]
                        and e["step"] > event["step"]
                    )
                ]
            events.append(event)
        return events


def _plain(value: Any) -> Any:
    """As JSON holds it; what is not finite becomes its name, so that it stays visible."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    return value


def write_json(path: Path, value: Any) -> None:
    """Writes plain data as a JSON file that any reader takes: what is not finite is a string."""
    write_atomic(path, json.dumps(_plain(value), indent=1, allow_nan=False) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Writes a file that is either not there (or as it was) or whole."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
