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

from flax_pos.functional.rope import rope_layers
from flax_pos.interop import CheckpointError, load_pretrained
from flax_pos.interop.gguf_file import GGUFFile
from flax_pos.interop.gguf_model import read_gguf
from flax_pos.interop.jsonfile import read_json
from flax_pos.interop.safetensors_files import SafetensorsFiles

FAMILIES = golden.DIRECTORY.parent / "families"
IDS = jnp.asarray(np.random.default_rng(0).integers(2, 97, (1, 24)))
SOURCES = {
    "gpt2": ("gpt2", golden.DIRECTORY / "gpt2", {}),
    # Its scale is not in the file: it is that of the head's width.
    "gemma2": ("gemma2", golden.DIRECTORY / "gemma2", {"query_pre_attn_scalar": 8}),
    "gemma3": ("gemma3", FAMILIES / "gemma3", {"query_pre_attn_scalar": 8}),
    "phi3": (
        "phi3",
        golden.DIRECTORY / "phi3_longrope",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "sliding_window": 9,
         "original_max_position_embeddings": None},
    ),
    "olmo2": ("olmo2", FAMILIES / "olmo2", {}),
    "cohere2": ("cohere2", FAMILIES / "cohere2", {}),
    "stablelm": ("stablelm", FAMILIES / "stablelm", {}),
    "qwen2": ("qwen2", golden.DIRECTORY / "qwen2", {}),
    "glm4": ("glm4", FAMILIES / "glm4", {}),
    "gptneox": ("gptneox", golden.DIRECTORY / "gpt_neox", {}),
    "gptneox_sequential": ("gptneox", FAMILIES / "gpt_neox_sequential", {}),
    "gptneox_all_rotated": (
        "gptneox",
        golden.DIRECTORY / "gpt_neox",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}},
    ),
    "bloom": ("bloom", golden.DIRECTORY / "bloom", {"seq_length": 64}),
    "mpt": ("mpt", golden.DIRECTORY / "mpt", {}),
    "mpt_clipped": (
        "mpt",
        golden.DIRECTORY / "mpt",
        {"attn_config": {"alibi": True, "alibi_bias_max": 4, "clip_qkv": 0.25}},
    ),
    "falcon": ("falcon", golden.DIRECTORY / "falcon_rope", {"num_kv_heads": 1}),
    "falcon_grouped": ("falcon", FAMILIES / "falcon_grouped", {}),
    "falcon_one_norm": ("falcon", FAMILIES / "falcon_one_norm", {}),
}  # fmt: skip


def write(path, source, name: str, extra=lambda writer: None):
    """As llama.cpp's converter does, save that it takes every Falcon's MLP to be four wide."""
    arch = SOURCES[name][0]
    config = read_json(source / "config.json")
    config |= config.pop("attn_config", {})
    get = lambda *names: next((config[n] for n in names if config.get(n) is not None), None)
    writer = gguf.GGUFWriter(path, arch)
    layers = get("num_hidden_layers", "n_layer", "n_layers")
    heads = get("num_attention_heads", "n_head", "n_heads")
    kv_heads = get("num_key_value_heads", "num_kv_heads") or (heads if arch == "bloom" else None)
    width = get("hidden_size", "n_embd", "d_model")
    rope = config.get("rope_parameters", {})
    local, rope = rope.get("sliding_attention", {}), rope.get("full_attention", rope)
    for add, value in (
        (writer.add_block_count, layers),
        (
            writer.add_context_length,
            get("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
        ),
        (writer.add_embedding_length, width),
        (writer.add_feed_forward_length, get("intermediate_size", "ffn_hidden_size") or 4 * width),
        (writer.add_head_count, heads),
        (writer.add_head_count_kv, kv_heads),
        (writer.add_layer_norm_rms_eps, get("rms_norm_eps")),
        (writer.add_layer_norm_eps, get("layer_norm_eps", "layer_norm_epsilon")),
        (writer.add_key_length, get("head_dim")),
        (writer.add_value_length, get("head_dim")),
        (writer.add_logit_scale, get("logit_scale")),
        (writer.add_sliding_window, get("sliding_window")),
        (writer.add_attn_logit_softcapping, get("attn_logit_softcapping")),
        (writer.add_final_logit_softcapping, get("final_logit_softcapping")),
        (writer.add_parallel_residual, get("use_parallel_residual")),
        (writer.add_max_alibi_bias, get("alibi_bias_max")),
        (writer.add_clamp_kqv, get("clip_qkv")),
        (writer.add_tensor_data_layout, "jploski" if arch == "falcon" else None),
    ):
        if value is not None:
            add(value)
    if rope and arch not in ("falcon", "gptneox"):
        writer.add_rope_freq_base(rope["rope_theta"])
    if local:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope and arch not in ("falcon", "gemma2", "gemma3"):
        part = rope.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(int(part * (get("head_dim") or width // heads)))
    extra(writer)
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, layers)
    for name, tensor in SafetensorsFiles(source).items():
        if arch == "gpt2" and ".h." in name and tensor.ndim == 2:
            tensor = tensor.T
        if arch in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            tensor = tensor + np.float32(1)
        if "query_key_value" in name:
            tensor = apart(tensor, heads, kv_heads or heads)
        if arch == "bloom":
            name = name.removeprefix("transformer.")
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(new, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def apart(tensor, heads: int, kv_heads: int):
    """All queries, all keys, all values: the file has them by groups of heads."""
    groups = tensor.reshape(kv_heads, heads // kv_heads + 2, -1, *tensor.shape[1:])
    parts = [groups[:, :-2], groups[:, -2], groups[:, -1]]
    return np.concatenate([part.reshape(-1, *tensor.shape[1:]) for part in parts])


@pytest.fixture
def source(tmp_path):
    def make(name):
        _, directory, changes = SOURCES[name]
        copy = tmp_path / "source"
        copy.mkdir()
        shutil.copy(directory / "model.safetensors", copy)
        config = {**read_json(directory / "config.json"), **changes}
        (copy / "config.json").write_text(json.dumps(config))
        return copy

    return make


@pytest.mark.parametrize("name", SOURCES)
def test_logits(tmp_path, source, name):
    directory = source(name)
    path = write(tmp_path / "x.gguf", directory, name)
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


def test_no_window_no_sliding(tmp_path, source):
    def extra(writer):
        del writer.kv_data[-1]["gemma3.attention.sliding_window"]

    path = write(tmp_path / "x.gguf", source("gemma3"), "gemma3", extra)
    layers = rope_layers(read_gguf(GGUFFile(path))[0])
    assert {(layer.window, layer.spec.theta) for layer in layers} == {(None, 1e6)}


def test_positions_that_are_not_alibi_are_refused(tmp_path, source):
    def extra(writer):
        del writer.kv_data[-1]["mpt.attention.max_alibi_bias"]

    path = write(tmp_path / "x.gguf", source("mpt"), "mpt", extra)
    with pytest.raises(CheckpointError, match="alibi=False is not supported"):
        load_pretrained(path)
