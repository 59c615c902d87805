import struct

import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from interop_files import write_gguf

from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.gguf_file import GGUFFile

QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def blocks(kind: str, rows: int = 3, width: int = 512) -> np.ndarray:
    """Bytes of a tensor in a quantised format, scales of a sensible size."""
    kind = GGMLQuantizationType[kind]
    x = np.random.default_rng(1).normal(size=(rows, width)).astype(np.float32)
    try:
        return quantize(x, kind)
    except NotImplementedError:  # the package reads K-quants but does not write them
        from gguf.constants import GGML_QUANT_SIZES

        block, size = GGML_QUANT_SIZES[kind]
        raw = np.random.default_rng(2).integers(0, 60, (rows, width // block * size), np.uint8)
        return raw


def test_metadata_and_plain_tensors(tmp_path):
    f32 = np.arange(6, dtype=np.float32).reshape(2, 3)
    f16 = f32.astype(np.float16)
    bf16 = f32.astype(jnp.bfloat16)
    tensors = {
        "a": (f32, None),
        "b": (f16, None),
        "c": (bf16.view(np.uint8), GGMLQuantizationType.BF16),
    }
    file = GGUFFile(write_gguf(tmp_path / "x.gguf", tensors))
    expected = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "text": "größe",
        "names": ["a", "b"],
        "numbers": [1, -2, 3],
        "yes": True,
        "half": 0.5,
    }
    assert {k: file.metadata[k] for k in expected} == expected
    for name, want in (("a", f32), ("b", f16), ("c", bf16)):
        assert file[name].dtype == want.dtype
        np.testing.assert_array_equal(file[name], want)


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_tensors(tmp_path, kind):
    raw = blocks(kind)
    file = GGUFFile(write_gguf(tmp_path / "x.gguf", {"a": (raw, GGMLQuantizationType[kind])}))
    assert file.info["a"].kind == kind
    assert file["a"].shape == (3, 512)
    assert file["a"].dtype == np.float32
    np.testing.assert_array_equal(file["a"], dequantize(raw, GGMLQuantizationType[kind]))


def test_q4_1_by_hand(tmp_path):
    """One block of 32: scale 0.5, minimum -1, nibbles 0 .. 15 twice (low nibbles come first)."""
    nibbles = np.arange(16, dtype=np.uint8)
    raw = np.concatenate(
        [np.array([0.5, -1.0], np.float16).view(np.uint8), nibbles | nibbles[::-1] << 4]
    )
    file = GGUFFile(write_gguf(tmp_path / "x.gguf", {"a": (raw[None], GGMLQuantizationType.Q4_1)}))
    np.testing.assert_array_equal(
        file["a"][0], np.concatenate([nibbles, nibbles[::-1]]) * 0.5 - 1.0
    )


def header(tensors=0, entries=0, version=3, rest=b"", magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, entries) + rest


def text(value: bytes, length=None):
    return struct.pack("<Q", len(value) if length is None else length) + value


def tensor(name=b"a", shape=(4,), kind=0, offset=0, rank=None):
    return (
        text(name)
        + struct.pack("<I", len(shape) if rank is None else rank)
        + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", kind, offset)
    )


BAD = {
    "nothing": (b"", "cannot read"),
    "other magic": (header(magic=b"GGML"), "does not begin with 'GGUF'"),
    "version 1": (header(version=1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
    "cut in the counts": (header()[:12], "cut short"),
    "too many tensors": (header(tensors=2**40), "claims 1099511627776 tensors"),
    "tensors that are not there": (header(tensors=100), "cut short"),
    "too many entries": (header(entries=2**63), "entries; at most"),
    "a string of 2^62 bytes": (header(entries=1, rest=text(b"a", 2**62)), "cut short or lies"),
    "a key that is not UTF-8": (header(entries=1, rest=text(b"\xff")), "not UTF-8"),
    "a key twice": (
        header(entries=2, rest=2 * (text(b"k") + struct.pack("<II", 4, 1))),
        "key 'k' twice",
    ),
    "an unknown value type": (
        header(entries=1, rest=text(b"k") + struct.pack("<I", 77)),
        "unknown type 77",
    ),
    "an array of 2^60 bytes": (
        header(entries=1, rest=text(b"k") + struct.pack("<IIQ", 9, 0, 2**60)),
        "items of an array",
    ),
    "an array of 2^22 that is not there": (
        header(entries=1, rest=text(b"k") + struct.pack("<IIQ", 9, 0, 2**22)),
        "cut short",
    ),
    "nested arrays": (
        header(entries=1, rest=text(b"k") + struct.pack("<IIQ", 9, 9, 1)),
        "unknown type 9",
    ),
    "an alignment of 3": (
        header(entries=1, rest=text(b"general.alignment") + struct.pack("<II", 4, 3)),
        "alignment=3",
    ),
    "no axes": (header(tensors=1, rest=tensor(shape=())), "0 axes"),
    "2^31 axes": (header(tensors=1, rest=tensor(rank=2**31)), "axes"),
    "an unknown storage type": (header(tensors=1, rest=tensor(kind=999)), "storage type 999"),
    "half a block": (header(tensors=1, rest=tensor(kind=2, shape=(31,))), "not whole Q4_0 blocks"),
    "data cut short": (header(tensors=1, rest=tensor(shape=(400,))), "cut short"),
    "a shape of 2^200": (header(tensors=1, rest=tensor(shape=(2**63,) * 3)), "cut short"),
    "an offset past the end": (
        header(tensors=1, rest=tensor(offset=2**62) + bytes(64)),
        "cut short",
    ),
    "a tensor twice": (header(tensors=2, rest=2 * tensor() + bytes(64)), "tensor 'a' twice"),
    "an overlap": (
        header(tensors=2, rest=tensor() + tensor(b"b", offset=8) + bytes(96)),
        "'b' overlaps",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_lying_header_is_refused(tmp_path, case):
    content, message = BAD[case]
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        GGUFFile(tmp_path / "x.gguf")


def test_a_format_without_a_decoder_says_so(tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(header(tensors=1, rest=tensor(kind=15, shape=(256,)) + bytes(400)))  # Q8_K
    with pytest.raises(CheckpointError, match="stored as Q8_K"):
        GGUFFile(file)["a"]
