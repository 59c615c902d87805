"""Biases that are curves over distance, against their formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import DIMS, case, close, dots, softmax_rows, weights

from flax_pos.functional.curves import distances, kerple_log, kerple_power, sandwich
from flax_pos.schemes.fire import Fire
from flax_pos.schemes.kerple_log import KerpleLog
from flax_pos.schemes.kerple_power import KerplePower
from flax_pos.schemes.sandwich import Sandwich
from flax_pos.types import Coords


def test_kerple_log():
    c = case(KerpleLog())
    params, _, q, k = c.numpy()
    p, a = np.maximum(params["p"], 0.01), np.maximum(params["a"], 0.01)
    plain = dots(q, k)
    score = lambda n, i, j: plain(n, i, j) - p[n] * np.log(1 + a[n] * (i - j))
    close(weights(KerpleLog(), c), softmax_rows(score))


def test_kerple_power():
    c = case(KerplePower(), noise=0.8)
    params, _, q, k = c.numpy()
    p, a = np.clip(params["p"], 0.01, 2), np.maximum(params["a"], 0.01)
    plain = dots(q, k)
    score = lambda n, i, j: plain(n, i, j) - a[n] * (i - j) ** p[n]
    close(weights(KerplePower(), c), softmax_rows(score))


@pytest.mark.parametrize("scheme", [KerpleLog(), KerplePower()])
def test_kerple_starts_within_the_ranges_of_its_code(scheme):
    dims = DIMS._replace(heads=500)
    params = scheme.init_model(jax.random.key(0), dims)
    for name, top in (("p", 2), ("a", 1)):
        values = np.asarray(params[name])
        assert values.min() >= 0
        assert 0.95 * top < values.max() <= top
    assert scheme.init_layer(jax.random.key(0), dims) == {}


def test_kerple_numbers_below_their_least_are_read_as_it():
    params = {"p": jnp.array([-3.0, 5.0]), "a": jnp.array([-1.0, 1.0])}
    at = jnp.arange(4, dtype=jnp.int32)
    bias = KerplePower().bias(params, Coords(at, at), Coords(at, at), 2)
    r = np.abs(np.subtract.outer(np.arange(4), np.arange(4))).astype(float)
    close(bias[0], np.where(r > 0, -0.01 * r**0.01, 0), 1e-7)
    close(bias[1], -(r**2), 1e-5)


def test_kerple_curves_have_finite_gradients_at_distance_zero():
    r = jnp.zeros((1, 1, 1))
    for curve in (kerple_log, kerple_power):
        grads = jax.grad(lambda r, p, a, curve=curve: curve(r, p, a).sum(), (0, 1, 2))(
            r, jnp.array([0.5]), jnp.array([0.5])
        )
        assert all(bool(jnp.isfinite(g).all()) for g in grads)


def test_fire():
    scheme = Fire(hidden=5, threshold=4.0)
    c = case(scheme)
    w, _, q, k = c.numpy()
    psi = lambda r: np.log(1 + abs(w["c"]) * r)
    threshold = abs(w["multiplier"] * 4.0)
    assert threshold != 4.0
    plain = dots(q, k)

    def score(n, i, j):
        ratio = psi(i - j) / (psi(max(i, threshold)) + 1e-6)
        hidden = np.maximum(ratio * w["w1"] + w["b1"], 0)
        return plain(n, i, j) + hidden @ w["w2"][:, n] + w["b2"][n]

    close(weights(scheme, c), softmax_rows(score))


def test_fire_has_the_defaults_of_its_paper():
    params = Fire().init_layer(jax.random.key(0), DIMS)
    assert float(params["c"]) == pytest.approx(0.1)
    assert float(params["multiplier"]) == 1
    assert Fire().threshold == 512
    assert params["w1"].shape == (32,)
    assert params["w2"].shape == (32, DIMS.heads)


def test_fire_forgets_the_normaliser_only_below_its_threshold():
    scheme = Fire(threshold=8.0)
    near, far = (case(scheme, pos=np.arange(6) + start, t=6) for start in (0, 100))
    moved = near._replace(pos=near.pos + 2)
    far = near._replace(pos=far.pos)
    close(weights(scheme, moved), weights(scheme, near))
    assert np.abs(weights(scheme, far) - weights(scheme, near)).max() > 1e-3


def test_sandwich():
    scheme = Sandwich(width=6)
    c = case(scheme)
    _, _, q, k = c.numpy()
    plain = dots(q, k)

    def score(n, i, j):
        total = sum(np.cos((i - j) * 10000.0 ** (-2 * m / 6)) for m in (1, 2, 3))
        return plain(n, i, j) + (total - 3) / (8 * (n + 1) / DIMS.heads)

    close(weights(scheme, c), softmax_rows(score))


def test_sandwich_is_zero_at_distance_zero_and_exact_far_out():
    at = jnp.array([0, 1, 1 << 20], jnp.int32)
    bias = np.asarray(sandwich(at[2:], at, 2, 128), np.float64)[:, 0]
    r = (1 << 20) - np.array([0.0, 1.0, 2.0**20])
    w = 10000.0 ** (-2 * np.arange(1, 65) / 128)
    expected = np.cos(r[:, None] * w).sum(-1) - 64
    close(bias, np.stack([expected / 4, expected / 8]), 2e-4)
    close(bias[:, 2], 0, 1e-5)


def test_distances_of_a_million_tokens_are_told_apart():
    k = jnp.arange(1 << 20, (1 << 20) + 3, dtype=jnp.int32)
    out = distances(jnp.array([0], jnp.int32), k)[0, 0]
    np.testing.assert_array_equal(out, [1048576, 1048577, 1048578])
    bias = kerple_power(out[None, None], jnp.array([1.0]), jnp.array([1.0]))
    assert len(set(np.asarray(bias).ravel().tolist())) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KerpleLog(p_init=0.0), "p_init must be above 0, got 0.0"),
        (lambda: Fire(threshold=-1.0), "threshold must be above 0, got -1.0"),
        (lambda: Fire(hidden=0), "hidden must be at least 1, got 0"),
        (lambda: Fire(hidden=2.5), "hidden must be a whole number, got 2.5"),
        (lambda: Sandwich(width=7), "width must be even, got 7"),
        (lambda: Sandwich(theta=-2.0), "theta must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
