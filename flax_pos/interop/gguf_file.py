"""GGUF files: a bounded reader of the header, and tensors dequantised when asked for.

The header is walked here rather than by the `gguf` package, whose reader trusts lengths (a lying
one keeps it busy for ever) and takes seconds for a vocabulary; the block formats are its own.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from flax_pos.interop.errors import CheckpointError, require

MAX_ENTRIES = 2**16
"""Metadata entries and tensors that a header may claim; each takes bytes, so a file bounds them
too."""
MAX_ITEMS = 2**22
"""Items of a metadata array (vocabularies have 2^18)."""
MAX_DIMS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(jnp.bfloat16)}


class GGUFTensor(NamedTuple):
    """What a header says about one tensor."""

    kind: str
    """Name of the storage format, such as "Q4_1"."""
    shape: tuple[int, ...]
    """Rows first, as numpy has it (the file says it the other way round)."""
    start: int
    """First byte in the file."""
    stop: int


class GGUFFile(Mapping[str, np.ndarray]):
    """A GGUF file: `metadata`, and tensors by name, each read and dequantised when asked for.

    F32, F16 and BF16 tensors keep their dtype; quantised ones become float32.

    Raises:
      CheckpointError: the file is cut short, of another version or byte order, or lies about
        itself: counts, lengths, types, shapes or offsets that the file cannot hold.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._constants = require("gguf.constants", "reading GGUF files")
        try:
            with self.path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise CheckpointError(f"cannot read {path}: {error}") from error
        walk = _Walk(self._bytes, str(path))
        if walk.take(4) != b"GGUF":
            raise CheckpointError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
        version = walk.scalar("I")
        if version not in (2, 3):
            raise CheckpointError(
                f"{path} has GGUF version {version}; readable are 2 and 3, little-endian"
            )
        tensors, entries = walk.count("tensors", MAX_ENTRIES), walk.count("entries", MAX_ENTRIES)
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = walk.string()
            if key in self.metadata:
                raise CheckpointError(f"{path} has the metadata key {key!r} twice")
            self.metadata[key] = walk.value(walk.scalar("I"))
        claims = [_claim(walk) for _ in range(tensors)]
        align = self.metadata.get("general.alignment", 32)
        if type(align) is not int or align < 1 or align & (align - 1) or align > 2**20:
            raise CheckpointError(f"{path}: general.alignment={align!r} must be a power of two")
        data = -(-walk.at // align) * align
        self.info: dict[str, GGUFTensor] = {}
        for name, shape, kind, offset in claims:
            if name in self.info:
                raise CheckpointError(f"{path} has the tensor {name!r} twice")
            self.info[name] = self._place(name, shape, kind, data + offset)
        end = data
        for name, info in sorted(self.info.items(), key=lambda item: item[1][2:]):
            if info.start < end:
                raise CheckpointError(f"{path}: tensor {name!r} overlaps what comes before it")
            end = info.stop

    def _place(self, name: str, shape: tuple[int, ...], number: int, start: int) -> GGUFTensor:
        where = f"{self.path}: tensor {name!r}"
        try:
            kind = self._constants.GGMLQuantizationType(number)
        except ValueError as error:
            raise CheckpointError(f"{where} has the unknown storage type {number}") from error
        block, size = self._constants.GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise CheckpointError(f"{where}: rows of {shape[-1]} are not whole {kind.name} blocks")
        stop = start + math.prod(shape) // block * size
        if stop > len(self._bytes):
            raise CheckpointError(
                f"{where} ends at byte {stop}, but the file has {len(self._bytes)}: cut short?"
            )
        return GGUFTensor(kind.name, shape, start, stop)

    def __getitem__(self, name: str) -> np.ndarray:
        info = self.info[name]
        raw = np.frombuffer(self._bytes, np.uint8, info.stop - info.start, info.start)
        if info.kind in _PLAIN:
            return raw.view(_PLAIN[info.kind]).reshape(info.shape)
        quants = require("gguf.quants", "dequantising GGUF tensors")
        kind = self._constants.GGMLQuantizationType[info.kind]
        try:
            return quants.dequantize(raw.reshape(*info.shape[:-1], -1), kind)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is stored as {info.kind}, which the gguf package "
                "cannot dequantise"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.info)

    def __len__(self) -> int:
        return len(self.info)


def _claim(walk: "_Walk") -> tuple[str, tuple[int, ...], int, int]:
    name = walk.string()
    rank = walk.scalar("I")
    if not 1 <= rank <= MAX_DIMS:
        raise CheckpointError(f"{walk.source}: tensor {name!r} has {rank} axes")
    shape = tuple(walk.scalar("Q") for _ in range(rank))[::-1]
    return name, shape, walk.scalar("I"), walk.scalar("Q")


class _Walk:
    """A cursor that never leaves the file."""

    def __init__(self, data: mmap.mmap, source: str):
        self.data, self.source, self.at = data, source, 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise CheckpointError(
                f"{self.source} is cut short or lies: {size} bytes wanted at byte {self.at}, "
                f"{len(self.data) - self.at} are left"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, what: str, limit: int) -> int:
        value = self.scalar("Q")
        if value > limit:
            raise CheckpointError(f"{self.source} claims {value} {what}; at most {limit} are read")
        return value

    def string(self) -> str:
        raw = self.take(self.scalar("Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.source}: a string is not UTF-8: {raw[:40]!r}") from error

    def value(self, kind: int) -> Any:
        if kind == _ARRAY:
            kind, items = self.scalar("I"), self.count("items of an array", MAX_ITEMS)
            if kind == _STRING:
                return [self.string() for _ in range(items)]
            code = f"<{items}{self._code(kind)}"
            return list(struct.unpack(code, self.take(struct.calcsize(code))))
        return self.string() if kind == _STRING else self.scalar(self._code(kind))

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise CheckpointError(f"{self.source} has metadata of unknown type {kind}")
        return _SCALARS[kind]


__all__ = ["GGUFFile", "GGUFTensor"]
