import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal
from flax import nnx

from flax_pos.functional.rope import RopeSpec, apply_rope, rotate
from flax_pos.nnx import Embed, Rope


def test_tied_gradient_is_the_sum_of_both_uses():
    layer = Embed(3, 2, rngs=nnx.Rngs(0))
    layer.embedding[...] = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert len(jax.tree.leaves(nnx.state(layer))) == 1

    def loss(layer):
        return -jax.nn.log_softmax(layer.attend(layer(jnp.array([1]))))[0, 2]

    want = [[0, 0.1553624], [-0.4223188, 0.2669564], [0, -0.5776812]]
    grads = nnx.grad(loss)(layer)
    np.testing.assert_allclose(grads.embedding[...], want, atol=1e-6)


def test_untied_gradients_are_apart():
    layer = Embed(3, 2, tied=False, rngs=nnx.Rngs(0))
    layer.embedding[...] = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    layer.head[...] = layer.embedding[...].T

    def loss(layer):
        return -jax.nn.log_softmax(layer.attend(layer(jnp.array([1]))))[0, 2]

    grads = nnx.grad(loss)(layer)
    want = [[0, 0], [-0.4223188, -0.1553624], [0, 0]]
    np.testing.assert_allclose(grads.embedding[...], want, atol=1e-6)
    np.testing.assert_allclose(grads.head[...][:, 1], [0, 0.4223188], atol=1e-6)


def test_logits_are_float32():
    layer = Embed(1, 2, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    layer.embedding[...] = jnp.ones((1, 2), jnp.bfloat16)
    logits = layer.attend(jnp.array([[256, 1]], jnp.bfloat16))
    assert logits.dtype == jnp.float32
    assert logits.item() == 257.0


def test_compute_dtype():
    layer = Embed(5, 4, dtype=jnp.bfloat16, scale=2.0, rngs=nnx.Rngs(0))
    assert layer.embedding[...].dtype == jnp.float32
    out = layer(jnp.array([[1, 4]]))
    assert out.dtype == jnp.bfloat16
    want = (2 * layer.embedding[...][jnp.array([[1, 4]])]).astype(jnp.bfloat16)
    np.testing.assert_array_equal(out.astype(jnp.float32), want.astype(jnp.float32))


def test_rounded_scale():
    layer = Embed(5, 4, dtype=jnp.bfloat16, scale=3072**0.5, round_scale=True, rngs=nnx.Rngs(0))
    layer.embedding[...] = jnp.ones((5, 4))
    assert float(layer(jnp.array([0]))[0, 0]) == 55.5


def test_ids_out_of_range():
    layer = Embed(5, 4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"ids 5 .* 0 \.\. 4"):
        layer(jnp.array([5]))
    with pytest.raises(ValueError, match="ids -1"):
        layer(jnp.array([-1]))
    assert np.isnan(jax.jit(lambda layer, i: layer(i))(layer, jnp.array([5]))).all()
    clipped = Embed(5, 4, out_of_range="clip", rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(clipped(jnp.array([7])), clipped(jnp.array([4])))
    with pytest.raises(TypeError, match="ids must be integers"):
        layer(jnp.array([1.0]))


def test_head_bias_comes_before_the_soft_cap():
    layer = Embed(3, 2, head_bias=True, rngs=nnx.Rngs(0))
    layer.head_bias[...] = jnp.array([1.0, 2.0, 3.0])
    h = jnp.ones((1, 2))
    plain = np.asarray(h @ layer.embedding[...].T)
    want = 2.0 * np.tanh((0.5 * plain + np.array([[1, 2, 3]])) / 2.0)
    np.testing.assert_allclose(layer.attend(h, scale=0.5, softcap=2.0), want, atol=1e-6)


def test_rope_rotates_as_the_function_does():
    x, at = normal((2, 3, 2, 8)), jnp.array([[0, 1, 2], [5, 9, 2]])
    np.testing.assert_array_equal(
        Rope(theta=100.0, layout="interleaved")(x, at),
        apply_rope(x, at, 100.0, layout="interleaved"),
    )
    spec = RopeSpec(partial_rotary_factor=0.5)
    np.testing.assert_array_equal(Rope(spec)(x, at), rotate(x, at, spec))
    assert Rope(spec, theta=7.0).spec == RopeSpec(partial_rotary_factor=0.5, theta=7.0)
    assert jax.tree.leaves(Rope()) == []
