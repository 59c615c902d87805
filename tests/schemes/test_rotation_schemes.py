"""Schemes that act on queries and keys alone, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import (
    DIMS,
    T,
    case,
    close,
    dots,
    kv_head,
    ladder64,
    rope_dots,
    softmax_rows,
    softplus,
    turned,
    weights,
)

from flax_pos.schemes.carope import CARoPE
from flax_pos.schemes.fope import Fope
from flax_pos.schemes.learnable_rope import LearnableRope
from flax_pos.schemes.log_n import LogN
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.qk_norm import QKNorm
from flax_pos.schemes.query_temperature import QueryTemperature
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.selective_rope import SelectiveRope
from flax_pos.schemes.ssmax import SSMax
from flax_pos.schemes.xpos import XPos
from flax_pos.types import Coords


@pytest.mark.parametrize("start", [0, 5000])
def test_xpos_fades_pair_by_pair(start):
    scheme = XPos(scale_base=16.0 if not start else 512.0)
    c = case(scheme, pos=np.arange(T) * 3 + start)
    _, _, q, k = c.numpy()
    zeta = (np.arange(4) / 4 + 0.4) / 1.4

    def score(n, i, j):
        r = 3 * (i - j)
        fade = np.tile(zeta ** (r / scheme.scale_base), 2)
        return (turned(q[i, n], r, ladder64()) * fade) @ k[j, kv_head(n)] / np.sqrt(8)

    close(weights(scheme, c), softmax_rows(score), 1e-5)


def test_xpos_says_nothing_wrong_where_float32_ends():
    """Past the range of float32 powers the result is not a number, never a wrong one."""
    scheme = XPos()
    c = case(scheme, pos=np.arange(T) + 60000)
    assert np.isnan(weights(scheme, c)).any()


def test_learned_frequencies_start_as_rope_and_move():
    scheme = LearnableRope(theta=100.0)
    c = case(scheme, noise=0.0)
    close(weights(scheme, c), weights(Rope(theta=100.0), c._replace(params={})))
    moved = case(scheme)
    (log_scale,) = (np.asarray(a, np.float64) for a in jax.tree.leaves(moved.params))
    w = ladder64(100.0) * np.exp(log_scale)
    _, _, q, k = moved.numpy()
    score = lambda n, i, j: turned(q[i, n], i - j, w) @ k[j, kv_head(n)] / np.sqrt(8)
    close(weights(scheme, moved), softmax_rows(score))


def test_fope_mixes_the_waves_that_turn_at_least_once():
    scheme = Fope(theta=100.0)
    dims = DIMS._replace(max_len=30)  # two of four pairs have wavelengths below 30
    c = case(scheme, dims=dims)
    params, _, q, k = c.numpy()
    w = ladder64(100.0)
    fast = w > 2 * np.pi / 30
    assert fast.sum() == 2
    assert params["cos"].shape == (2, 2, 2)

    def turn(v, p, g):
        cos, sin = np.ones(4), np.zeros(4)
        cos[:2] = np.cos(p * w[:2]) @ params["cos"][g]
        sin[:2] = np.sin(p * w[:2]) @ params["sin"][g]
        a, b = np.split(v, 2)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin])

    score = lambda n, i, j: (
        turn(q[i, n], i, kv_head(n)) @ turn(k[j, kv_head(n)], j, kv_head(n)) / np.sqrt(8)
    )
    close(weights(scheme, c, dims=dims), softmax_rows(score))


def test_fope_without_noise_is_rope_without_slow_pairs():
    params = Fope(gain=0.0).init_model(jax.random.key(0), DIMS)
    np.testing.assert_array_equal(params["cos"], np.broadcast_to(np.eye(2), (2, 2, 2)))
    noisy = Fope().init_model(jax.random.key(0), DIMS._replace(head_dim=64, max_len=1 << 20))
    spread = np.std(np.asarray(noisy["sin"]) - np.eye(32))
    assert spread == pytest.approx(0.3 / np.sqrt(32), rel=0.1)  # Xavier, gain 0.3


@pytest.mark.parametrize("trainable", [False, True])
def test_fope_trains_its_mixtures_only_when_asked(trainable):
    scheme = Fope(trainable=trainable)
    c = case(scheme)
    at = scheme.features(c.pos, DIMS)
    out = lambda p: jnp.square(scheme.rotate(p, c.q, Coords(c.index, c.pos, at), "q")[..., 0]).sum()
    grad = jax.grad(out)(c.params)
    assert all(bool((g != 0).any()) == trainable for g in jax.tree.leaves(grad))


def test_carope_sums_powers_of_chosen_frequencies():
    scheme = CARoPE()
    c = case(scheme)
    params, x, q, k = c.numpy()
    f = 1 / (1 + softplus(x @ params["w"]))
    angle = np.cumsum(f[..., None] ** np.arange(4), 0)  # T, K, pairs

    def score(n, i, j):
        g = kv_head(n)
        return turned(q[i, n], 1.0, angle[i, g] - angle[j, g]) @ k[j, g] / np.sqrt(8)

    close(weights(scheme, c), softmax_rows(score))


def test_selective_rope_convolves_sums_and_scales():
    scheme = SelectiveRope(rank=3, theta=50.0)
    c = case(scheme)
    params, x, q, k = c.numpy()
    x = x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)
    phi = np.einsum("td,dr,rkf->tkf", x, params["down"], params["up"])
    step = np.zeros_like(phi)
    for t in range(T):
        for d in range(min(4, t + 1)):
            step[t] += params["conv"][d] * phi[t - d]
    angle = np.cumsum(step, 0) * ladder64(50.0)

    def score(n, i, j):
        g = kv_head(n)
        return turned(q[i, n], 1.0, angle[i, g] - angle[j, g]) @ k[j, g] / np.sqrt(8)

    close(weights(scheme, c), softmax_rows(score))


@pytest.mark.parametrize("scheme", [CARoPE(), SelectiveRope()])
def test_angles_that_tokens_sum_up_stay_apart_far_out(scheme):
    """A million tokens into the text, neighbours are turned by the same differences."""
    c = case(scheme)
    at = Coords(c.index, c.pos, scheme.features(c.pos, DIMS))
    start = scheme.coords(c.params, c.x, at, None)
    prev = jax.tree.map(lambda a: jnp.zeros_like(a[:, -1:]), start)
    shifted = prev.feats["turns"].at[..., 0].set(float(1 << 18)).at[..., 1].set(0.25e-3)
    prev = prev._replace(feats={**prev.feats, "turns": shifted})
    later = scheme.coords(c.params, c.x, at, prev)
    gap = lambda a: (a.feats["turns"] - a.feats["turns"][:, :1]).sum(-1)
    close(gap(later), gap(start), 1e-6)


def test_ssmax_multiplies_logits_by_the_log_of_the_number_of_keys():
    c = case(SSMax())
    params, _, q, k = c.numpy()
    plain = dots(q, k)
    score = lambda n, i, j: params["s"][n] * np.log(i + 1) * plain(n, i, j)
    close(weights(SSMax(), c), softmax_rows(score))
    # A bias of -s log n instead, which softmax cancels, would change nothing.
    assert np.abs(weights(SSMax(), c) - weights(NoPE(), c._replace(params={}))).max() > 1e-2


def test_log_n_grows_only_past_the_length_trained_on():
    c = case(LogN(train_len=5))
    _, _, q, k = c.numpy()
    plain = dots(q, k)
    score = lambda n, i, j: max(1, np.log(i + 1) / np.log(5)) * plain(n, i, j)
    close(weights(LogN(train_len=5), c), softmax_rows(score))
    dims = DIMS._replace(max_len=5)
    close(weights(LogN(), c, dims=dims), softmax_rows(score))


def test_query_temperature_of_llama_4():
    scheme = QueryTemperature(length=4)
    c = case(scheme)
    _, _, q, k = c.numpy()
    plain = dots(q, k)
    score = lambda n, i, j: (1 + 0.1 * np.log(1 + (i + 1) // 4)) * plain(n, i, j)
    close(weights(scheme, c), softmax_rows(score))
    assert (QueryTemperature().scale, QueryTemperature().length) == (0.1, 8192)


def test_normalised_queries_and_keys():
    c = case(QKNorm())
    _, _, q, k = c.numpy()
    unit = lambda v: v / np.sqrt((v**2).mean(-1, keepdims=True) + 1e-5)
    close(weights(QKNorm(), c), softmax_rows(dots(unit(q), unit(k))))


def test_rope_at_real_positions_is_exact_a_million_tokens_on():
    pos = (np.arange(T) * 0.25 + 2.0**19).astype(np.float32)
    c = case(Rope(), pos=pos)
    _, _, q, k = c.numpy()
    close(weights(Rope(), c), softmax_rows(rope_dots(q, k, lambda i, j: 0.25 * (i - j))), 1e-5)


@pytest.mark.parametrize(
    "scheme", [XPos(), LearnableRope(), Fope(), CARoPE(), SelectiveRope(), SSMax(), QKNorm()]
)
def test_sixteen_bit_inputs_are_rounded_once(scheme):
    c = case(scheme)
    features = scheme.features(c.pos, DIMS)
    half = c.q.astype(jnp.bfloat16)
    at = scheme.coords(c.params, c.x, Coords(c.index, c.pos, features), None)
    out = scheme.rotate(c.params, half, at, "q")
    wide = scheme.rotate(c.params, half.astype(jnp.float32), at, "q")
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out, wide.astype(jnp.bfloat16))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: XPos(gamma=0.0), "gamma must be above 0, got 0.0"),
        (lambda: XPos(scale_base=float("nan")), "scale_base must be above 0, got nan"),
        (lambda: Fope(gain="much"), "gain must be a number, got 'much'"),
        (lambda: Fope(trainable=1), "trainable must be True or False, got 1"),
        (lambda: LogN(train_len=1), "train_len must be at least 2, got 1"),
        (lambda: QueryTemperature(length=0), "length must be at least 1, got 0"),
        (lambda: LearnableRope(theta=-1.0), "theta must be positive"),
        (lambda: SelectiveRope(layout="diagonal"), "layout must be one of"),
    ],
)
def test_settings_that_make_no_sense_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
