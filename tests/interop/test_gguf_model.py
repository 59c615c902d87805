import golden
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from interop_files import write_model

from flax_pos.interop import CheckpointError, load_pretrained, save_pretrained
from flax_pos.interop.safetensors_files import SafetensorsFiles

IDS = jnp.array([[3, 1, 4, 1, 5, 9, 2, 6]])


def logits(path):
    return load_pretrained(path)(IDS)


def test_rows_of_q_and_k_are_put_in_order(tmp_path):
    path = write_model(tmp_path / "x.gguf")
    np.testing.assert_array_equal(logits(path), logits(golden.DIRECTORY / "llama_default"))
    # Without the permutation it would be another model.
    other = write_model(tmp_path / "y.gguf", permuted=False)
    assert np.abs(logits(other) - logits(path)).max() > 0.1


def test_another_architecture_without_permuted_rows(tmp_path):
    path = write_model(tmp_path / "x.gguf", "qwen3", "qwen3", permuted=False)
    np.testing.assert_array_equal(logits(path), logits(golden.DIRECTORY / "qwen3"))


def test_a_gguf_file_becomes_a_directory(tmp_path):
    path = write_model(tmp_path / "x.gguf")
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
    path = write_model(tmp_path / "x.gguf", f"llama_{scaling}", extra=extra)
    expected = logits(golden.DIRECTORY / f"llama_{scaling}")
    np.testing.assert_allclose(logits(path), expected, atol=1e-5)


def test_llama3_scaling_is_a_tensor_of_factors(tmp_path):
    """llama.cpp stores what each frequency is divided by."""
    reference = load_pretrained(golden.DIRECTORY / "llama_llama3")
    spec = reference.scheme.spec
    plain = 10000.0 ** -(np.arange(4) / 4)
    factors = (plain / spec.frequencies()[0]).astype(np.float32)
    assert factors.max() > 1.5
    path = write_model(
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
    path = write_model(tmp_path / "x.gguf", replace=quantised, kind=kind)
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
    path = write_model(tmp_path / "x.gguf", arch=arch, **options)
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(path)
