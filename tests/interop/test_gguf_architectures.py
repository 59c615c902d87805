"""Architectures of llama.cpp: golden models written as its converter writes them, with the names
of the `gguf` package's own tables, give the logits of the directories that they came from."""

import json
import shutil

import gguf
import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos.interop import CheckpointError, load_pretrained
from flax_pos.interop.jsonfile import read_json
from flax_pos.interop.safetensors_files import SafetensorsFiles

FAMILIES = golden.DIRECTORY.parent / "families"
IDS = jnp.asarray(np.random.default_rng(0).integers(2, 97, (1, 24)))
SOURCES = {
    "gpt2": (golden.DIRECTORY / "gpt2", {}),
    # Its scale is not in the file: it is that of the head's width.
    "gemma2": (golden.DIRECTORY / "gemma2", {"query_pre_attn_scalar": 8}),
    "phi3": (
        golden.DIRECTORY / "phi3_longrope",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "sliding_window": 9,
         "original_max_position_embeddings": None},
    ),
    "olmo2": (FAMILIES / "olmo2", {}),
    "cohere2": (FAMILIES / "cohere2", {}),
    "stablelm": (FAMILIES / "stablelm", {}),
    "qwen2": (golden.DIRECTORY / "qwen2", {}),
}  # fmt: skip


def write(path, source, arch: str, extra=lambda writer: None):
    """As llama.cpp's converter does."""
    config = read_json(source / "config.json")
    get = lambda *names: next((config[n] for n in names if config.get(n) is not None), None)
    writer = gguf.GGUFWriter(path, arch)
    layers, heads = get("num_hidden_layers", "n_layer"), get("num_attention_heads", "n_head")
    width = get("hidden_size", "n_embd")
    rope = config.get("rope_parameters", {})
    for add, value in (
        (writer.add_block_count, layers),
        (writer.add_context_length, get("max_position_embeddings", "n_positions")),
        (writer.add_embedding_length, width),
        (writer.add_feed_forward_length, get("intermediate_size") or 4 * width),
        (writer.add_head_count, heads),
        (writer.add_head_count_kv, get("num_key_value_heads")),
        (writer.add_layer_norm_rms_eps, get("rms_norm_eps")),
        (writer.add_layer_norm_eps, get("layer_norm_eps", "layer_norm_epsilon")),
        (writer.add_key_length, get("head_dim")),
        (writer.add_value_length, get("head_dim")),
        (writer.add_rope_freq_base, rope.get("rope_theta")),
        (writer.add_logit_scale, get("logit_scale")),
        (writer.add_sliding_window, get("sliding_window")),
        (writer.add_attn_logit_softcapping, get("attn_logit_softcapping")),
        (writer.add_final_logit_softcapping, get("final_logit_softcapping")),
        (writer.add_parallel_residual, get("use_parallel_residual")),
    ):
        if value is not None:
            add(value)
    if rope:
        part = rope.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(int(part * width // heads))
    extra(writer)
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, layers)
    for name, tensor in SafetensorsFiles(source).items():
        if arch == "gpt2" and ".h." in name and tensor.ndim == 2:
            tensor = tensor.T
        if arch == "gemma2" and name.endswith("norm.weight"):
            tensor = tensor + np.float32(1)
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(new, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def source(tmp_path):
    def make(arch):
        directory, changes = SOURCES[arch]
        copy = tmp_path / "source"
        copy.mkdir()
        shutil.copy(directory / "model.safetensors", copy)
        config = {**read_json(directory / "config.json"), **changes}
        (copy / "config.json").write_text(json.dumps(config))
        return copy

    return make


@pytest.mark.parametrize("arch", SOURCES)
def test_logits(tmp_path, source, arch):
    directory = source(arch)
    path = write(tmp_path / "x.gguf", directory, arch)
    got, want = load_pretrained(path), load_pretrained(directory)
    # Numbers are float32 in the file, and sizes are spelled out.
    same = lambda config: config.replace(norm_eps=1, mlp_width=config.hidden_width)
    assert same(got.config) == same(want.config)
    assert got.scheme == want.scheme
    run = jax.jit(lambda model, ids: model(ids))
    np.testing.assert_allclose(run(got, IDS), run(want, IDS), atol=2e-5)


@pytest.mark.parametrize("key", ["rope.dimension_count", "attention.head_count"])
@pytest.mark.parametrize("value", [0, 33, "many"])
def test_wrong_sizes_are_named(tmp_path, source, key, value):
    def extra(writer):
        writer.add_uint32("olmo2.rope.dimension_count", 8)
        del writer.kv_data[-1][f"olmo2.{key}"]
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(f"olmo2.{key}", value)

    path = write(tmp_path / "x.gguf", source("olmo2"), "olmo2", extra)
    with pytest.raises(CheckpointError, match=f"these sizes make no sense.*{value}"):
        load_pretrained(path)


def test_scaling_by_factors_is_refused(tmp_path, source):
    """Phi-3 with LongRoPE: nothing reads its factors yet, and they are not overlooked."""
    extra = lambda writer: writer.add_tensor("rope_factors_long.weight", np.ones(4, np.float32))
    path = write(tmp_path / "x.gguf", source("phi3"), "phi3", extra)
    with pytest.raises(CheckpointError, match="nothing takes the tensor 'rope_factors_long"):
        load_pretrained(path)
