import golden
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from flax_pos.functional.rope import permute_layout
from flax_pos.interop import CheckpointError, load_pretrained, save_pretrained
from flax_pos.interop.gguf_model import _BLOCK, _KEYS, _OUTSIDE
from flax_pos.interop.jsonfile import read_json
from flax_pos.interop.safetensors_files import SafetensorsFiles

IDS = jnp.array([[3, 1, 4, 1, 5, 9, 2, 6]])
HEADS = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}


def write(path, name="llama_default", arch="llama", *, permuted=True, extra=(), drop=(), tensors=(),
          replace=(), kind=None):  # fmt: skip
    """A golden checkpoint as llama.cpp's converter would write it."""
    config = {**read_json(golden.DIRECTORY / name / "config.json")}
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    writer = GGUFWriter(path, arch)
    values = {gguf: config[hf] for gguf, hf in _KEYS.items() if hf in config} | dict(extra)
    for key, value in values.items():
        if key in drop:
            continue
        if isinstance(value, str):
            writer.add_string(f"{arch}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{arch}.{key}", value)
        else:
            writer.add_float32(f"{arch}.{key}", value)
    names = {hf: gguf for gguf, hf in _OUTSIDE.items()}
    blocks = {hf: gguf for gguf, hf in _BLOCK.items()}
    for hf, tensor in SafetensorsFiles(golden.DIRECTORY / name).items():
        if hf.startswith("model.layers."):
            _, _, layer, *module, end = hf.split(".")
            module = ".".join(module)
            if permuted and module in HEADS:
                options = {"heads": HEADS[module], "source": "half", "target": "interleaved"}
                tensor = permute_layout(tensor, **options)
            names[hf] = f"blk.{layer}.{blocks[module]}.{end}"
        if hf in dict(replace):
            writer.add_tensor(names[hf], dict(replace)[hf], raw_dtype=kind)
        else:
            writer.add_tensor(names[hf], np.ascontiguousarray(tensor))
    for key, (tensor, kind) in dict(tensors).items():
        writer.add_tensor(key, tensor, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(path):
    return load_pretrained(path)(IDS)


def test_rows_of_q_and_k_are_put_in_order(tmp_path):
    path = write(tmp_path / "x.gguf")
    np.testing.assert_array_equal(logits(path), logits(golden.DIRECTORY / "llama_default"))
    # Without the permutation it would be another model.
    other = write(tmp_path / "y.gguf", permuted=False)
    assert np.abs(logits(other) - logits(path)).max() > 0.1


def test_another_architecture_without_permuted_rows(tmp_path):
    path = write(tmp_path / "x.gguf", "qwen3", "qwen3", permuted=False)
    np.testing.assert_array_equal(logits(path), logits(golden.DIRECTORY / "qwen3"))


def test_a_gguf_file_becomes_a_directory(tmp_path):
    path = write(tmp_path / "x.gguf")
    save_pretrained(load_pretrained(path), tmp_path / "saved")
    np.testing.assert_array_equal(logits(tmp_path / "saved"), logits(path))
    want, got = (
        SafetensorsFiles(p) for p in (golden.DIRECTORY / "llama_default", tmp_path / "saved")
    )
    assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}


@pytest.mark.parametrize("scaling", ["linear", "yarn"])
def test_rope_scaling(tmp_path, scaling):
    extra = {"rope.scaling.type": scaling, "rope.scaling.factor": 4.0}
    if scaling == "yarn":
        extra["rope.scaling.original_context_length"] = 16
    path = write(tmp_path / "x.gguf", f"llama_{scaling}", extra=extra)
    expected = logits(golden.DIRECTORY / f"llama_{scaling}")
    np.testing.assert_allclose(logits(path), expected, atol=1e-5)


def test_llama3_scaling_is_a_tensor_of_factors(tmp_path):
    """llama.cpp stores what each frequency is divided by."""
    reference = load_pretrained(golden.DIRECTORY / "llama_llama3")
    spec = reference.scheme.spec
    plain = 10000.0 ** -(np.arange(4) / 4)
    factors = (plain / spec.frequencies()[0]).astype(np.float32)
    assert factors.max() > 1.5
    path = write(
        tmp_path / "x.gguf", "llama_llama3", tensors={"rope_freqs.weight": (factors, None)}
    )
    np.testing.assert_allclose(logits(path), reference(IDS), atol=1e-4)


def test_quantised_weights(tmp_path):
    kind = GGMLQuantizationType.Q8_0
    source = golden.DIRECTORY / "llama_default"
    quantised = {
        name: quantize(tensor, kind)
        for name, tensor in SafetensorsFiles(source).items()
        if name.endswith("embed_tokens.weight")
    }
    path = write(tmp_path / "x.gguf", replace=quantised, kind=kind)
    table = load_pretrained(path).embed.embedding[...]
    exact = load_pretrained(source).embed.embedding[...]
    np.testing.assert_array_equal(table, dequantize(*quantised.values(), kind))
    assert 0 < np.abs(table - exact).max() < np.abs(exact).max() / 100


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [
        ("martian", {}, "architecture 'martian' is not supported .*: llama"),
        ("llama", {"extra": {"expert_count": 8}}, "mixture of experts"),
        ("llama", {"extra": {"surprise": 8}}, "nothing here reads the key llama.surprise"),
        ("llama", {"extra": {"rope.scaling.type": "spiral"}}, "rope scaling 'spiral'"),
        ("llama", {"extra": {"rope.scaling.type": "linear"}}, "factor"),
        ("llama", {"drop": ["attention.head_count"]}, "lacks the key 'num_attention_heads'"),
        ("llama", {"extra": {"attention.head_count": 7}}, "7"),
        ("llama", {"tensors": {"blk.0.odd.weight": (np.ones(3, np.float32), None)}}, "blk.0.odd"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, arch, options, message):
    path = write(tmp_path / "x.gguf", arch=arch, **options)
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(path)
