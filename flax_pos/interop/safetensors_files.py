"""Tensors in safetensors files, one or many: headers are checked here before the `safetensors`
library maps a byte of them, and nothing is held in memory that was not asked for.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flax_pos.interop.errors import CheckpointError, require
from flax_pos.interop.jsonfile import MAX_BYTES, parse_json, read_json, write_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_RANK = 8
_PLAIN = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)
"""Names of files in the same directory, on any system."""
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class TensorInfo(NamedTuple):
    """What a header says about one tensor."""

    dtype: str
    """As safetensors spells it: "F32", "BF16", ..."""
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the end of the header."""
    stop: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """What a safetensors file holds, once it is sure that it can hold it.

    Raises:
      CheckpointError: the header is truncated, too large, not JSON, or at odds with itself or
        with the size of the file: unknown dtypes, impossible shapes, offsets that overlap, leave
        gaps, or end elsewhere than the file does.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise CheckpointError(f"{path} is cut short: {size} bytes, no header")
            length = int.from_bytes(prefix, "little")
            if length > min(MAX_BYTES, size - 8):
                raise CheckpointError(
                    f"{path} claims a header of {length} bytes, but the file has {size} bytes and "
                    f"headers end at {MAX_BYTES}"
                )
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    entries = parse_json(text, f"the header of {path}")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must map names to strings")
    header = {name: _parse_entry(path, name, entry) for name, entry in entries.items()}
    end = 0
    for name, info in sorted(header.items(), key=lambda item: item[1][2:]):
        if info.start != end:
            raise CheckpointError(f"{path}: tensor {name!r} starts at {info.start}, not at {end}")
        end = info.stop
    if end != size - 8 - length:
        raise CheckpointError(
            f"{path}: the header describes {end} bytes of tensors, the file has {size - 8 - length}"
        )
    return header


def _parse_entry(path: Path, name: str, entry: Any) -> TensorInfo:
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BYTES:
        raise CheckpointError(f"{where} has dtype {dtype!r}; readable are {', '.join(_BYTES)}")
    if not _is_sizes(shape) or len(shape) > MAX_RANK:
        raise CheckpointError(f"{where} has an impossible shape {str(shape)[:80]}")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has impossible data_offsets {str(offsets)[:80]}")
    start, stop = offsets
    if stop - start != math.prod(shape) * _BYTES[dtype]:
        raise CheckpointError(
            f"{where} of shape {tuple(shape)} and dtype {dtype} needs "
            f"{math.prod(shape) * _BYTES[dtype]} bytes, but is given {stop - start}"
        )
    return TensorInfo(dtype, tuple(shape), start, stop)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


class SafetensorsFiles(Mapping[str, np.ndarray]):
    """The tensors of one or several safetensors files by name, read when asked for.

    Args:
      path: a `.safetensors` file, an index (`*.safetensors.index.json`), or a directory with
        either of them (the index first, as libraries do that write both).

    Raises:
      CheckpointError: see `read_header`; also an index that names files outside its directory,
        tensors that are not where it says, or fewer than the files hold.
    """

    def __init__(self, path: str | os.PathLike):
        path = Path(path)
        if path.is_dir():
            names = [name for name in (INDEX, SINGLE) if (path / name).exists()]
            if not names:
                raise CheckpointError(f"{path} holds neither {SINGLE} nor {INDEX}")
            path = path / names[0]
        indexed = path.name.endswith(".index.json")
        where = _read_index(path) if indexed else dict.fromkeys(read_header(path), path)
        headers = {file: read_header(file) for file in sorted(set(where.values()))}
        for name, file in where.items():
            if name not in headers[file]:
                raise CheckpointError(f"{path} places {name!r} in {file.name}, but it is not there")
        for file, header in headers.items():
            extra = next((name for name in header if where.get(name) != file), None)
            if extra is not None:
                raise CheckpointError(f"{file} holds {extra!r}, which {path.name} places elsewhere")
        self.path = path
        self.info = {name: headers[file][name] for name, file in where.items()}
        self._where = where
        self._open: dict[Path, Any] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        file = self._where[name]
        if file not in self._open:
            safetensors = require("safetensors", "reading safetensors files")
            try:
                self._open[file] = safetensors.safe_open(file, framework="numpy")
            except safetensors.SafetensorError as error:
                raise CheckpointError(f"{file}: {error}") from error
        return self._open[file].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def _read_index(path: Path) -> dict[str, Path]:
    where = read_json(path).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise CheckpointError(f"{path} has no weight_map from tensor names to file names")
    for name, file in where.items():
        if not isinstance(file, str) or not _PLAIN.fullmatch(file):
            raise CheckpointError(
                f"{path} places {name!r} in {file!r}; only files beside the index may be named"
            )
    return {name: path.parent / file for name, file in where.items()}


def write_safetensors(
    directory: str | os.PathLike,
    tensors: Mapping[str, np.ndarray],
    *,
    max_shard_bytes: int = 5 * 10**9,
) -> None:
    """Writes tensors as `model.safetensors`, or as several such files and an index.

    A file appears under its name only when it is complete, and the index comes last.

    Args:
      directory: an existing one.
      tensors: in any order; equal names of an earlier save are replaced.
      max_shard_bytes: no file holds more than this, save for a single tensor that does.
    """
    directory = Path(directory)
    shards: list[dict[str, np.ndarray]] = [{}]
    held = 0
    for name, tensor in tensors.items():
        if shards[-1] and held + tensor.nbytes > max_shard_bytes:
            shards.append({})
            held = 0
        shards[-1][name] = np.asarray(tensor, order="C")
        held += tensor.nbytes
    if len(shards) == 1:
        _write(directory / SINGLE, shards[0])
        (directory / INDEX).unlink(missing_ok=True)
        return
    where = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write(directory / file, shard)
        where.update(dict.fromkeys(shard, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": where})


def _write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    numpy_api = require("safetensors.numpy", "writing safetensors files")
    part = path.with_name(f".{path.name}.part")
    numpy_api.save_file(tensors, part, metadata={"format": "pt"})
    part.replace(path)


__all__ = [
    "INDEX",
    "SINGLE",
    "SafetensorsFiles",
    "TensorInfo",
    "read_header",
    "write_safetensors",
]
