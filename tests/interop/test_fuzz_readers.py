"""Files with bytes changed, cut, repeated and swapped end in a mapping or a `CheckpointError`."""

import json

import golden
import numpy as np
import pytest
from interop_files import byte_pairs, write_gguf, write_model

from flax_pos.interop import CheckpointError, load_pretrained
from flax_pos.interop.gguf_file import GGUFFile
from flax_pos.interop.jsonfile import read_json
from flax_pos.interop.safetensors_files import SafetensorsFiles, write_safetensors
from flax_pos.interop.tokenizer import load_tokenizer

LENGTHS = [0, 1, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]


def mutate(content: bytes, rng: np.random.Generator, head: int) -> bytes:
    """Changes where it hurts: nearly always in the first `head` bytes."""
    out = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, min(head, len(out)) or 1))
        kind = rng.integers(0, 5)
        if kind == 0 and at < len(out):
            out[at] = int(rng.integers(0, 256))
        elif kind == 1:
            del out[at:]
        elif kind == 2:
            value = LENGTHS[rng.integers(len(LENGTHS))]
            out[at : at + 8] = value.to_bytes(8, "little")
        elif kind == 3:
            other = int(rng.integers(0, min(head, len(out)) or 1))
            out[at : at + 4] = out[other : other + 4]
        else:
            out[at:at] = out[at : at + int(rng.integers(1, 64))]
    return bytes(out)


def read_all(files) -> None:
    for name in files:
        files[name]


@pytest.mark.parametrize("kind", ["safetensors", "gguf", "tokenizer"])
def test_readers_survive_mutated_files(tmp_path, kind):
    if kind == "safetensors":
        tensors = {f"layer.{i}.w": np.ones((2, i), np.float32) for i in range(4)}
        write_safetensors(tmp_path, tensors)
        path, read = tmp_path / "model.safetensors", lambda p: read_all(SafetensorsFiles(p))
    elif kind == "gguf":
        path = write_gguf(tmp_path / "x.gguf", {"a": (np.ones((2, 32), np.float32), None)})
        read = lambda p: read_all(GGUFFile(p))
    else:
        path, read = byte_pairs(tmp_path / "x.gguf"), load_tokenizer
    good = path.read_bytes()
    read(path)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(1500):
        path.unlink()  # a file that is mapped must not change under its map
        path.write_bytes(mutate(good, rng, head=600))
        try:
            read(path)
        except CheckpointError:
            refused += 1
    assert refused > 300


STRANGE = [None, True, False, 0, 1, -1, 3, 2**31, 2**63, 1e400, float("nan"), 0.5, -2.5, "", "gelu",
           "x" * 1000, [], [1, 2], {}, {"rope_type": "yarn"}, {"a": {"b": None}}]  # fmt: skip


@pytest.mark.parametrize("name", ["llama_yarn", "deepseek_v3", "falcon_rope", "mpt", "smollm3"])
def test_models_survive_mutated_configs(tmp_path, name):
    source = golden.DIRECTORY / name
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    good = read_json(source / "config.json")
    rng = np.random.default_rng(0)
    loaded = 0
    for _ in range(120):
        config = dict(good)
        for _ in range(rng.integers(1, 3)):
            key = list(good)[rng.integers(len(good))]
            config[key] = STRANGE[rng.integers(len(STRANGE))]
        (tmp_path / "config.json").write_text(json.dumps(config))
        try:
            load_pretrained(tmp_path)
            loaded += 1
        except CheckpointError:
            pass
    assert 0 < loaded < 120


@pytest.mark.slow
def test_models_survive_mutated_gguf_files(tmp_path):
    """The whole way: header, config, names, tensors."""
    path = write_model(tmp_path / "x.gguf")
    good = path.read_bytes()
    load_pretrained(path)
    rng = np.random.default_rng(0)
    loaded = refused = 0
    for _ in range(300):
        path.unlink()
        path.write_bytes(mutate(good, rng, head=2500))
        try:
            load_pretrained(path)
            loaded += 1
        except CheckpointError:
            refused += 1
    assert loaded > 0
    assert refused > 100
