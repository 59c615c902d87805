import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos.functional.norm import layer_norm, rms_norm

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(6,), (3, 6)])
def test_formulas(shape):
    """One scale for all, or one for each head."""
    x = RNG.normal(2.0, 3.0, (2, 4, 3, 6)).astype(np.float32)
    scale, bias = RNG.normal(size=(2, *shape)).astype(np.float32)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 0.1) * scale
    np.testing.assert_allclose(rms_norm(x, jnp.asarray(scale), eps=0.1), want, atol=3e-6)
    centred = wide - wide.mean(-1, keepdims=True)
    want = centred / np.sqrt(wide.var(-1, keepdims=True) + 0.1) * scale
    got = layer_norm(x, jnp.asarray(scale), eps=0.1)
    np.testing.assert_allclose(got, want, atol=3e-6)
    got = layer_norm(x, jnp.asarray(scale), jnp.asarray(bias), eps=0.1)
    np.testing.assert_allclose(got, want + bias, atol=3e-6)


def test_a_large_mean_loses_nothing():
    """E[x^2] - E[x]^2 would be off by 10 % here."""
    x = (1000 + RNG.normal(size=(1, 64))).astype(np.float32)
    wide = x.astype(np.float64)
    want = (wide - wide.mean()) / wide.std()
    np.testing.assert_allclose(layer_norm(x, jnp.ones(64), eps=1e-9), want, atol=1e-3)


def test_16_bits_are_rounded_once():
    x = jnp.asarray(RNG.normal(size=(4, 64)), jnp.bfloat16)
    scale = jnp.asarray(RNG.normal(size=64), jnp.bfloat16)
    for norm in (rms_norm, layer_norm):
        got = norm(x, scale)
        assert got.dtype == jnp.bfloat16
        want = norm(x.astype(jnp.float32), scale).astype(jnp.bfloat16)
        np.testing.assert_array_equal(got.astype(jnp.float32), want.astype(jnp.float32))
