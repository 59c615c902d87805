"""FoX and CABLE against loops over the tokens passed, and running totals at long range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import DIMS, T, case, close, dots, sigmoid, softmax_rows, softplus, weights

from flax_pos import get_scheme
from flax_pos.functional.decay import decay_bias, recent, running_total
from flax_pos.functional.distance import alibi_slopes
from flax_pos.schemes.alibi import Alibi
from flax_pos.schemes.cable import Cable
from flax_pos.schemes.fox import Fox
from flax_pos.types import Coords


def test_fox_sums_log_gates_after_the_key():
    c = case(Fox())
    params, x, q, k = c.numpy()
    log_gate = np.log(sigmoid(x @ params["w"] + params["b"]))
    plain = dots(q, k)
    score = lambda n, i, j: plain(n, i, j) + sum(log_gate[t, n] for t in range(j + 1, i + 1))
    close(weights(Fox(), c), softmax_rows(score))


def test_cable_sums_softplus_steps_after_the_key():
    c = case(Cable())
    params, x, q, k = c.numpy()
    step = softplus(x @ params["w"] + params["b"])
    plain = dots(q, k)
    score = lambda n, i, j: plain(n, i, j) - sum(step[t, n] for t in range(j + 1, i + 1))
    close(weights(Cable(), c), softmax_rows(score))


def test_constant_cable_starts_as_alibi():
    constant = Cable(content=False, alibi_init=True)
    c = case(constant, noise=0.0)
    assert set(c.params) == {"b"}
    close(weights(constant, c), weights(Alibi(), c._replace(params={})))


def test_content_cable_can_start_around_alibi():
    params = Cable(alibi_init=True).init_layer(jax.random.key(0), DIMS)
    close(np.log1p(np.exp(params["b"])), alibi_slopes(DIMS.heads), 1e-6)


@pytest.mark.parametrize("name", ["fox", "cable"])
def test_gates_are_read_from_what_precedes_a_token(name):
    """A change in token 4 moves the biases of pairs with key < 4 <= query, and no others."""
    scheme = get_scheme(name)()
    c = case(scheme)
    total = lambda x: scheme.coords(c.params, x, Coords(c.index, c.pos), None)
    bias = lambda at: scheme.bias(c.params, at, at, DIMS.heads)[0]
    changed = jnp.abs(bias(total(c.x)) - bias(total(c.x.at[0, 4].multiply(-2.0)))).max(0) > 1e-4
    i, j = np.ogrid[:T, :T]
    np.testing.assert_array_equal(np.asarray(changed & (j <= i)), (j < 4) & (i >= 4))


def test_padding_adds_nothing_and_calls_may_be_cut_anywhere():
    scheme = Fox()
    c = case(scheme)
    at = scheme.coords(c.params, c.x, Coords(c.index, c.pos), None)
    whole = at.feats["log_kept"].sum(-1)
    pads = jnp.array([[-1, -1, *range(5), -1, *range(5, 10)]], jnp.int32)
    real = np.flatnonzero(pads[0] >= 0)
    x = jnp.full_like(c.x, 7.0).at[0, real].set(c.x[0, :10])
    padded = scheme.coords(c.params, x, Coords(pads, pads), None).feats["log_kept"].sum(-1)
    close(padded[0, real], whole[0, :10], 1e-6)
    first = scheme.coords(c.params, c.x[:, :6], Coords(c.index[:, :6], c.pos[:, :6]), None)
    prev = jax.tree.map(lambda a: a[:, -1:], first)
    rest = scheme.coords(c.params, c.x[:, 6:], Coords(c.index[:, 6:], c.pos[:, 6:]), prev)
    close(rest.feats["log_kept"].sum(-1), whole[:, 6:], 1e-6)


def test_running_totals_keep_neighbours_apart_a_million_tokens_on():
    t = 1 << 20
    steps = -jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.0, (t, 1)), jnp.float32)
    total = jax.jit(running_total)(steps, jnp.ones(t, bool))
    exact = np.cumsum(np.asarray(steps, np.float64))
    error = np.asarray(total, np.float64).sum(-1)[:, 0] - exact
    assert np.abs(error).max() < 1e-3
    assert np.abs(exact[-1]) > 7e5
    # One float32 alone is 0.03 off there; a pair keeps single steps.
    last = decay_bias(total[-1:], total[-9:])[0, 0]
    close(last, exact[-1] - exact[-9:], 1e-5)


def test_running_totals_of_constant_steps_are_alibi():
    slope, t = 0.0437, 1 << 16
    total = jax.jit(running_total)(jnp.full((t, 1), -slope, jnp.float32), jnp.ones(t, bool))
    distance = np.array([1, 100, t - 1])
    bias = decay_bias(total[-1:], total[t - 1 - distance])[0, 0]
    np.testing.assert_allclose(bias, -np.float32(slope) * distance.astype(np.float64), rtol=3e-7)


def test_the_gradient_of_a_running_total_is_that_of_a_sum():
    steps = jnp.linspace(-1.0, 0.0, 5)[:, None]
    real = jnp.array([True, True, False, True, True])
    before = jnp.array([[[-3.0, 1e-9]]])
    out = jax.jacobian(lambda s, b: running_total(s, real, b).sum(-1)[:, 0], (0, 1))(steps, before)
    np.testing.assert_array_equal(out[0][..., 0], np.tril(np.ones((5, 5))) * np.asarray(real))
    np.testing.assert_array_equal(out[1][:, 0, 0], np.ones((5, 2)))


def test_recent_tokens_skip_padding_and_do_not_cross_a_start():
    index = jnp.array([-1, 0, -1, 1, 2, 0, 1], jnp.int32)
    x = jnp.arange(7.0)[:, None] + 1
    out = recent(x, index, 3)[..., 0]
    real = np.flatnonzero(index >= 0)
    expected = [[2, 0, 0], [4, 2, 0], [5, 4, 2], [6, 0, 0], [7, 6, 0]]
    np.testing.assert_array_equal(out[real], expected)
    first = recent(x[:4], index[:4], 3)
    rest = recent(x[4:], index[4:], 3, first[-1:, :2])[..., 0]
    np.testing.assert_array_equal(rest, expected[2:])
