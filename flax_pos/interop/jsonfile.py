"""JSON and other text from strangers: bounded size, no duplicate keys, one kind of error."""

import json
from pathlib import Path
from typing import Any

from flax_pos.interop.errors import CheckpointError

MAX_BYTES = 16 * 2**20
"""The largest JSON text that is read; indices of models with a thousand shards are far smaller."""


def read_json(path: Path, *, limit: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      CheckpointError: it is missing, larger than `limit`, not UTF-8, not JSON, not an object, or
        names a key twice.
    """
    return parse_json(_read(path, limit), str(path))


def read_text(path: Path, limit: int) -> str:
    """The UTF-8 text of a file of at most `limit` bytes.

    Raises:
      CheckpointError: it is missing, larger, or not UTF-8.
    """
    try:
        return _read(path, limit).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: {error}") from error


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(limit + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    if len(text) > limit:
        raise CheckpointError(f"{path} has more than {limit} bytes; a real one is far smaller")
    return text


def parse_json(text: bytes, source: str) -> dict[str, Any]:
    """The JSON object in `text`; `source` names it in errors."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{source} must hold a JSON object, got {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = {}
    for name, value in pairs:
        if name in out:
            raise ValueError(f"the key {name!r} occurs twice")
        out[name] = value
    return out


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes an object; the file appears under its name only when it is complete."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


__all__ = ["MAX_BYTES", "parse_json", "read_json", "read_text", "write_json"]
