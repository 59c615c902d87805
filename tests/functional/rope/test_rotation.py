"""The rotation itself: against a float64 oracle, its algebra, and reported faults."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from draws import normal
from hypothesis import given
from hypothesis import strategies as st
from rope_oracles import exact_angles, rope, rotated, unit_error

from flax_pos.functional.rope import (
    LAYOUTS,
    Axes,
    Linear,
    RopeSpec,
    Yarn,
    apply_rope,
    permute_layout,
    rope_tables,
    rotate,
    rotate_by_delta,
    rotate_with_tables,
)

YARN = Yarn(factor=4, original_max_position_embeddings=64)
COMPILED = jax.jit(apply_rope, static_argnames=("theta", "layout", "rotary_dim"))
TRACED = jax.jit(apply_rope)
TURN = jax.jit(rotate, static_argnames=("spec", "seq_len", "inverse"))
positions_below = lambda limit: st.integers(0, limit - 1)


def at(*positions):
    return jnp.array([positions], jnp.int32)


# Against the oracle -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rotary_dim", [None, 6])
def test_against_float64(layout, rotary_dim):
    x = normal((2, 5, 3, 16))
    where = jnp.array([[0, 1, 2, 300, 70_000], [2**20, 5, 2**31 - 1, 17, 2**24 + 1]])
    for theta in (1e4, 5e5):
        got = COMPILED(x, where, theta=theta, layout=layout, rotary_dim=rotary_dim)
        want = rope(x, where, theta, layout, rotary_dim)
        assert unit_error(got, want) < 2e-6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("trailing", [False, True])
def test_slices_against_float64(layout, trailing):
    spec = RopeSpec(
        layout=layout,
        partial_rotary_factor=0.375,
        rotary_slice="trailing" if trailing else "leading",
        scaling=YARN,
    )
    x, where = normal((1, 4, 2, 16)), at(3, 9, 1000, 2**30)
    inv_freq, factor, _ = spec.frequencies(head_dim=16)
    want = rotated(x, exact_angles(where, inv_freq), layout, start=10 if trailing else 0)
    turned = slice(10, 16) if trailing else slice(0, 6)
    want[..., turned] *= factor
    assert unit_error(TURN(x, where, spec=spec), want) < 2e-6


# Algebra ------------------------------------------------------------------------------------------


def scores(x, y, m, n, **settings):
    q, k = COMPILED(x, at(m), **settings), COMPILED(y, at(n), **settings)
    return float((q.astype(jnp.float32) * k.astype(jnp.float32)).sum())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-5), ("bfloat16", 0.15)])
@given(m=positions_below(2**15), n=positions_below(2**15), shift=positions_below(2**31 - 2**16))
def test_scores_depend_on_the_distance_only(layout, dtype, bound, m, n, shift):
    q, k = normal((1, 1, 1, 16), dtype=dtype), normal((1, 1, 1, 16), dtype=dtype, seed=1)
    near = scores(q, k, m, n, layout=layout)
    far = scores(q, k, m + shift, n + shift, layout=layout)
    assert near == pytest.approx(far, abs=bound)


@given(theta=st.floats(10, 1e7), shift=positions_below(2**31 - 2**16))
def test_scores_with_a_traced_base_depend_on_the_distance_only(theta, shift):
    q, k = normal((1, 1, 1, 16)), normal((1, 1, 1, 16), seed=1)
    score = lambda m, n: float((TRACED(q, at(m), theta) * TRACED(k, at(n), theta)).sum())
    assert score(9, 4) == pytest.approx(score(9 + shift, 4 + shift), abs=2e-5)


@given(p=st.integers(-(2**31), 2**31 - 1))
def test_norm_of_each_pair_is_kept(p):
    x = normal((1, 1, 2, 12))
    y = COMPILED(x, at(p), rotary_dim=8)
    before, after = (jnp.hypot(t[..., :4], t[..., 4:8]) for t in (x, y))
    np.testing.assert_allclose(before, after, rtol=1e-6)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@given(a=st.integers(-(2**30), 2**30 - 1), b=st.integers(-(2**30), 2**30))
def test_rotations_add_up(layout, a, b):
    x = normal((1, 1, 2, 8))
    twice = COMPILED(COMPILED(x, at(a), layout=layout), at(b), layout=layout)
    np.testing.assert_allclose(twice, COMPILED(x, at(a + b), layout=layout), atol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(p=st.integers(0, 2**31 - 1))
def test_inverse_undoes(layout, p):
    spec = RopeSpec(layout=layout, scaling=YARN, partial_rotary_factor=0.5)
    x = normal((1, 1, 2, 8))
    back = TURN(TURN(x, at(p), spec=spec), at(p), spec=spec, inverse=True)
    np.testing.assert_allclose(back, x, atol=2e-6)


@given(p=st.integers(0, 2**31 - 1))
def test_reverse_turns_the_other_way(p):
    x = normal((1, 1, 2, 8))
    np.testing.assert_allclose(
        TURN(TURN(x, at(p), spec=RopeSpec(reverse=True)), at(p), spec=RopeSpec()), x, atol=2e-6
    )


@pytest.mark.parametrize("rotary_dim", [None, 6])
def test_interleaved_on_permuted_channels_equals_half(rotary_dim):
    x, where = normal((2, 3, 4, 10)), jnp.array([[0, 7, 90], [1, 2**20, 3]])
    permute = lambda t, source, target: permute_layout(
        t, heads=1, source=source, target=target, rotary_dim=rotary_dim, axis=-1
    )
    half = apply_rope(x, where, layout="half", rotary_dim=rotary_dim)
    other = apply_rope(
        permute(x, "half", "interleaved"), where, layout="interleaved", rotary_dim=rotary_dim
    )
    np.testing.assert_array_equal(permute(other, "interleaved", "half"), half)
    written = apply_rope(
        permute(x, "half", "interleaved"), where,
        layout="interleaved_in_half_out", rotary_dim=rotary_dim,
    )  # fmt: skip
    np.testing.assert_array_equal(written, half)


def test_gradient_is_the_transpose_rotation():
    x, where, g = normal((1, 4, 2, 8)), at(0, 3, 77, 2**20), normal((1, 4, 2, 8), seed=2)
    for layout in LAYOUTS:
        spec = RopeSpec(layout=layout, partial_rotary_factor=0.5, scaling=YARN)
        got = jax.jit(jax.grad(lambda x, s=spec: (rotate(x, where, s) * g).sum()))(x)
        matrix = jax.jacfwd(lambda v, s=spec: rotate(v.reshape(x.shape), where, s).ravel())(
            x.ravel()
        )
        np.testing.assert_allclose(got.ravel(), matrix.T @ g.ravel(), atol=1e-5)
    plain = jax.grad(lambda x: (apply_rope(x, where) * g).sum())(x)
    np.testing.assert_allclose(plain, rotate(g, where, RopeSpec(), inverse=True), atol=2e-6)


def test_composes_with_transformations():
    x, where = normal((3, 4, 2, 8)), jnp.array([[0, 1, 2, 3], [5, 6, 7, 8], [90, 2, 2, 2**30]])
    want = apply_rope(x, where)
    np.testing.assert_allclose(jax.jit(apply_rope)(x, where), want, atol=5e-7)
    np.testing.assert_allclose(jax.vmap(apply_rope)(x, where), want, atol=5e-7)
    scanned = jax.lax.scan(lambda c, xs: (c, apply_rope(*xs)), 0, (x, where))[1]
    np.testing.assert_allclose(scanned, want, atol=5e-7)
    f = lambda x: apply_rope(x, where)
    value, tangent = jax.jvp(f, (x,), (x,))
    np.testing.assert_allclose(value, tangent, atol=5e-7)
    gradient = jax.grad(lambda x: (f(x) ** 3).sum())
    np.testing.assert_allclose(
        jax.grad(lambda x: (jax.checkpoint(f)(x) ** 3).sum())(x), gradient(x), atol=1e-5
    )
    rows = jax.vmap(jax.grad(lambda x, p: (apply_rope(x, p) ** 3).sum()))(x, where)
    np.testing.assert_allclose(rows, gradient(x), atol=1e-5)
    by_theta = jax.vmap(lambda t: apply_rope(x[:2], where[:2], t))(jnp.array([1e3, 1e4, 1e5]))
    np.testing.assert_allclose(by_theta[1], want[:2], atol=2e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_tables(layout):
    """To cos and sin as well, broadcast and partial, in both modes and against differences."""
    x = normal((2, 3, 2, 8))
    cos, sin = normal((3, 2), seed=1), normal((1, 3, 2), seed=2)
    f = lambda x, c, s: (rotate_with_tables(x, c, s[0], layout=layout, trailing=True) ** 3).sum()
    jax.test_util.check_grads(f, (x, cos, sin), order=2, modes=("fwd", "rev"), rtol=2e-2)


def test_batch_axes_of_positions():
    x, where = normal((2, 3, 4, 2, 8)), jnp.array([0, 5, 9, 2])
    want = apply_rope(x, jnp.broadcast_to(where, (2, 3, 4)))
    for shape in ((4,), (1, 4), (3, 4), (1, 1, 4), (2, 1, 4)):
        np.testing.assert_array_equal(apply_rope(x, jnp.broadcast_to(where, shape)), want)


def test_tables_once_for_all_layers():
    spec = RopeSpec(scaling=YARN, partial_rotary_factor=0.5)
    x, where = normal((1, 3, 2, 8)), at(1, 4, 500)
    cos, sin = rope_tables(where, spec, head_dim=8)
    assert cos.shape == sin.shape == (1, 3, 2)
    assert cos.dtype == sin.dtype == jnp.float32
    np.testing.assert_array_equal(rotate_with_tables(x, cos, sin), rotate(x, where, spec))


# Reports ------------------------------------------------------------------------------------------


def test_16_bit_input_at_position_4001():
    x = jnp.zeros((1, 1, 1, 64), jnp.bfloat16).at[..., 0].set(1)
    got = apply_rope(x, at(4001)).astype(jnp.float32).ravel()
    assert got[0] == pytest.approx(0.1808, abs=0.004)
    assert got[32] == pytest.approx(-0.9835, abs=0.004)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_result_is_rounded_once(dtype):
    x = normal((1, 5, 4, 128), dtype=dtype)
    where = at(0, 255, 257, 4095, 65535)
    got = COMPILED(x, where)
    want = COMPILED(x.astype(jnp.float32), where).astype(dtype)
    steps = jnp.abs(got.view(jnp.int16).astype(jnp.int32) - want.view(jnp.int16).astype(jnp.int32))
    assert int(steps.max()) <= 1
    assert float((steps > 0).mean()) < 0.01


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("x64", [False, True])
def test_dtype_is_kept(dtype, x64):
    with jax.enable_x64(x64):
        x = jnp.ones((1, 2, 1, 4), dtype)
        assert apply_rope(x, at(1, 2)).dtype == x.dtype
        for spec in (RopeSpec(scaling=YARN), RopeSpec(phase="float32", cast_early=True)):
            assert rotate(x, at(1, 2), spec).dtype == x.dtype


def test_large_phases():
    x = jnp.zeros((1, 1, 1, 64)).at[..., 0].set(1)
    got = apply_rope(x, at(1_000_000)).ravel()
    assert got[0] == pytest.approx(0.93675, abs=1e-5)
    assert got[32] == pytest.approx(-0.34999, abs=1e-5)


def test_one_base_in_three_spellings():
    x, where = normal((1, 3, 1, 8)), at(1, 2, 30)
    want = apply_rope(x, where, 10000)
    for theta in (10000.0, np.float32(1e4), np.int64(10000), jnp.float32(1e4)):
        np.testing.assert_array_equal(apply_rope(x, where, theta), want)


def test_both_layouts_of_one_vector():
    x = jnp.array([1.0, 2, 3, 4]).reshape(1, 1, 1, 4)
    for layout, want in (
        ("half", [3.16044, 1.79758, -0.10794, 4.09496]),
        ("interleaved", [2.20151, -0.39160, 2.79633, 4.14494]),
        ("interleaved_in_half_out", [2.20151, 2.79633, -0.39160, 4.14494]),
    ):
        np.testing.assert_allclose(apply_rope(x, at(5), layout=layout).ravel(), want, atol=1e-5)
    with pytest.raises(ValueError, match="layout must be one of half, interleaved"):
        apply_rope(x, at(5), layout="neox")


def test_axes_are_checked():
    x = jnp.broadcast_to(normal((1, 1, 1, 8)), (1, 4, 4, 8))
    got = apply_rope(x, at(0, 1, 2, 3))
    assert (got == got[:, :, :1]).all()
    assert not (got[:, 0] == got[:, 1]).all()
    wrong = normal((1, 5, 4, 8))  # heads where time should be
    with pytest.raises(ValueError, match=r"positions must have the axes \*B T of x, \(1, 5\)"):
        apply_rope(wrong, at(0, 1, 2, 3))
    with pytest.raises(ValueError, match="positions must have the axes"):
        apply_rope(wrong, at(0))
    with pytest.raises(ValueError, match="positions must have the axes"):
        apply_rope(wrong, jnp.int32(3))


def test_rows_are_independent():
    row = normal((1, 1, 2, 8))
    x = jnp.concatenate([row] * 3)
    want = apply_rope(row, at(6))
    got = apply_rope(x, jnp.array([[6], [6], [6]]))
    np.testing.assert_array_equal(got, jnp.concatenate([want] * 3))
    mixed = apply_rope(x, jnp.array([[6], [0], [11]]))
    np.testing.assert_array_equal(mixed[0], want[0])
    np.testing.assert_array_equal(mixed[1], row[0])
    np.testing.assert_array_equal(mixed[2:], apply_rope(row, at(11)))


PARTIAL = [1, 0, 2, -1, 0.5, 3, -2, 1]


def test_partial_rotary():
    x = jnp.array(PARTIAL).reshape(1, 1, 1, 8)
    want = [-1.27223, 0.03000, -1.83887, -0.99955, 0.5, 3, -2, 1]
    np.testing.assert_allclose(apply_rope(x, at(3), rotary_dim=4).ravel(), want, atol=1e-5)
    config = {"head_dim": 8, "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    spec = RopeSpec.from_hf_config(config)
    got = rotate(x, at(3), spec).ravel()
    np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_array_equal(got[4:], x.ravel()[4:])


def test_proportional():
    config = {"head_dim": 8, "rope_parameters": {
        "rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}  # fmt: skip
    got = rotate(jnp.array(PARTIAL).reshape(1, 1, 1, 8), at(3), RopeSpec.from_hf_config(config))
    want = [-1.06055, -0.88656, 2, -1, -0.35388, 2.86601, -2, 1]
    np.testing.assert_allclose(got.ravel(), want, atol=1e-5)


def test_three_equal_rows_are_text():
    spec = RopeSpec(axes=Axes(sections=(2, 1, 1)))
    x, where = normal((1, 6, 2, 8)), jnp.arange(6)[None]
    want = apply_rope(x, where)
    np.testing.assert_array_equal(rotate(x, jnp.stack([where] * 3), spec), want)
    np.testing.assert_array_equal(rotate(x, where, spec), want)


def test_no_table_limits_positions():
    x = normal((1, 1, 1, 8))
    assert unit_error(apply_rope(x, at(70_000)), rope(x, at(70_000))) < 1e-6


def test_sharded_over_the_sequence():
    mesh = jax.make_mesh((8,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    by_t = jax.sharding.PartitionSpec(None, "t")
    x, where = normal((2, 16, 2, 8)), jnp.tile(jnp.arange(100, 116), (2, 1))
    want = jax.jit(apply_rope)(x, where)
    put = lambda a: jax.device_put(a, jax.sharding.NamedSharding(mesh, by_t))
    np.testing.assert_array_equal(jax.jit(apply_rope)(put(x), put(where)), want)
    mapped = jax.jit(jax.shard_map(apply_rope, mesh=mesh, in_specs=(by_t, by_t), out_specs=by_t))
    np.testing.assert_array_equal(mapped(x, where), want)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_rotation_by_a_delta(layout, partial):
    """Moves rotated keys, whatever layout they were written in and however they are scaled."""
    x = normal((1, 1, 2, 8))
    for scaling in (Linear(factor=4), YARN):
        spec = RopeSpec(layout=layout, partial_rotary_factor=partial, scaling=scaling)
        moved = rotate_by_delta(rotate(x, at(9), spec), at(-4), spec)
        np.testing.assert_allclose(moved, rotate(x, at(5), spec), atol=1e-6)
        if partial < 1:
            np.testing.assert_array_equal(moved[..., 4:], x[..., 4:])


# Options of the reference's rounding --------------------------------------------------------------


def test_cast_early_rotates_in_16_bits():
    x, where = normal((1, 3, 2, 16), dtype=jnp.bfloat16), at(1, 300, 5000)
    cos, sin = rope_tables(where, RopeSpec(), head_dim=16)
    c, s = (t.astype(jnp.bfloat16)[..., None, :] for t in (cos, sin))
    a, b = jnp.split(x, 2, -1)
    want = jnp.concatenate([a * c - b * s, b * c + a * s], -1)
    got = jax.jit(rotate, static_argnames="spec")(x, where, spec=RopeSpec(cast_early=True))
    gap = lambda y: float(jnp.abs(y.astype(jnp.float32) - want.astype(jnp.float32)).max())
    assert gap(got) < 0.02
    assert not (got == rotate(x, where, RopeSpec())).all()


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: apply_rope(x, at(1).astype(jnp.float32)), TypeError, "positions must be int"),
        (lambda x: apply_rope(x, at(1).astype(jnp.int16)), TypeError, "at least 32 bits"),
        (lambda x: apply_rope(x, at(1) > 0), TypeError, "positions must be integers"),
        (lambda x: apply_rope(x.astype(jnp.int32), at(1)), TypeError, "x must be floating"),
        (lambda x: apply_rope(x[0, 0], at(1)), ValueError, "at least three axes"),
        (lambda x: apply_rope(x, at(1), rotary_dim=3), ValueError, "rotary_dim must be even"),
        (lambda x: apply_rope(x, at(1), rotary_dim=10), ValueError, "the head width 8, got 10"),
        (lambda x: apply_rope(x, at(1), rotary_dim=4.0), TypeError, "must be an integer"),
        (lambda x: apply_rope(x[..., :7], at(1)), ValueError, "must be even"),
        (lambda x: apply_rope(x, at(1), 0.0), ValueError, "theta must be positive"),
        (lambda x: rotate(x, at(1), RopeSpec(head_dim=16)), ValueError, "head_dim 16, got 8"),
        (lambda x: rotate(x, at(1), RopeSpec(), seq_len=0), ValueError, "seq_len must be"),
        (
            lambda x: rotate(x, at(1)[None, None], RopeSpec(axes=Axes(sections=(2, 2)))),
            ValueError,
            r"positions must be .* \(2, 1, 1\), got \(1, 1, 1, 1\)",
        ),
        (lambda x: rope_tables(at(1), RopeSpec()), ValueError, "has no head_dim"),
        (
            lambda x: rotate_with_tables(x, jnp.ones((1, 1, 5)), jnp.ones((1, 1, 5))),
            ValueError,
            "at most the head width 8",
        ),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(jnp.ones((1, 1, 1, 8)))


def test_delta_needs_the_length_of_a_length_dependent_law():
    from flax_pos.functional.rope import DynamicNTK

    spec = RopeSpec(scaling=DynamicNTK(factor=2, original_max_position_embeddings=8))
    x = normal((1, 1, 1, 8))
    with pytest.raises(ValueError, match="give the seq_len that x was rotated with"):
        rotate_by_delta(x, at(-1), spec)
    key = rotate(x, at(20), spec, seq_len=32)
    moved = rotate_by_delta(key, at(-7), spec, seq_len=32)
    np.testing.assert_allclose(moved, rotate(x, at(13), spec, seq_len=32), atol=1e-6)
