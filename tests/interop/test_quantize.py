import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_pos.interop import load_pretrained, save_pretrained
from flax_pos.interop.quantize import pack_int4, quantize_weights, unpack_int4
from flax_pos.interop.surgery import rebuild
from flax_pos.nnx import generate

# qwix calls what flax has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
IDS = jnp.asarray(golden.io("llama_yarn")["long_input_ids"])
run = jax.jit(lambda model, ids: model(ids))


def load():
    return load_pretrained(golden.DIRECTORY / "llama_yarn")


def dequantised(new, path) -> np.ndarray:
    """What a quantised kernel stands for."""
    flat = dict(nnx.to_flat_state(nnx.state(new)))
    read = lambda name: np.asarray(
        jnp.asarray(flat[(*path, "array", name)].get_value(), jnp.float32)
    )
    whole, scale = read("qvalue"), read("scale")
    return whole * np.repeat(scale, whole.shape[0] // scale.shape[0], axis=0)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 16)])
def test_only_matrices_of_blocks_are_rounded(bits, group):
    """The quantised model is the model with rounded matrices: positions and all else are exact."""
    pytest.importorskip("qwix", reason="the extra flax-pos[quantize] is not installed")
    model = load()
    new = quantize_weights(model, bits, group=group)
    stored = {
        str(leaf.dtype) for leaf in jax.tree.leaves(nnx.state(new)) if leaf.dtype != jnp.float32
    }
    assert stored == {f"int{bits}"}
    flat = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    kernels = {path: dequantised(new, path) for path in flat if path[-1] == "kernel"}
    for path, kernel in kernels.items():
        step = 2 * np.abs(kernel).max() / (2**bits - 1)
        assert 0 < np.abs(kernel - flat[path][...]).max() < step
    rounded = rebuild(model, params=kernels)
    got, want, exact = (np.asarray(run(m, IDS)) for m in (new, rounded, model))
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert np.abs(got - exact).max() > 10 * np.abs(got - want).max()
    ids = [generate(m, IDS[:, :5], max_new_tokens=3) for m in (new, rounded)]
    np.testing.assert_array_equal(*ids)


@pytest.mark.slow
def test_a_quantised_model_is_not_written_as_another_format(tmp_path):
    pytest.importorskip("qwix", reason="the extra flax-pos[quantize] is not installed")
    with pytest.raises(ValueError, match="not loaded from a checkpoint"):
        save_pretrained(quantize_weights(load()), tmp_path)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_packing_int4(rows):
    whole = np.random.default_rng(0).integers(-8, 8, (rows, 40))
    packed = pack_int4(whole)
    assert packed.dtype == np.int8
    assert packed.shape == (-(-rows // 2), 40)
    unpacked = unpack_int4(jnp.asarray(packed), rows)
    assert unpacked.dtype == jnp.int4
    np.testing.assert_array_equal(np.asarray(unpacked, np.int8), whole)


def test_number_of_bits():
    with pytest.raises(ValueError, match="bits must be 8 or 4, got 3"):
        quantize_weights(load(), 3)


def test_size_of_groups():
    pytest.importorskip("qwix", reason="the extra flax-pos[quantize] is not installed")
    with pytest.raises(ValueError, match=r"group=32 must divide the 48 inputs of .*mlp\.down"):
        quantize_weights(load(), 4, group=32)
