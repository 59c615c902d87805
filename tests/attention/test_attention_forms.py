"""Dense and blockwise attention against float64 loops, with every option."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_oracle import attention
from draws import normal

from flax_pos import Coords, Scheme, attend, get_scheme

FORMS = {
    "dense": {"implementation": "dense"},
    "blockwise": {"implementation": "blockwise", "block_q": 5, "block_k": 4},
    "one_block": {"implementation": "blockwise"},
}
SINKS = np.array([0.5, -1.0, 2.0, 0.0], np.float32)


def arrays(queries=11, keys=11, heads=4, kv_heads=2, width=6, value=3, dtype=jnp.float32):
    shapes = (queries, heads, width), (keys, kv_heads, width), (keys, kv_heads, value)
    return [normal((2, *shape), n, dtype) for n, shape in enumerate(shapes)]


def coords(index, segment=None):
    index = jnp.asarray(index, jnp.int32)
    segment = None if segment is None else jnp.asarray(segment, jnp.int32)
    return Coords(index, jnp.maximum(index, 0), {}, segment)


PLAIN = np.tile(np.arange(11), (2, 1))
PADDED = np.array([[-1, -1, -1, *range(8)], [*range(9), -1, -1]])
SEGMENTS = np.array([[1] * 5 + [2] * 6, [3] * 2 + [4] * 8 + [0]])
RESTARTED = np.array([[*range(5), *range(6)], [0, 1, *range(8), -1]])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": False},
        {"window": 1},
        {"window": 4},
        {"window": 4, "causal": False},
        {"chunk": 3},
        {"chunk": 3, "causal": False},
        {"scale": 1.3},
        {"softcap": 0.7},
        {"sinks": SINKS},
        {"sinks": SINKS, "window": 3, "softcap": 2.0, "scale": 0.4},
    ],
    ids=lambda o: "-".join(f"{k}={np.ravel(v)[0]}" for k, v in o.items()) or "causal",
)
@pytest.mark.parametrize("index", [PLAIN, PADDED], ids=["plain", "padded"])
def test_options_equal_loops(form, options, index):
    q, k, v = arrays()
    given = {**options, "sinks": jnp.asarray(SINKS)} if "sinks" in options else options
    at = coords(index)
    got = attend(get_scheme("none")(), {}, q, k, v, at, at, **given, **FORMS[form])
    np.testing.assert_allclose(got, attention(q, k, v, index, index, **options), atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_segments_equal_loops(form):
    q, k, v = arrays()
    at = coords(RESTARTED, SEGMENTS)
    got = attend(get_scheme("none")(), {}, q, k, v, at, at, **FORMS[form])
    segments = {"q_segment": SEGMENTS, "k_segment": SEGMENTS}
    np.testing.assert_allclose(got, attention(q, k, v, RESTARTED, RESTARTED, **segments), atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_other_numbers_of_queries_than_keys(form):
    q, k, v = arrays(queries=7, keys=13)
    q_index, k_index = np.tile(np.arange(7), (2, 1)), np.tile(np.arange(13), (2, 1))
    got = attend(
        get_scheme("none")(), {}, q, k, v, coords(q_index), coords(k_index), causal=False,
        **FORMS[form],
    )  # fmt: skip
    wanted = attention(q, k, v, q_index, k_index, causal=False)
    np.testing.assert_allclose(got, wanted, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_bias_joins_after_the_soft_cap(form):
    q, k, v = arrays()
    slopes = np.array([0.25, 0.0625, 0.015625, 0.00390625])
    distance = np.abs(np.arange(11)[:, None] - np.arange(11))
    at = coords(PADDED)
    got = attend(get_scheme("alibi")(), {}, q, k, v, at, at, softcap=0.5, **FORMS[form])
    bias = -slopes[:, None, None] * distance
    wanted = attention(q, k, v, PADDED, PADDED, softcap=0.5, bias=bias)
    np.testing.assert_allclose(got, wanted, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_see_nothing_are_zeros_with_zero_gradient(form):
    q, k, v = arrays()
    at = coords(PADDED)

    def loss(q, k, v):
        out = attend(get_scheme("alibi")(), {}, q, k, v, at, at, **FORMS[form])
        return out.sum(), out

    gradients, out = jax.grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
    padding = PADDED < 0
    assert (np.asarray(out)[padding] == 0).all()
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert (np.asarray(gradient)[padding] == 0).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [True, False])
def test_a_bias_may_rule_keys_out(form, causal):
    """-inf as a bias masks: some keys of a row, or all that it may see, which leaves zeros."""

    class Ruled(Scheme):
        def bias(self, params, q_at, k_at, heads):
            out = (q_at.pos % 3 == 1)[..., :, None] | (k_at.pos % 2 == 0)[..., None, :]
            return jnp.where(out, -jnp.inf, params["bias"])[..., None, :, :]

    q, k, v = arrays()
    at = coords(PLAIN)

    def loss(params, q, k, v):
        out = attend(Ruled(), params, q, k, v, at, at, causal=causal, **FORMS[form])
        return (out**2).sum(), out

    gradients, out = jax.grad(loss, (0, 1, 2, 3), has_aux=True)({"bias": jnp.float32(0.3)}, q, k, v)
    # By hand: the keys that are left, none of them for queries 1, 4, 7 and 10.
    rows, keys = PLAIN[0][:, None], PLAIN[0][None]
    left = (rows % 3 != 1) & (keys % 2 == 1) & ((keys <= rows) | (not causal))
    logits = np.einsum("btnh,bsnh->bnts", q, np.repeat(k, 2, 2), dtype=np.float64) / 6**0.5
    weights = np.where(left, np.exp(logits), 0.0)
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, where=total > 0, out=np.zeros_like(weights))
    np.testing.assert_allclose(
        out, np.einsum("bnts,bsnh->btnh", weights, np.repeat(v, 2, 2)), atol=2e-6
    )
    for gradient in jax.tree.leaves(gradients):
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("form", FORMS)
def test_no_batch_axis_and_two_batch_axes(form):
    q, k, v = arrays()
    at = coords(PLAIN)
    wanted = attend(get_scheme("alibi")(), {}, q, k, v, at, at, implementation="dense")
    one = jax.tree.map(lambda a: a[0], (q, k, v, at, at))
    two = jax.tree.map(lambda a: a[:, None], (q, k, v, at, at))
    alone = attend(get_scheme("alibi")(), {}, *one, **FORMS[form])
    nested = attend(get_scheme("alibi")(), {}, *two, **FORMS[form])
    np.testing.assert_allclose(alone, wanted[0], atol=2e-6)
    np.testing.assert_allclose(nested[:, 0], wanted, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_one_row_of_coords_serves_the_batch(form):
    q, k, v = arrays()
    whole, one = coords(PLAIN), coords(PLAIN[:1])
    wanted = attend(get_scheme("alibi")(), {}, q, k, v, whole, whole, implementation="dense")
    got = attend(get_scheme("alibi")(), {}, q, k, v, one, one, **FORMS[form])
    np.testing.assert_allclose(got, wanted, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_sums_of_16_bit_inputs_are_float32(form):
    # 4096 equal weights: in bfloat16 their sum would stop growing at 256.
    keys, scheme = 4096, get_scheme("none")()
    q, k = jnp.zeros((1, 1, 1, 8), jnp.bfloat16), jnp.zeros((1, keys, 1, 8), jnp.bfloat16)
    v = jnp.ones((1, keys, 1, 8), jnp.bfloat16)
    at = coords(np.arange(keys)[None])
    out = attend(scheme, {}, q, k, v, coords([[keys]]), at, **FORMS[form])
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(jnp.float32), 1.0, atol=1e-2)


@pytest.mark.parametrize("form", FORMS)
def test_huge_logits_do_not_overflow(form):
    q, k, v = arrays()
    at = coords(PLAIN)
    out = attend(get_scheme("none")(), {}, q * 1e4, k * 1e4, v, at, at, **FORMS[form])
    assert np.isfinite(out).all()


ALL = {**FORMS, "auto": {}, "xla": {"implementation": "xla"}}


@pytest.mark.parametrize("form", ALL)
def test_one_query_sees_all_keys_before_it(form):
    v = jnp.arange(4.0).reshape(1, 4, 1, 1)
    q, k = jnp.zeros((1, 1, 1, 1)), jnp.zeros((1, 4, 1, 1))
    at = coords([[3]]), coords([[0, 1, 2, 3]])
    out = attend(get_scheme("none")(), {}, q, k, v, *at, **ALL[form])
    assert float(out[0, 0, 0, 0]) == 1.5


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("queries", [[6], [4, 5, 6], list(range(7))])
def test_a_window_of_four_is_the_query_and_three_before(form, queries):
    keys = 9
    v = jnp.arange(float(keys)).reshape(1, keys, 1, 1)
    q, k = jnp.zeros((1, len(queries), 1, 1)), jnp.zeros((1, keys, 1, 1))
    at = coords([queries]), coords([list(range(keys))])
    out = attend(get_scheme("none")(), {}, q, k, v, *at, window=4, **ALL[form])
    assert float(out[0, -1, 0, 0]) == 4.5


def test_lengths_in_any_order_in_one_process():
    scheme, full = get_scheme("alibi")(), arrays()
    for length in (5, 6, 4):
        q, k, v = (a[:, :length] for a in full)
        index = PLAIN[:, :length]
        out = attend(scheme, {}, q, k, v, coords(index), coords(index))
        slopes = np.array([0.25, 0.0625, 0.015625, 0.00390625])
        bias = -slopes[:, None, None] * np.abs(np.arange(length)[:, None] - np.arange(length))
        np.testing.assert_allclose(out, attention(q, k, v, index, index, bias=bias), atol=2e-6)
