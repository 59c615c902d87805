"""The classic schemes through their hooks, against golden values and bug reports."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal

from flax_pos.functional.lookup import lookup
from flax_pos.functional.positions import positions_from_mask, positions_from_segments
from flax_pos.functional.sinusoid import sinusoidal
from flax_pos.scheme import from_dict, to_dict
from flax_pos.schemes.alibi import Alibi
from flax_pos.schemes.learned import Learned
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.sinusoidal import Sinusoidal
from flax_pos.schemes.t5 import T5
from flax_pos.types import Coords, Dims

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "biases.npz")
DIMS = Dims(width=6, heads=4, kv_heads=2, head_dim=4, layers=3, max_len=8)


def at(pos):
    pos = jnp.asarray(pos, jnp.int32)
    return Coords(index=pos, pos=pos)


def params_of(scheme, dims=DIMS, layer=0):
    return scheme.layer_params(scheme.init(jax.random.key(0), dims), layer)


# What each one is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "uses", "relative", "unbounded"),
    [
        (NoPE(), set(), True, True),
        (Sinusoidal(), {"embed"}, False, True),
        (Learned(), {"init_model", "embed"}, False, False),
        (Alibi(), {"bias"}, True, True),
        (T5(), {"init_model", "bias"}, True, True),
    ],
)
def test_hooks_and_claims(scheme, uses, relative, unbounded):
    assert scheme.uses == uses
    assert (scheme.relative, scheme.unbounded, scheme.causal_only) == (relative, unbounded, False)
    assert from_dict(to_dict(scheme)) == scheme
    assert scheme.paper or scheme.name == "none"


@pytest.mark.parametrize("scheme", [Sinusoidal(), Learned()])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_embed_rounds_once_and_keeps_the_dtype(scheme, dtype):
    params = params_of(scheme)
    x = normal((1, 8, 6), 1).astype(dtype)
    pos = jnp.arange(8)[None]
    out = scheme.embed(params, x, pos)
    assert out.dtype == dtype
    exact = scheme.embed(params, x.astype(jnp.float32), pos)
    np.testing.assert_array_equal(out, exact.astype(dtype))


# Sinusoidal ------------------------------------------------------------------------------------


def test_sinusoidal_adds_its_table():
    scheme = Sinusoidal(layout="half", theta=50.0, denominator="half_minus_one", amplitude=0.25)
    pos = jnp.array([[3, 4, 900]])
    table = sinusoidal(pos, 6, layout="half", theta=50.0, denominator="half_minus_one")
    out = scheme.embed({}, jnp.ones((1, 3, 6)), pos)
    np.testing.assert_allclose(out, 1 + 0.25 * table, atol=1e-6)


@pytest.mark.parametrize("width", [6, 64])
def test_sinusoidal_has_the_papers_ratio_of_table_to_embeddings(width):
    x, pos = normal((1, 3, width)), jnp.array([[0, 1, 7]])
    paper = jnp.sqrt(width) * x + sinusoidal(pos, width)
    np.testing.assert_allclose(jnp.sqrt(width) * Sinusoidal().embed({}, x, pos), paper, atol=1e-5)


def test_sinusoidal_settings_can_be_swept_under_vmap():
    x, pos = jnp.zeros((1, 3, 6)), jnp.array([[0, 1, 7]])
    for field, values in (("theta", [100.0, 7.0]), ("amplitude", [0.5, 2.0])):
        swept = jax.vmap(
            lambda v, f=field: dataclasses.replace(Sinusoidal(), **{f: v}).embed({}, x, pos)
        )(jnp.array(values))
        for one, value in zip(swept, values, strict=True):
            want = dataclasses.replace(Sinusoidal(), **{field: value}).embed({}, x, pos)
            np.testing.assert_allclose(one, want, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layout": "x"}, "layout must be one of"),
        ({"denominator": "x"}, "denominator must be one of"),
        ({"theta": -1.0}, "theta must be above 0, got -1.0"),
        ({"amplitude": 0.0}, "amplitude must be above 0, got 0.0"),
    ],
)
def test_bad_sinusoidal_settings_raise(fields, message):
    with pytest.raises(ValueError, match=message):
        Sinusoidal(**fields)


# Learned ---------------------------------------------------------------------------------------


def test_learned_positions_past_the_table_never_read_a_row():
    scheme, table = Learned(), jnp.arange(48.0).reshape(8, 6)
    x = jnp.zeros((1, 3, 6))
    with pytest.raises(ValueError, match=r"position 9 at \[0, 2\] .* 8 rows"):
        scheme.embed({"table": table}, x, jnp.array([[6, 7, 9]]))
    out = jax.jit(scheme.embed)({"table": table}, x, jnp.array([[7, 8, 9]]))
    np.testing.assert_array_equal(out[0, 0], table[7])
    assert np.isnan(out[0, 1:]).all()


def test_learned_padding_adds_nothing_and_trains_nothing():
    scheme, params = Learned(), params_of(Learned())
    pos = jnp.array([[-1, -1, 0, 1]])
    x = jnp.ones((1, 4, 6))
    out = scheme.embed(params, x, pos)
    np.testing.assert_array_equal(out[0, :2], x[0, :2])
    np.testing.assert_allclose(out[0, 2:], 1 + params["table"][:2], rtol=1e-6)
    gradient = jax.grad(lambda p: jax.jit(scheme.embed)(p, x, pos).sum())(params)["table"]
    np.testing.assert_array_equal(gradient.sum(-1), [6, 6, 0, 0, 0, 0, 0, 0])
    with pytest.raises(ValueError, match="position -2"):
        scheme.embed(params, x, pos - 1)


def test_row_offset():
    scheme = Learned(offset=2)
    assert params_of(scheme)["table"].shape == (10, 6)
    params = {"table": jnp.arange(60.0).reshape(10, 6)}
    out = scheme.embed(params, jnp.zeros((1, 2, 6)), jnp.array([[0, 7]]))
    np.testing.assert_array_equal(out[0], params["table"][jnp.array([2, 9])])
    with pytest.raises(ValueError, match=r"position 8 .* 8 rows"):
        scheme.embed(params, jnp.zeros((1, 1, 6)), jnp.array([[8]]))
    with pytest.raises(ValueError, match="position -2"):
        scheme.embed(params, jnp.zeros((1, 1, 6)), jnp.array([[-2]]))
    with pytest.raises(ValueError, match="offset must be at least 0, got -1"):
        Learned(offset=-1)


def test_golden_opt_table():
    table, mask = jnp.asarray(GOLDEN["opt/small_weight"]), jnp.asarray(GOLDEN["opt/small_mask"])
    rows = lookup(table, positions_from_mask(mask, start=2, padding=1))
    np.testing.assert_array_equal(rows, GOLDEN["opt/small_embedding"])
    np.testing.assert_array_equal(rows[:, 5:], GOLDEN["opt/small_embedding_cached5"])

    scheme, pos = Learned(offset=2), positions_from_mask(mask)
    out = scheme.embed({"table": table}, jnp.zeros((2, 8, 6)), pos)
    want = np.where(np.asarray(mask)[..., None] > 0, GOLDEN["opt/small_embedding"], 0)
    np.testing.assert_array_equal(out, want)
    explicit = scheme.embed({"table": table}, jnp.zeros((1, 8, 6)), 3 + jnp.arange(8)[None])
    np.testing.assert_array_equal(explicit, GOLDEN["opt/small_embedding_explicit"])


def test_learned_positions_are_whole_numbers():
    with pytest.raises(TypeError, match=r"positions must be integers .*got float32"):
        Learned().embed(params_of(Learned()), jnp.zeros((1, 1, 6)), jnp.array([[0.5]]))


def test_learned_stddev():
    table = params_of(Learned(stddev=0.5), DIMS._replace(max_len=4000))["table"]
    np.testing.assert_allclose(table.std(), 0.5, rtol=0.02)


def test_packed_documents_read_the_rows_of_their_own_start():
    params = params_of(Learned())
    segments = jnp.array([[1, 1, 1, 2, 2, 3, 0, 0]])
    x = jnp.zeros((1, 8, 6))
    out = Learned().embed(params, x, positions_from_segments(segments))
    np.testing.assert_array_equal(out[0, 3:5], out[0, :2])
    np.testing.assert_array_equal(out[0, 5], out[0, 0])


# ALiBi -----------------------------------------------------------------------------------------


def test_alibi_in_decoding_uses_absolute_positions():
    out = Alibi().bias({}, at([[5]]), at([range(6)]), 4)
    assert (out.shape, out.dtype) == ((1, 4, 1, 6), jnp.float32)
    np.testing.assert_array_equal(out[0, 0, 0], [-1.25, -1, -0.75, -0.5, -0.25, 0])


@pytest.mark.parametrize("heads", [1, 3, 6, 12])
def test_alibi_has_slopes_for_any_number_of_heads(heads):
    out = Alibi().bias({}, at([[1]]), at([[0]]), heads)
    np.testing.assert_allclose(-out[0, :, 0, 0], GOLDEN[f"alibi/bloom_slopes_{heads}"], rtol=1e-6)


def test_alibi_max_bias_can_be_swept():
    f = lambda m: Alibi(max_bias=m).bias({}, at([[1]]), at([[0]]), 4)
    swept = jax.vmap(f)(jnp.array([8.0, 4.0]))
    np.testing.assert_allclose(swept[1], f(4.0), rtol=1e-6)
    np.testing.assert_allclose(-f(4.0)[0, :, 0, 0], GOLDEN["alibi/mpt_slopes_4_max4"], rtol=1e-6)
    with pytest.raises(ValueError, match="max_bias must be above 0, got 0"):
        Alibi(max_bias=0.0)


# T5 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_golden_t5_biases_and_decoding(direction):
    scheme = T5(bidirectional=direction == "bidirectional")
    name = f"t5/{direction}_b32_d128"
    params = {"table": jnp.asarray(GOLDEN[f"{name}/weight"])}
    bias = jax.jit(lambda q, k: scheme.bias(params, at(q), at(k), 4))
    square = jnp.arange(9)[None]
    np.testing.assert_array_equal(bias(square, square), GOLDEN[f"{name}/bias_q9_k9"])
    decode = bias(38 + jnp.arange(2)[None], jnp.arange(40)[None])
    np.testing.assert_array_equal(decode, GOLDEN[f"{name}/bias_decode_q2_k40"])


def test_t5_has_one_table_for_all_layers():
    params = T5(num_buckets=8).init(jax.random.key(0), DIMS)
    assert jax.tree.map(jnp.shape, params) == {"model": {"table": (8, 4)}, "layers": {}}


def test_t5_table_of_16_bits_gives_float32_biases_and_float32_sums():
    params = {"table": jnp.ones((32, 1), jnp.bfloat16)}
    far = at([range(2000, 3024)])
    f = lambda p: T5().bias(p, at([[9000]]), far, 1)
    assert f(params).dtype == jnp.float32
    gradient = jax.grad(lambda p: f(p).sum())(params)["table"]
    assert (float(gradient[31, 0]), float(gradient[30, 0])) == (1024, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_buckets": 3, "bidirectional": True}, "num_buckets must be at least 4 and even"),
        ({"max_distance": 16}, "max_distance must exceed 16"),
    ],
)
def test_bad_t5_settings_raise(fields, message):
    with pytest.raises(ValueError, match=message):
        T5(**fields)


# All -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [Alibi(), T5(), T5(bidirectional=True)])
def test_biases_depend_on_differences_alone_at_any_position(scheme):
    params = params_of(scheme)
    f = jax.jit(lambda s: scheme.bias(params, at([range(5)])._replace(pos=s), k_at(s), 4))
    k_at = lambda s: Coords(index=s, pos=s[:, ::-1])
    near = jnp.arange(5)[None] * 3
    for shift in (1000, 2**30):
        np.testing.assert_array_equal(f(near), f(near + shift))
