"""The sinusoidal table: golden tables, any width, exact at far positions."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos.functional.rope import apply_rope
from flax_pos.functional.sinusoid import sinusoidal as eager

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "biases.npz")
sinusoidal = jax.jit(eager, static_argnames=("width", "layout", "theta", "denominator"))
FAIRSEQ = {"denominator": "half_minus_one"}
CASES = {
    "half_40x16": ({"layout": "half"}, 1e-6),
    "half_12x7": ({"layout": "half"}, 1e-6),
    "interleaved_40x16": ({}, 1e-6),
    "interleaved_12x7": ({}, 1e-6),
    "gptj_40x16": ({"layout": "half"}, 2e-5),
    "ctrl_40x16": ({"layout": "half"}, 2e-5),
    "ctrl_12x7": ({"layout": "half"}, 2e-5),
    "fairseq_40x16_padNone": (dict(layout="half", **FAIRSEQ), 2e-5),
    "fairseq_12x7_padNone": (dict(layout="half", **FAIRSEQ), 2e-5),
    "cos_first_40x16": (dict(layout="half_cos_first", **FAIRSEQ), 2e-5),
    "cos_first_12x7": (dict(layout="half_cos_first", **FAIRSEQ), 2e-5),
    "whisper_30x16_t10000": (dict(layout="half", **FAIRSEQ), 2e-5),
    "whisper_20x8_t100": (dict(layout="half", theta=100.0, **FAIRSEQ), 2e-5),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    want, (options, atol) = GOLDEN[f"sinusoidal/{name}"], CASES[name]
    out = sinusoidal(jnp.arange(want.shape[0]), want.shape[1], **options)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, want, atol=atol, rtol=0)


def test_golden_relative_table_of_xlnet():
    for name, distances in (("bi_q5_k5", range(5, -5, -1)), ("uni_q4_k7", range(7, -1, -1))):
        want = GOLDEN[f"xlnet/{name}_clamp-1/table"][:, 0]
        out = sinusoidal(jnp.array(distances), 8, layout="half")
        np.testing.assert_allclose(out, want, atol=2e-5)


def test_odd_width():
    out = sinusoidal(jnp.array([2]), 5)[0]
    np.testing.assert_allclose(
        out, [0.9092974, -0.4161468, 0.0502166, 0.9987384, 0.0012619], atol=1e-6
    )


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("layout", ["interleaved", "half", "half_cos_first"])
def test_layouts_are_permutations_of_the_same_numbers(width, layout):
    pos = jnp.array([[0, 3], [17, 900]])
    out, paper = sinusoidal(pos, width, layout=layout), sinusoidal(pos, width)
    assert out.shape == (2, 2, width)
    np.testing.assert_array_equal(np.sort(out, -1), np.sort(paper, -1))
    i = np.arange(width)
    phase = np.asarray(pos)[..., None] * 10000.0 ** (-2 * (i // 2) / width)
    np.testing.assert_allclose(
        paper, np.where(i % 2, np.cos(phase), np.sin(phase)), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("denominator", ["half", "half_minus_one"])
def test_far_positions_are_as_exact_as_near_ones(denominator):
    pos = np.array([2**20, 2**20 + 1, 2**24 + 1, 2**31 - 1, -5])
    out = sinusoidal(jnp.asarray(pos, jnp.int32), 64, layout="half", denominator=denominator)
    n = 32 if denominator == "half" else 31
    phase = pos[:, None] * np.float64(10000.0) ** (-np.arange(32) / n)
    np.testing.assert_allclose(
        out, np.concatenate([np.sin(phase), np.cos(phase)], -1), atol=2e-6, rtol=0
    )


def test_traced_theta_and_its_gradient():
    pos = jnp.array([0, 3, 40])
    f = jax.jit(lambda t: eager(pos, 6, theta=t))
    np.testing.assert_allclose(f(500.0), sinusoidal(pos, 6, theta=500.0), atol=2e-5)
    swept = jax.vmap(f)(jnp.array([100.0, 500.0]))
    np.testing.assert_allclose(swept[1], sinusoidal(pos, 6, theta=500.0), atol=2e-5)
    weights = jnp.cos(jnp.arange(6.0))
    loss = lambda t: (f(t) @ weights).sum()
    slope = (loss(505.0) - loss(495.0)) / 10
    np.testing.assert_allclose(jax.grad(loss)(500.0), slope, rtol=2e-2)


def test_eager_equals_compiled():
    pos = jnp.arange(7)
    np.testing.assert_allclose(eager(pos, 5), sinusoidal(pos, 5), atol=1e-7)


def test_real_positions_lie_between_whole_ones():
    out = sinusoidal(jnp.array([0.5, 2.0, 2**20 + 0.5]), 4)
    np.testing.assert_allclose(out[0, :2], [np.sin(0.5), np.cos(0.5)], atol=1e-6)
    np.testing.assert_allclose(out[1], sinusoidal(jnp.array([2]), 4)[0], atol=1e-6)
    far = (2**20 + 0.5) * np.array([1, 0.01])
    np.testing.assert_allclose(out[2, ::2], np.sin(far), atol=2e-6)


def test_transforms_strict_promotion_and_x64_change_nothing():
    pos = jnp.arange(6).reshape(2, 3)
    want = sinusoidal(pos, 8)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        f = jax.jit(jax.vmap(lambda p: sinusoidal(p, 8)))
        np.testing.assert_array_equal(f(pos), want)
    with jax.enable_x64(True):
        out = sinusoidal(jnp.arange(6).reshape(2, 3), 8)
        assert out.dtype == jnp.float32
        np.testing.assert_allclose(out, want, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layout": "split"}, ValueError, "layout must be one of .*'half'.*got 'split'"),
        ({"denominator": "d"}, ValueError, "denominator must be one of .*got 'd'"),
        ({"theta": 0.0}, ValueError, "theta must be above 0, got 0.0"),
        ({"width": 0}, ValueError, "width must be at least 1 .*got 0"),
        (dict(width=3, **FAIRSEQ), ValueError, "width must be at least 4 .*got 3"),
        ({"positions": jnp.zeros(2, jnp.int16)}, TypeError, "at least 32 bits, got int16"),
        ({"positions": jnp.zeros(2, jnp.bfloat16)}, TypeError, "got bfloat16"),
    ],
)
def test_bad_arguments_raise(options, error, message):
    with pytest.raises(error, match=message):
        eager(**{"positions": jnp.arange(2), "width": 4, **options})


@pytest.mark.parametrize("width", [8.0, "8", True])
def test_a_width_is_an_integer(width):
    with pytest.raises(TypeError, match="width must be an integer, got"):
        eager(jnp.arange(3), width)


@pytest.mark.parametrize("theta", [0.0, -1.0, np.nan, np.inf])
def test_a_traced_theta_that_is_no_base_gives_nan(theta):
    at, x = jnp.arange(3), jnp.ones((3, 1, 8))
    for use in (lambda t: eager(at, 8, theta=t), lambda t: apply_rope(x, at, t)):
        assert bool(jnp.isnan(jax.jit(use)(theta)).all())
        assert bool(jnp.isfinite(jax.jit(use)(100.0)).all())


@pytest.mark.parametrize("layout", ["half", "interleaved", "interleaved_in_half_out"])
@pytest.mark.parametrize("shape", [(2, 0, 4, 16), (0, 3, 4, 16), (0, 1, 4)])
def test_no_tokens(shape, layout):
    at = jnp.zeros(shape[:-2], jnp.int32)
    assert apply_rope(jnp.ones(shape), at, layout=layout).shape == shape
    assert eager(at, 8).shape == (*shape[:-2], 8)
