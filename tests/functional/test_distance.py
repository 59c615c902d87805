"""Slopes, buckets, shifts and temperatures, against golden values and exact loops."""

from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_pos.functional.distance import (
    alibi_bias,
    alibi_slopes,
    log_buckets,
    query_temperature,
    relative_shift,
    t5_buckets,
)

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "biases.npz")
HEADS = [*range(1, 25), 40]


# ALiBi -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", HEADS)
def test_golden_slopes(heads):
    out = alibi_slopes(heads)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, GOLDEN[f"alibi/bloom_slopes_{heads}"], rtol=1e-6)
    np.testing.assert_allclose(out, GOLDEN[f"alibi/mpt_slopes_{heads}"], rtol=1e-6)


@pytest.mark.parametrize("heads", [4, 12])
def test_golden_slopes_with_another_maximum(heads):
    want = GOLDEN[f"alibi/mpt_slopes_{heads}_max4"]
    np.testing.assert_allclose(alibi_slopes(heads, max_bias=4.0), want, rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(lambda m: alibi_slopes(heads, max_bias=m))(4.0), want, rtol=1e-6
    )


def test_slopes_for_any_number_of_heads_in_the_order_of_the_reference():
    np.testing.assert_array_equal(alibi_slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125])
    np.testing.assert_array_equal(alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    np.testing.assert_array_equal(alibi_slopes(3), [0.0625, 0.00390625, 0.25])
    extra = [0.70710678, 0.35355339, 0.17677670, 0.08838835]
    np.testing.assert_allclose(alibi_slopes(12), [*2.0 ** -np.arange(1, 9), *extra], rtol=1e-6)
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        alibi_slopes(0)


def test_bias_of_one_query_is_from_absolute_positions():
    out = alibi_bias(alibi_slopes(4), jnp.array([5]), jnp.arange(6))
    assert out.shape == (4, 1, 6)
    np.testing.assert_array_equal(out[0, 0], [-1.25, -1, -0.75, -0.5, -0.25, 0])


@pytest.mark.parametrize("length", [5, 6, 4])
def test_bias_is_a_function_of_its_arguments_alone(length):
    pos = jnp.arange(length)
    out = alibi_bias(alibi_slopes(2), pos, pos)
    want = -np.abs(np.arange(length)[:, None] - np.arange(length))
    np.testing.assert_array_equal(out, np.array([1 / 16, 1 / 256])[:, None, None] * want)


@pytest.mark.parametrize("mask", ["full", "left_padded", "right_padded"])
@pytest.mark.parametrize("heads", [4, 12])
def test_golden_bloom_and_falcon_biases_up_to_a_constant_per_query(mask, heads):
    tokens = GOLDEN[f"alibi/mask_{mask}"]
    pos = (np.cumsum(tokens, -1) - 1) * tokens
    query = pos.max(-1, keepdims=True)
    slopes = alibi_slopes(heads)
    ours = np.asarray(alibi_bias(slopes, jnp.asarray(query), jnp.asarray(pos)))
    shift = np.asarray(slopes)[None, :, None, None] * query[:, None, None, :]
    np.testing.assert_allclose(ours + shift, GOLDEN[f"alibi/bloom_{mask}_h{heads}"], atol=1e-6)
    # Falcon rounds slopes and products to bfloat16: eight bits.
    falcon = GOLDEN[f"alibi/falcon_{mask}_h{heads}"]
    np.testing.assert_allclose(ours + shift, falcon, rtol=2**-7, atol=1e-6)
    rounded = slopes.astype(jnp.bfloat16)[None, :, None] * jnp.asarray(pos, jnp.bfloat16)[:, None]
    np.testing.assert_array_equal(rounded.astype(jnp.float32)[:, :, None], falcon)


@pytest.mark.parametrize("length", [5, 12])
@pytest.mark.parametrize("heads", [4, 12])
def test_golden_mpt_bias_is_that_of_the_last_query(length, heads):
    out = alibi_bias(alibi_slopes(heads), jnp.array([length - 1]), jnp.arange(length))
    np.testing.assert_allclose(out, GOLDEN[f"alibi/mpt_len{length}_h{heads}"], rtol=1e-6)


def test_neighbouring_distances_stay_distinct_at_far_positions():
    far = 2**30
    keys = far - jnp.arange(2**20 - 1000, 2**20 + 1000, dtype=jnp.int32)
    out = np.asarray(alibi_bias(alibi_slopes(12), jnp.array([far]), keys))[:, 0]
    assert (np.diff(out, axis=-1) < 0).all()
    near = alibi_bias(alibi_slopes(12), jnp.array([2**20]), keys - far + 2**20)
    np.testing.assert_array_equal(out, near[:, 0])


def test_keys_after_the_query_count_by_distance():
    pos = jnp.array([[4, 9, 2]])
    out = alibi_bias(alibi_slopes(2), pos, pos)
    np.testing.assert_array_equal(out, jnp.swapaxes(out, -1, -2))
    assert out.shape == (1, 2, 3, 3)


def test_biases_under_strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        pos = jnp.arange(6).reshape(2, 3)
        out = jax.jit(lambda p: alibi_bias(alibi_slopes(4), p, p))(pos)
        assert (out.shape, out.dtype) == ((2, 4, 3, 3), jnp.float32)
        buckets = jax.jit(lambda r: t5_buckets(r, bidirectional=True))(pos)
        assert buckets.dtype == jnp.int32
        assert jax.jit(log_buckets)(pos).dtype == jnp.int32
        assert jax.jit(query_temperature)(pos).dtype == jnp.float32


# T5 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_golden_t5_buckets(direction):
    name, both = f"t5/{direction}_b32_d128", direction == "bidirectional"
    f = jax.jit(lambda r: t5_buckets(r, bidirectional=both))
    for g in (f, lambda r: t5_buckets(r, bidirectional=both)):
        np.testing.assert_array_equal(g(jnp.arange(-700, 701)), GOLDEN[f"{name}/line"])
    for t, s in ((1, 40), (5, 5), (24, 24), (60, 200)):
        relative = jnp.arange(s)[None, :] - jnp.arange(t)[:, None]
        np.testing.assert_array_equal(f(relative), GOLDEN[f"{name}/q{t}_k{s}"])


def test_t5_buckets_of_the_reference_check():
    rel = jnp.array([-200, -128, -64, -20, -16, -9, -8, -1, 0, 1, 8, 9, 15, 16, 127])
    both = [15, 15, 14, 10, 10, 8, 8, 1, 0, 17, 24, 24, 25, 26, 31]
    np.testing.assert_array_equal(t5_buckets(rel, bidirectional=True), both)
    causal = [31, 31, 26, 17, 16, 9, 8, 1, 0, 0, 0, 0, 0, 0, 0]
    np.testing.assert_array_equal(t5_buckets(rel), causal)


def test_bucket_is_from_absolute_positions():
    query, keys = 20, jnp.array([0, 12, 20])
    np.testing.assert_array_equal(t5_buckets(keys - query), [17, 8, 0])


def test_buckets_equal_the_exact_rule():
    def exact(n):
        if n < 16:
            return n
        # 16 + floor(16 log(n / 16) / log(8)), without logarithms.
        ratio = Fraction(n, 16) ** 16
        return min(31, 16 + max(j for j in range(60) if Fraction(8) ** j <= ratio))

    out = t5_buckets(-jnp.arange(129))
    np.testing.assert_array_equal(out, [exact(n) for n in range(129)])


@settings(max_examples=25, deadline=None)
@given(
    bidirectional=st.booleans(),
    quarter=st.integers(1, 20),
    beyond=st.integers(1, 550),
)
def test_t5_buckets_are_monotone_and_all_used(bidirectional, quarter, beyond):
    num_buckets = 4 * quarter
    single = quarter if bidirectional else 2 * quarter
    side = 2 * quarter if bidirectional else 4 * quarter
    n, last = jnp.arange(600), single + beyond
    options = {"bidirectional": bidirectional, "num_buckets": num_buckets, "max_distance": last}
    before = np.asarray(t5_buckets(-n, **options))
    assert (np.diff(before) >= 0).all()
    np.testing.assert_array_equal(before[:single], n[:single])
    assert before[last] == side - 1
    after = np.asarray(t5_buckets(n[1:], **options))
    np.testing.assert_array_equal(after, before[1:] + side if bidirectional else 0)


def test_t5_takes_real_positions():
    out = t5_buckets(jnp.array([-2.5, -15.9, -16.0, -1e6]))
    np.testing.assert_array_equal(out, [2, 15, 16, 31])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_buckets": 1}, "num_buckets must be at least 2, got 1"),
        ({"num_buckets": 5, "bidirectional": True}, "at least 4 and even, got 5"),
        ({"num_buckets": 32, "max_distance": 16}, "max_distance must exceed 16, .*got 16"),
    ],
)
def test_bad_bucket_settings_raise(options, message):
    with pytest.raises(ValueError, match=message):
        t5_buckets(jnp.array([0]), **options)


# DeBERTa, XLNet, temperatures --------------------------------------------------------------------


def test_golden_deberta_buckets():
    for f in (log_buckets, jax.jit(log_buckets)):
        out = f(jnp.arange(-612, 613))
        np.testing.assert_array_equal(out, GOLDEN["deberta/log_b256_m512/line"])
    for t, s in ((7, 7), (3, 50)):
        relative = np.arange(t)[:, None] - np.arange(s)[None, :]
        want = GOLDEN[f"deberta/log_b256_m512/q{t}_k{s}"][0]
        np.testing.assert_array_equal(jax.jit(log_buckets)(relative), want)
    with pytest.raises(ValueError, match="got 256 and 100"):
        log_buckets(jnp.array([0]), max_position=100)


@pytest.mark.parametrize("name", ["bi_q5_k5", "uni_q4_k7"])
def test_golden_relative_shift(name):
    scores = GOLDEN[f"xlnet/{name}_clamp-1/scores"]
    want = GOLDEN[f"xlnet/{name}_clamp-1/shifted"]
    t, s = want.shape[-2:]
    out = relative_shift(jnp.asarray(scores), s)
    np.testing.assert_array_equal(out, want)
    for i in range(t):
        for j in range(s):
            np.testing.assert_array_equal(out[..., i, j], scores[..., i, j + t - i])
    with pytest.raises(ValueError, match="must exceed length 11"):
        relative_shift(jnp.zeros((4, 11)), 11)


@pytest.mark.parametrize(
    ("name", "scale", "length"), [("b0.1_o16384", 0.1, 16384), ("b0.5_o8", 0.5, 8)]
)
def test_golden_query_temperature(name, scale, length):
    positions = GOLDEN[f"attention_scale/{name}_positions"]
    out = query_temperature(positions, scale=scale, length=length)
    np.testing.assert_allclose(out, GOLDEN[f"attention_scale/{name}"][:, 0, :, 0], rtol=1e-6)


def test_query_temperature_of_llama_4():
    positions = np.array([0, 8190, 8191, 100_000, -1])
    out = query_temperature(positions, offset=1)
    want = 1 + 0.1 * np.log(1 + np.array([0, 0, 1, 12, 0]))
    np.testing.assert_allclose(out, want, rtol=1e-6)
    with pytest.raises(TypeError, match="at least 32 bits"):
        query_temperature(jnp.zeros(2))


BIDIRECTIONAL = pytest.mark.parametrize("bidirectional", [False, True])


@BIDIRECTIONAL
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_t5_buckets_of_the_ends_of_every_signed_type(dtype, make, bidirectional):
    ends = np.iinfo(dtype)
    if make is jnp.asarray and dtype == "int64":
        pytest.skip("jax has no int64 here")
    run = lambda x: t5_buckets(x, bidirectional=bidirectional)
    wanted = run(jnp.array([-128, 0, 127], jnp.int32))
    np.testing.assert_array_equal(run(make(np.array([ends.min, 0, ends.max], dtype))), wanted)


@BIDIRECTIONAL
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "bool", "bfloat16", "float16"])
def test_t5_buckets_refuse_what_cannot_be_a_distance(dtype, bidirectional):
    with pytest.raises(TypeError, match=f"relative must be signed integers.* got {dtype}"):
        t5_buckets(jnp.zeros(3, dtype), bidirectional=bidirectional)
    with pytest.raises(ValueError, match="got NaN"):
        t5_buckets(jnp.array([0.0, jnp.nan]), bidirectional=bidirectional)


@pytest.mark.parametrize("heads", [2.0, "8", True, None])
def test_heads_are_integers(heads):
    with pytest.raises(TypeError, match="heads must be an integer, got"):
        alibi_slopes(heads)


@pytest.mark.parametrize("max_bias", [0.0, -8.0, float("nan"), float("inf")])
def test_a_bias_that_is_none(max_bias):
    with pytest.raises(ValueError, match="max_bias must be positive and finite, got"):
        alibi_slopes(8, max_bias=max_bias)
