"""Angles are exact at every int32 position."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rope_oracles import INV_TWO_PI, exact_angles

from flax_pos.functional.rope.frequencies import check_theta, ladder, reference_ladder
from flax_pos.functional.rope.phase import (
    exact_cos_sin,
    float32_cos_sin,
    multiply_high,
    turn_words,
)

RNG = np.random.default_rng(7)
POSITIONS = np.concatenate(
    [
        [0, 1, 2, 255, 256, 257, 2**20, 2**24 + 1, 2**31 - 2, 2**31 - 1],
        RNG.integers(0, 2**31, 60),
        2 ** RNG.integers(0, 31, 20),
    ]
).astype(np.int32)
BOUND = 1e-6


def phase_error(cos, sin, angles):
    got = np.arctan2(np.asarray(sin, np.float64), np.asarray(cos, np.float64))
    gap = np.abs(got - angles)
    return np.minimum(gap, 2 * np.pi - gap).max()


@pytest.mark.parametrize(
    ("theta", "dim"), [(1e4, 128), (5e5, 64), (1e6, 96), (1e3, 36), (1.2e7, 256), (100.0, 16)]
)
def test_phase_of_static_frequencies(theta, dim):
    inv_freq = ladder(theta, dim)
    angles = exact_angles(POSITIONS, inv_freq)
    cos, sin = jax.jit(lambda p: exact_cos_sin(p[:, None], inv_freq))(jnp.asarray(POSITIONS))
    assert cos.dtype == sin.dtype == jnp.float32
    assert phase_error(cos, sin, angles) < 3e-7 < BOUND
    assert np.abs(np.asarray(cos, np.float64) - np.cos(angles)).max() < 2e-7
    assert np.abs(np.asarray(sin, np.float64) - np.sin(angles)).max() < 2e-7


def test_phase_of_negative_positions():
    inv_freq = ladder(1e4, 64)
    positions = np.array([-1, -5, -(2**20) - 3, -(2**31)], np.int32)
    cos, sin = exact_cos_sin(jnp.asarray(positions)[:, None], inv_freq)
    assert phase_error(cos, sin, exact_angles(positions, inv_freq)) < BOUND


def test_phase_of_arbitrary_frequencies():
    """Scaled, huge, tiny, negative and zero frequencies, static and as float32 arrays."""
    inv_freq = np.array([0.0, 1 / 3, -0.25, 3.75, 51.5, 1e-7, 2.0**-30, 1e-12, 1e-30])
    for w in (inv_freq, jnp.asarray(inv_freq, jnp.float32)):
        angles = exact_angles(POSITIONS, np.asarray(w, np.float64))
        cos, sin = exact_cos_sin(jnp.asarray(POSITIONS)[:, None], w)
        assert phase_error(cos, sin, angles) < BOUND


def test_phase_of_traced_frequencies_is_exact_for_their_float32_values():
    w = np.asarray(ladder(1e4, 64), np.float32)
    cos, sin = jax.jit(lambda p, w: exact_cos_sin(p[:, None], w))(jnp.asarray(POSITIONS), w)
    assert phase_error(cos, sin, exact_angles(POSITIONS, w)) < BOUND


def test_identity_is_exact():
    cos, sin = exact_cos_sin(jnp.zeros((3, 1), jnp.int32), ladder(1e4, 8))
    assert (cos == 1).all()
    assert (sin == 0).all()
    cos, sin = exact_cos_sin(jnp.array([[123456789]]), np.zeros(4))
    assert (cos == 1).all()
    assert (sin == 0).all()


def test_cos_and_sin_stay_within_one():
    cos, sin = exact_cos_sin(jnp.arange(200_000)[:, None], ladder(1e4, 4))
    assert float(jnp.abs(cos).max()) <= 1
    assert float(jnp.abs(sin).max()) <= 1
    assert float(jnp.abs(cos**2 + sin**2 - 1).max()) < 3e-7


def test_float64_tables():
    with jax.enable_x64(True):
        inv_freq = ladder(1e4, 32)
        cos, sin = exact_cos_sin(jnp.asarray(POSITIONS)[:, None], inv_freq, jnp.float64)
        angles = exact_angles(POSITIONS, inv_freq)
        assert cos.dtype == jnp.float64
        assert np.abs(cos - np.cos(angles)).max() < 4e-9
        assert np.abs(sin - np.sin(angles)).max() < 4e-9


def test_x64_changes_nothing():
    inv_freq, at = ladder(1e4, 32), POSITIONS[:, None]
    plain = exact_cos_sin(jnp.asarray(at), inv_freq)
    with jax.enable_x64(True):
        wide = exact_cos_sin(jnp.asarray(at), inv_freq)
    for a, b in zip(plain, wide, strict=True):
        assert b.dtype == jnp.float32
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_gradient_of_learned_frequencies():
    w, p = np.array([0.5, 0.1, 0.003]), np.array([3, 7, 900])
    loss = lambda w: sum(t.sum() for t in exact_cos_sin(jnp.asarray(p)[:, None], w))
    angle = p[:, None] * w
    want = (p[:, None] * (np.cos(angle) - np.sin(angle))).sum(0)
    got = jax.jit(jax.grad(loss))(jnp.asarray(w, jnp.float32))
    np.testing.assert_allclose(got, want, rtol=2e-4)
    second = -(p[:, None] ** 2 * (np.cos(angle) + np.sin(angle))).sum(0)
    got = jax.vmap(jax.jacfwd(jax.grad(loss)))(jnp.asarray(w, jnp.float32)[None])[0]
    np.testing.assert_allclose(np.diag(got), second, rtol=2e-4)


def test_float32_phase_rounds_as_the_reference():
    """The option is off by its documented 6e-8 per token, neither exact nor worse."""
    inv_freq, positions = reference_ladder(1e4, 64), np.array([1_000_003, 16_777_217], np.int32)
    cos, sin = float32_cos_sin(jnp.asarray(positions)[:, None], inv_freq)
    angle = np.float32(positions)[:, None] * inv_freq
    assert angle.dtype == np.float32
    assert np.abs(cos - np.cos(angle.astype(np.float64))).max() < 2e-6
    assert phase_error(cos, sin, exact_angles(positions, ladder(1e4, 64))) > 1e-2


def test_turn_words():
    inv_freq = ladder(5e5, 128)
    high, low = turn_words(inv_freq).astype(object)
    for w, h, lo in zip(inv_freq, high, low, strict=True):
        assert abs(int(h) * 2**32 + int(lo) - float(w) * INV_TWO_PI * 2**64) <= 0.5 + 1e-9 * 2**64


def test_multiply_high():
    a = RNG.integers(0, 2**32, 500, np.uint64)
    b = RNG.integers(0, 2**32, 500, np.uint64)
    a[:2], b[:2] = 2**32 - 1, 2**32 - 1
    got = multiply_high(jnp.asarray(a, jnp.uint32), jnp.asarray(b, jnp.uint32))
    np.testing.assert_array_equal(got, (a * b) >> np.uint64(32))


def test_ladder_is_correctly_rounded():
    """Each entry is the double nearest to the real number: its neighbours are farther off."""
    for theta, dim in ((1e4, 24), (1e6, 32), (2.5e5, 36)):
        for i, w in enumerate(ladder(theta, dim).tolist()):
            # w == theta ** (-2i / dim)  <=>  w ** dim * theta ** (2i) == 1
            below, above = (
                ((Fraction(w) + Fraction(float(np.nextafter(w, to)))) / 2) ** dim
                * Fraction(theta) ** (2 * i)
                for to in (0, 9)
            )
            assert below <= 1 <= above


def test_ladder_of_a_traced_base():
    got = jax.jit(lambda t: ladder(t, 128))(jnp.float32(5e5))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, ladder(5e5, 128), rtol=1e-6)


@pytest.mark.parametrize("theta", [0.0, -1.0, np.nan, np.inf, "1e4", None, True, 10**400])
def test_bad_base(theta):
    with pytest.raises(ValueError, match="theta must be"):
        check_theta(theta)
