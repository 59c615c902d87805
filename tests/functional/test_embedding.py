"""Embeddings and the head."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import integers, normal

from flax_pos.functional.embedding import (
    embed,
    head_table,
    id_dtype,
    init_embedding,
    nearest_tokens,
    round_up,
    soft_cap,
    unembed,
)
from flax_pos.functional.loss import linear_cross_entropy

PARAMS = {"embedding": jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])}


def nll(logits, label):
    return -jax.nn.log_softmax(logits)[label]


# Parameters --------------------------------------------------------------------------------------


def test_shapes_and_ties():
    tied = init_embedding(jax.random.key(0), 7, 4)
    assert jax.tree.map(jnp.shape, tied) == {"embedding": (7, 4)}
    untied = init_embedding(jax.random.key(0), 7, 4, tied=False, dtype=jnp.bfloat16)
    assert jax.tree.map(jnp.shape, untied) == {"embedding": (7, 4), "head": (4, 7)}
    assert {a.dtype for a in untied.values()} == {jnp.dtype("bfloat16")}
    assert not np.allclose(
        np.asarray(untied["embedding"], np.float32), np.asarray(untied["head"].T, np.float32)
    )


def test_stddev():
    table = init_embedding(jax.random.key(0), 2000, 50, stddev=0.3)["embedding"]
    np.testing.assert_allclose([table.mean(), table.std()], [0, 0.3], atol=0.004)


def test_rows_are_rounded_up_and_surplus_rows_never_read():
    assert (round_up(128, 64), round_up(129, 64), round_up(50257, 128)) == (128, 192, 50304)
    params = init_embedding(jax.random.key(0), 10, 4, tied=False, pad_to_multiple=8)
    assert jax.tree.map(jnp.shape, params) == {"embedding": (16, 4), "head": (4, 16)}
    assert (params["embedding"][10:] == 0).all()
    assert (params["head"][:, 10:] == 0).all()
    assert unembed(params, jnp.ones(4), vocab_size=10).shape == (10,)
    assert nearest_tokens(params, -jnp.ones(4), 10, vocab_size=10).ids.max() < 10
    with pytest.raises(ValueError, match=r"ids 10 .*10 rows"):
        embed(params, jnp.array([10]), vocab_size=10)
    same = init_embedding(jax.random.key(0), 10, 4, tied=False)
    np.testing.assert_array_equal(params["embedding"][:10], same["embedding"])


@pytest.mark.parametrize("tied", [True, False])
def test_first_loss_is_about_ln_v(tied):
    params = init_embedding(jax.random.key(0), 1000, 64, tied=tied)
    h = normal((200, 64), 1)
    h = h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True))
    labels = integers((200,), 1000, 2)
    loss = jnp.mean(jax.vmap(nll)(unembed(params, h), labels))
    assert 6.85 < loss < 7.0


def test_vmap_over_seeds_equals_loop():
    keys = jax.random.split(jax.random.key(0), 3)
    make = lambda k: init_embedding(k, 5, 4, tied=False)
    stacked = jax.vmap(make)(keys)
    for i, key in enumerate(keys):
        for name, one in make(key).items():
            np.testing.assert_array_equal(stacked[name][i], one)


def test_file_dtype_holds_every_id():
    assert [str(id_dtype(v)) for v in (2, 256, 257, 65536, 65537, 128256)] == [
        *["uint8"] * 2,
        *["uint16"] * 2,
        *["uint32"] * 2,
    ]
    with pytest.raises(ValueError, match="vocab_size must be at least 1, got 0"):
        id_dtype(0)


# embed -------------------------------------------------------------------------------------------


def test_embed_follows_the_lookup_policy():
    np.testing.assert_array_equal(embed(PARAMS, jnp.array([[2, 0]])), [[[1, 1], [1, 0]]])
    with pytest.raises(ValueError, match=r"ids 3 at \[1\]"):
        embed(PARAMS, jnp.array([0, 3]))
    assert np.isnan(jax.jit(embed)(PARAMS, jnp.array([0, 3]))[1]).all()
    clipped = embed(PARAMS, jnp.array([9]), out_of_range="clip")
    np.testing.assert_array_equal(clipped, [[1, 1]])


@pytest.mark.parametrize(
    ("width", "rounded", "exact"),
    [(3072, 55.5, 55.42563), (1152, 34.0, 33.94113), (640, 25.25, 25.29822)],
)
def test_embedding_scale(width, rounded, exact):
    scale = math.sqrt(width)
    ones = {"embedding": jnp.ones((2, width), jnp.bfloat16)}
    out = embed(ones, jnp.array([0]), scale=scale, round_scale=True)
    assert out.dtype == jnp.bfloat16
    assert (out == rounded).all()
    out = embed({"embedding": jnp.ones((2, width))}, jnp.array([0]), scale=scale)
    np.testing.assert_allclose(out, exact, rtol=1e-6)


def test_rounding_the_scale_and_rounding_the_product_differ():
    table = {"embedding": jnp.full((1, 3072), 1.0078125, jnp.bfloat16)}  # 1 + 1/128
    scale = math.sqrt(3072)
    gemma = embed(table, jnp.array([0]), scale=scale, round_scale=True)
    once = embed(table, jnp.array([0]), scale=scale)
    assert float(gemma[0, 0]) == float(jnp.bfloat16(55.5 * 1.0078125))
    assert float(once[0, 0]) == float(jnp.bfloat16(scale * 1.0078125))
    assert float(gemma[0, 0]) != float(once[0, 0])


def test_compute_dtype_of_embeddings_and_float32_logits():
    out = embed(PARAMS, jnp.array([1]), dtype=jnp.bfloat16)
    assert out.dtype == jnp.bfloat16
    h = jnp.array([256.0, 1.0], jnp.bfloat16)
    for dtype in (jnp.float32, jnp.bfloat16):
        logits = unembed({"embedding": jnp.ones((1, 2), dtype)}, h)
        assert logits.dtype == jnp.float32
        assert logits[0] == 257
    assert unembed(PARAMS, h, dtype=jnp.bfloat16).dtype == jnp.bfloat16


# unembed -----------------------------------------------------------------------------------------


def test_unembed_tied_and_untied():
    h = jnp.array([2.0, 3.0])
    np.testing.assert_array_equal(unembed(PARAMS, h), [2, 3, 5])
    head = {**PARAMS, "head": jnp.array([[1.0, 0.0, 0.0], [0.0, 10.0, 0.0]])}
    np.testing.assert_array_equal(unembed(head, h), [2, 30, 0])
    with pytest.raises(ValueError, match="h has width 3, the head 2"):
        unembed(PARAMS, jnp.ones(3))


def test_tied_gradient_is_the_sum_of_both_uses():
    def loss(inputs, outputs):
        return nll(unembed({"embedding": outputs}, embed({"embedding": inputs}, jnp.array(1))), 2)

    table = PARAMS["embedding"]
    want = [[0, 0.1553624], [-0.4223188, 0.2669564], [0, -0.5776812]]
    np.testing.assert_allclose(jax.grad(lambda t: loss(t, t))(table), want, atol=1e-6)
    as_input, as_head = jax.grad(loss, (0, 1))(table, table)
    np.testing.assert_allclose(as_input[1], [-0.4223188, -0.1553624], atol=1e-6)
    np.testing.assert_allclose(as_head[1], [0, 0.4223188], atol=1e-6)


def test_scale_then_soft_cap_once_in_float32():
    np.testing.assert_allclose(
        soft_cap(jnp.array([124.0, -60.0]), 30.0), [29.98459, -28.92083], rtol=1e-6
    )
    one = {"embedding": jnp.ones((1, 1))}
    for dtype in (jnp.float32, jnp.bfloat16):
        logits = unembed(one, jnp.array([80.0], dtype), scale=0.5, softcap=30.0)
        np.testing.assert_allclose(logits, [26.10185], rtol=1e-6)
    out = soft_cap(jnp.array([124.0], jnp.bfloat16), 30.0)
    assert out.dtype == jnp.bfloat16
    assert out[0] == jnp.bfloat16(29.98459)
    with pytest.raises(ValueError, match="cap must be positive, got 0"):
        soft_cap(jnp.ones(1), 0.0)


# nearest_tokens ----------------------------------------------------------------------------------


def test_nearest_tokens_by_score_and_by_cosine():
    params = {"embedding": jnp.array([[3.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-2.0, -2.0]])}
    h = jnp.array([[1.0, 1.0], [-1.0, 0.0]])
    values, ids = nearest_tokens(params, h, 2)
    np.testing.assert_array_equal(ids, [[0, 2], [3, 1]])
    np.testing.assert_array_equal(values, [[3, 2], [2, 0]])
    values, ids = nearest_tokens(params, h, 2, by="cosine")
    np.testing.assert_array_equal(ids[0, 0], 2)
    np.testing.assert_allclose(values[0], [1, math.sqrt(0.5)], rtol=1e-6)
    np.testing.assert_allclose(values[1], [math.sqrt(0.5), 0], rtol=1e-6)


def test_nearest_tokens_of_either_table_and_of_zero():
    params = {**PARAMS, "head": jnp.array([[0.0, 5.0, 0.0], [0.0, 0.0, 0.0]])}
    h = jnp.array([1.0, 0.0], jnp.bfloat16)
    assert nearest_tokens(params, h, 1).ids.tolist() == [1]
    assert nearest_tokens(params, h, 1, table="embedding").ids.tolist() == [0]
    out = jax.jit(lambda h: nearest_tokens(PARAMS, h, 3, by="cosine"))(jnp.zeros(2))
    np.testing.assert_array_equal(out.values, [0, 0, 0])


def test_every_row_is_nearest_to_itself_by_cosine():
    params = init_embedding(jax.random.key(0), 30, 8)
    ids = nearest_tokens(params, 7 * params["embedding"], 1, by="cosine").ids
    np.testing.assert_array_equal(ids[:, 0], np.arange(30))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, r"k must be in 1 \.\. 3 .*got 0"),
        ({"k": 4}, r"k must be in 1 \.\. 3 .*got 4"),
        ({"k": 1, "by": "angle"}, "by must be 'score' or 'cosine', got 'angle'"),
        ({"k": 1, "table": "out"}, "table must be 'head' or 'embedding', got 'out'"),
    ],
)
def test_bad_arguments_of_nearest_tokens_raise(options, message):
    with pytest.raises(ValueError, match=message):
        nearest_tokens(PARAMS, jnp.ones(2), **options)


# Both --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_under_jit_grad_and_strict_promotion(dtype):
    params = jax.tree.map(lambda a: a.astype(dtype), PARAMS)

    def loss(params, ids):
        h = embed(params, ids, scale=2.0, dtype=jnp.bfloat16)
        return unembed(params, h, scale=0.5, softcap=5.0).sum()

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        gradient = jax.jit(jax.grad(loss))(params, jnp.array([[0, 1, 1]]))
    assert gradient["embedding"].dtype == dtype
    assert np.isfinite(np.asarray(gradient["embedding"], np.float32)).all()


@pytest.mark.parametrize("params", [{}, {"table": jnp.ones((3, 2))}])
def test_parameters_that_are_not_there(params):
    for use in (
        lambda: embed(params, jnp.array([1])),
        lambda: unembed(params, jnp.ones((1, 2))),
        lambda: nearest_tokens(params, jnp.ones(2), 1, table="embedding"),
    ):
        with pytest.raises(ValueError, match=r"params has the entries .*it needs 'embedding'"):
            use()


# Over devices ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_a_vocabulary_that_devices_do_not_divide(tied):
    """50257 tokens on eight devices: 50264 rows, of which the surplus shows nowhere, although it
    would win wherever it were looked at."""
    size, width = 50257, 16
    make = lambda **rows: init_embedding(jax.random.key(0), size, width, tied=tied, **rows)
    true, padded = make(), make(pad_to_multiple=8)
    fill = lambda a: a.at[size:].set(99) if a.shape[1] == width else a.at[:, size:].set(99)
    mesh = jax.make_mesh((8,), ("vocab",), axis_types=(jax.sharding.AxisType.Auto,))
    axes = {"embedding": ("vocab", None), "head": (None, "vocab")}
    spread = {
        name: jax.device_put(
            fill(a), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes[name]))
        )
        for name, a in padded.items()
    }
    assert spread["embedding"].addressable_shards[0].data.shape == (6283, width)
    ids = jnp.array([[0, 6282, 6283, size - 2, size - 1, 7]])

    @jax.jit
    def run(params, ids):
        def loss(params):
            h = embed(params, ids, scale=50.0, vocab_size=size)
            table = head_table(params)
            return linear_cross_entropy(h, table, ids[:, ::-1], vocab_size=size, chunk=4), h

        (value, h), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        nearest = nearest_tokens(params, h, 3, vocab_size=size)
        return (h, unembed(params, h, vocab_size=size), nearest.values, value), nearest, gradient

    got, nearest, gradient = run(spread, ids)
    want, nearest_alone, gradient_alone = run(true, ids)
    for ours, right in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, right, atol=1e-5)
    np.testing.assert_array_equal(nearest.ids, nearest_alone.ids)
    for name, ours in gradient.items():
        ours, right = (g if g.shape[1] == width else g.T for g in (ours, gradient_alone[name]))
        np.testing.assert_allclose(ours[:size], right, atol=1e-6)
        np.testing.assert_array_equal(ours[size:], 0)
    assert np.isnan(jax.jit(lambda p, i: embed(p, i, vocab_size=size))(spread, ids + 7)[0, 4]).all()
