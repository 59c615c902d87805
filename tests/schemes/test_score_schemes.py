"""Schemes with scores of their own, against loops over queries and keys in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal
from harness import (
    DIMS,
    T,
    case,
    close,
    dots,
    kv_head,
    ladder64,
    sigmoid,
    softmax_rows,
    softplus,
    turned,
    weights,
)

from flax_pos.attention import attend
from flax_pos.functional.distance import alibi_slopes
from flax_pos.schemes.alibi import Alibi
from flax_pos.schemes.cope import Cope
from flax_pos.schemes.dape import Dape
from flax_pos.schemes.grape_ap import GrapeAP
from flax_pos.schemes.kerple_log import KerpleLog
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.path import Path
from flax_pos.schemes.pope import Pope
from flax_pos.schemes.shaw import Shaw
from flax_pos.schemes.stick_breaking import StickBreaking
from flax_pos.schemes.transformer_xl import TransformerXL
from flax_pos.types import Coords

BLOCKS = {"implementation": "blockwise", "block_q": 4, "block_k": 5}


@pytest.mark.parametrize("rows", [4, 64])
def test_cope_reads_its_table_between_rows(rows):
    scheme = Cope(max_pos=rows)
    c = case(scheme, noise=1.0)
    params, _, q, k = c.numpy()
    e, plain = params["table"], dots(q, k)

    def score(n, i, j):
        p = sum(sigmoid(plain(n, i, t)) for t in range(j, i + 1))
        p = min(p, rows - 1)
        low, high = int(np.floor(p)), int(np.ceil(p))
        between = (1 - (p - low)) * (q[i, n] @ e[:, low]) + (p - low) * (q[i, n] @ e[:, high])
        return plain(n, i, j) + between

    close(weights(scheme, c), softmax_rows(score), 1e-5)
    close(weights(scheme, c, **BLOCKS), softmax_rows(score), 1e-5)


def test_cope_starts_as_no_positions():
    c = case(Cope(), noise=0.0)
    assert c.params["table"].shape == (DIMS.head_dim, 64)
    close(weights(Cope(), c), weights(NoPE(), c._replace(params={})))


def test_cope_counts_only_what_a_query_sees():
    scheme = Cope(max_pos=8)
    c = case(scheme, noise=1.0)
    params, _, q, k = c.numpy()
    plain = dots(q, k)
    rows = lambda n, i, p: np.interp(p, np.arange(8), q[i, n] @ params["table"])
    count = lambda n, i, j: sum(sigmoid(plain(n, i, t)) for t in range(j, i + 1))
    score = lambda n, i, j: plain(n, i, j) + rows(n, i, count(n, i, j))
    seen = lambda i, j: i - 3 < j <= i
    close(weights(scheme, c, window=3), softmax_rows(score, seen=seen), 1e-5)


def test_shaw_adds_a_clipped_row_to_the_key():
    scheme = Shaw(max_distance=3)
    c = case(scheme)
    params, _, q, k = c.numpy()
    a = params["table"]

    def score(n, i, j):
        key = k[j, kv_head(n)] + a[int(np.clip(j - i, -3, 3)) + 3]
        return q[i, n] @ key / np.sqrt(8)

    close(weights(scheme, c), softmax_rows(score))
    everything = lambda i, j: True
    close(weights(scheme, c, causal=False), softmax_rows(score, seen=everything))


@pytest.mark.parametrize("options", [{"implementation": "dense"}, BLOCKS], ids=["dense", "blocks"])
def test_shaw_adds_a_clipped_row_to_the_value(options):
    scheme = Shaw(max_distance=3, values=True)
    c = case(scheme)
    v = normal(c.k.shape, 2)
    at = Coords(c.index, c.pos)
    mixed = lambda **how: attend(scheme, c.params, c.q, c.k, v, at, at, **how, **options)
    params, _, q, k = c.numpy()
    a, b, values = params["table"], params["values"], np.asarray(v[0], np.float64)
    row = lambda i, j: int(np.clip(j - i, -3, 3)) + 3
    score = lambda n, i, j: q[i, n] @ (k[j, kv_head(n)] + a[row(i, j)]) / np.sqrt(8)
    for causal, seen in ((True, lambda i, j: j <= i), (False, lambda i, j: True)):
        expected = np.zeros((T, DIMS.heads, DIMS.head_dim))
        for (n, i, j), w in np.ndenumerate(softmax_rows(score, seen=seen)):
            expected[i, n] += w * (values[j, kv_head(n)] + b[row(i, j)])
        close(mixed(causal=causal)[0], expected)
    with pytest.raises(ValueError, match=r"as wide as keys \(8\) to values, which are 5 wide"):
        attend(scheme, c.params, c.q, c.k, v[..., :5], at, at, **options)


def test_transformer_xl():
    scheme = TransformerXL()
    c = case(scheme)
    params, _, q, k = c.numpy()
    u, v, w = params["u"], params["v"], params["w"]
    pairs = DIMS.width // 2
    freq = 10000.0 ** (-np.arange(pairs) / pairs)

    def score(n, i, j):
        angle = (i - j) * freq
        r = np.einsum("fcnh,cf->nh", w, np.stack([np.sin(angle), np.cos(angle)]))
        return ((q[i, n] + u[n]) @ k[j, kv_head(n)] + (q[i, n] + v[n]) @ r[n]) / np.sqrt(8)

    close(weights(scheme, c), softmax_rows(score))
    close(weights(scheme, c, **BLOCKS), softmax_rows(score))


def test_transformer_xl_is_exact_a_million_tokens_on():
    scheme = TransformerXL()
    c = case(scheme, noise=1.0)
    far = c._replace(pos=c.pos + (1 << 20))
    close(weights(scheme, far), weights(scheme, c), 2e-5)


@pytest.mark.parametrize("inner", [KerpleLog(), Alibi()])
def test_dape_mixes_logits_and_biases_of_all_heads(inner):
    scheme = Dape(inner=inner, hidden=5)
    c = case(scheme)
    params, _, q, k = c.numpy()
    w, plain = params["dape"], dots(q, k)

    def bias(n, r):
        if isinstance(inner, Alibi):
            return -np.float64(alibi_slopes(DIMS.heads)[n]) * r
        p, a = max(params["p"][n], 0.01), max(params["a"][n], 0.01)
        return -p * np.log(1 + a * r)

    def score(n, i, j):
        s = np.array([plain(m, i, j) for m in range(DIMS.heads)])
        b = np.array([bias(m, i - j) for m in range(DIMS.heads)])
        both = np.concatenate([s, b])
        hidden = both @ w["w1"].reshape(-1, 5) + w["b1"]
        hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
        return s[n] + b[n] + hidden @ w["w2"][:, n] + w["b2"][n]

    close(weights(scheme, c), softmax_rows(score))


def test_dape_wants_a_bias_and_the_scores_for_itself():
    with pytest.raises(ValueError, match="inner must have a bias to adapt, 'none' has none"):
        Dape(inner=NoPE())
    with pytest.raises(ValueError, match="inner must leave scores to dape, 'dape' has its own"):
        Dape(inner=Dape())


def test_pope_compares_lengths_and_angles_channel_by_channel():
    scheme = Pope()
    c = case(scheme)
    offset = jnp.linspace(-9.0, 1.0, c.params["offset"].size).reshape(c.params["offset"].shape)
    c = c._replace(params={"offset": offset})
    _, _, q, k = c.numpy()
    freq = 10000.0 ** (-np.arange(8) / 8)

    def score(n, i, j):
        d = np.clip(np.asarray(offset, np.float64)[n], -2 * np.pi, 0)
        lengths = softplus(q[i, n]) * softplus(k[j, kv_head(n)])
        return (lengths * np.cos((j - i) * freq + d)).sum() / np.sqrt(8)

    close(weights(scheme, c), softmax_rows(score))


def test_stick_breaking_takes_its_part_of_what_is_left():
    scheme = StickBreaking()
    c = case(scheme)
    _, _, q, k = c.numpy()
    plain = dots(q, k)
    expected = np.zeros((DIMS.heads, T, T))
    for n in range(DIMS.heads):
        for i in range(T):
            left = 1.0
            for j in reversed(range(i)):
                expected[n, i, j] = sigmoid(plain(n, i, j)) * left
                left *= 1 - sigmoid(plain(n, i, j))
    close(weights(scheme, c), expected)
    close(weights(scheme, c, **BLOCKS), expected)
    assert np.all(expected.sum(-1) < 1)
    assert not expected[:, 0].any()


def test_stick_breaking_stays_finite_where_a_key_takes_all():
    scheme = StickBreaking()
    c = case(scheme)
    sharp = c._replace(q=100 * c.q, k=100 * c.k)
    assert np.isfinite(weights(scheme, sharp)).all()
    grad = jax.grad(lambda q: _sum(scheme, sharp._replace(q=q)))(sharp.q)
    assert bool(jnp.isfinite(grad).all())


def _sum(scheme, c):
    from harness import _weights

    return jnp.square(_weights(scheme, c, DIMS._replace(length=T), ())).sum()


def test_grape_ap_sums_along_the_path():
    scheme = GrapeAP(path_dim=4)
    c = case(scheme)
    params, x, q, k = c.numpy()
    p = np.einsum("td,dnp->tnp", x, params["w"])
    p /= np.sqrt((p**2).mean(-1, keepdims=True) + 1e-6)
    slopes, plain = np.asarray(alibi_slopes(DIMS.heads), np.float64), dots(q, k)

    def score(n, i, j):
        path = 0.0
        for t in range(j + 1, i + 1):
            # R_{i-t} p_t: turned back by the distance, all pairs by one radian per token.
            path += np.log(sigmoid(p[i, n] @ turned(p[t, n], t - i, np.ones(2)) / 4))
        return plain(n, i, j) + slopes[n] * path

    close(weights(scheme, c), softmax_rows(score))
    close(weights(scheme, c, **BLOCKS), softmax_rows(score))


def test_path_reflects_what_passes_over_each_token():
    scheme = Path(rank=3)
    c = case(scheme)
    params, x, q, k = c.numpy()
    low = x @ params["down"]
    heads = DIMS.kv_heads
    w, beta = np.zeros((T, heads, 8)), np.zeros((T, heads))
    for t in range(T):
        conv = sum(
            params["conv"][d] * np.einsum("r,rkh->kh", low[t - d], params["up"])
            for d in range(3)
            if t - d >= 0
        )
        conv = conv * sigmoid(conv)
        w[t] = conv / np.sqrt((conv**2).sum(-1, keepdims=True) + 1e-6)
        beta[t] = 2 * sigmoid(x[t] @ params["beta"] + params["beta_bias"])

    def score(n, i, j):
        g = kv_head(n)
        key = k[j, g]
        for t in range(j + 1, i + 1):  # the key is rewritten by every token after it
            key = key - beta[t, g] * w[t, g] * (w[t, g] @ key)
        return q[i, n] @ key / np.sqrt(8)

    close(weights(scheme, c), softmax_rows(score), 1e-5)
    close(weights(scheme, c, **BLOCKS), softmax_rows(score), 1e-5)


@pytest.mark.parametrize(
    "scheme",
    [
        Cope(),
        Pope(),
        StickBreaking(),
        *(
            pytest.param(scheme, marks=pytest.mark.slow)
            for scheme in (Shaw(), TransformerXL(), GrapeAP(), Path())
        ),
    ],
)
def test_scores_of_their_own_add_a_bias_that_they_are_given(scheme):
    """Stacked with a scheme that has a bias, none drops it."""
    from flax_pos.schemes.stack import Stack

    both = Stack(parts=(scheme, Alibi(max_bias=2.0)))
    c = case(both)
    own = c._replace(params=c.params[f"0_{scheme.name}"])
    assert np.abs(weights(both, c) - weights(scheme, own)).max() > 1e-2


def test_ladders_of_the_harness_are_ropes():
    np.testing.assert_allclose(ladder64(), [1, 0.1, 0.01, 0.001])
