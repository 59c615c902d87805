import json
import struct

import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.safetensors_files import (
    INDEX,
    SINGLE,
    SafetensorsFiles,
    read_header,
    write_safetensors,
)

DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "int64", "uint8", "bool")


def tensors():
    rng = np.random.default_rng(0)
    out = {f"t.{d}": rng.normal(size=(3, 5)).astype(jnp.dtype(d)) for d in DTYPES}
    return {**out, "scalar": np.float32(2.5) * np.ones(()), "empty": np.zeros((0, 4), np.float32)}


def same(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("limit", [10**9, 100, 1])
def test_bits_survive_in_one_file_and_in_many(tmp_path, limit):
    write_safetensors(tmp_path, tensors(), max_shard_bytes=limit)
    assert (tmp_path / INDEX).exists() == (limit < 10**9)
    assert not list(tmp_path.glob("*.part"))
    read = SafetensorsFiles(tmp_path)
    assert set(read) == set(tensors())
    assert len(read) == len(tensors())
    for name, value in tensors().items():
        same(read[name], np.asarray(value))


def test_a_later_save_replaces_an_earlier_one(tmp_path):
    write_safetensors(tmp_path, tensors(), max_shard_bytes=100)
    write_safetensors(tmp_path, {"only": np.ones(2)})
    assert list(SafetensorsFiles(tmp_path)) == ["only"]


def raw(header, data=b"", length=None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


EIGHT = bytes(8)
BAD = {
    "nothing": (b"", "cut short"),
    "half a length": (b"\x08\0\0", "cut short"),
    "a length past the end": (raw({}, length=100), "claims a header of 100 bytes"),
    "a length of 2^63": (raw({}, length=2**63), "claims a header"),
    "no JSON": (raw(b"{nope"), "not valid JSON"),
    "deep JSON": (raw(b"[" * 100_000), "not valid JSON"),
    "a name twice": (
        raw(b'{"a": %b, "a": %b}' % ((json.dumps(entry()).encode(),) * 2), EIGHT),
        "'a' occurs twice",
    ),
    "metadata that are no strings": (raw({"__metadata__": {"a": 1}}), "__metadata__"),
    "a missing field": (raw({"a": {"dtype": "F32", "shape": [2]}}, EIGHT), "exactly dtype"),
    "an unknown dtype": (raw({"a": entry(dtype="F4")}, EIGHT), "dtype 'F4'"),
    "a negative size": (raw({"a": entry(shape=(-2,))}, EIGHT), "impossible shape"),
    "a size that is true": (raw({"a": entry(shape=(True, 2))}, EIGHT), "impossible shape"),
    "ninety axes": (raw({"a": entry(shape=(1,) * 90)}, EIGHT), "impossible shape"),
    "a shape too large": (raw({"a": entry(shape=(2**40, 2**40))}, EIGHT), "needs"),
    "offsets backwards": (raw({"a": entry(offsets=(8, 0))}, EIGHT), "impossible data_offsets"),
    "offsets that are text": (raw({"a": {**entry(), "data_offsets": "08"}}), "impossible data"),
    "an overlap": (raw({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "starts at 4"),
    "a gap": (raw({"a": entry(offsets=(4, 12))}, bytes(12)), "starts at 4, not at 0"),
    "data cut short": (raw({"a": entry()}, bytes(7)), "describes 8 bytes of tensors, .* has 7"),
    "data left over": (raw({"a": entry()}, bytes(9)), "describes 8 bytes of tensors, .* has 9"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_lying_header_is_refused_before_anything_is_mapped(tmp_path, case):
    content, message = BAD[case]
    (tmp_path / SINGLE).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFiles(tmp_path)


def test_header_of_a_good_file(tmp_path):
    (tmp_path / SINGLE).write_bytes(raw({"__metadata__": {"format": "pt"}, "a": entry()}, EIGHT))
    assert read_header(tmp_path / SINGLE)["a"] == ("F32", (2,), 0, 8)


@pytest.mark.parametrize(
    "name",
    ["../a.safetensors", "/etc/a.safetensors", "x/../a.safetensors", "..\\a.safetensors", "a.bin",
     "c:a.safetensors", ".safetensors", "a\0.safetensors", "\ud800.safetensors", 3, None, ""],
)  # fmt: skip
def test_an_index_may_only_name_files_beside_it(tmp_path, name):
    directory = tmp_path / "x"
    directory.mkdir()
    (tmp_path / "a.safetensors").write_bytes(raw({"a": entry()}, EIGHT))
    (directory / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="only files beside the index"):
        SafetensorsFiles(directory)


def test_an_index_at_odds_with_its_files(tmp_path):
    write = lambda where: (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    (tmp_path / "a.safetensors").write_bytes(raw({"a": entry()}, EIGHT))
    (tmp_path / "b.safetensors").write_bytes(
        raw({"a": entry(), "b": entry(offsets=(8, 16))}, EIGHT * 2)
    )
    write({"a": "a.safetensors", "c": "a.safetensors"})
    with pytest.raises(CheckpointError, match=r"places 'c' in a.safetensors, but it is not there"):
        SafetensorsFiles(tmp_path)
    write({"a": "a.safetensors", "b": "b.safetensors"})
    with pytest.raises(CheckpointError, match=r"holds 'a', which .* places elsewhere"):
        SafetensorsFiles(tmp_path)
    write({"a": "gone.safetensors"})
    with pytest.raises(CheckpointError, match=r"cannot read .*gone.safetensors"):
        SafetensorsFiles(tmp_path)
    for nothing in ({}, None, []):
        write(nothing)
        with pytest.raises(CheckpointError, match="no weight_map"):
            SafetensorsFiles(tmp_path)


def test_a_directory_without_weights(tmp_path):
    with pytest.raises(CheckpointError, match="holds neither"):
        SafetensorsFiles(tmp_path)
