"""Lookups: rows, gradients, and what a bad index does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_pos.functional.lookup import lookup

TABLE = jnp.arange(12.0).reshape(4, 3) + 1


def test_rows_in_range():
    ids = jnp.array([[3, 0], [1, 1]])
    np.testing.assert_array_equal(lookup(TABLE, ids), np.asarray(TABLE)[np.asarray(ids)])
    np.testing.assert_array_equal(jax.jit(lookup)(TABLE, ids), np.asarray(TABLE)[np.asarray(ids)])


def test_concrete_bad_index_raises_naming_index_and_size():
    for bad in (4, -1, -5, 100):
        with pytest.raises(ValueError, match=rf"token {bad} at \[1\].*4 rows, legal.*0 \.\. 3"):
            lookup(TABLE, jnp.array([3, bad]), name="token")


def test_traced_bad_indices_are_nan_and_give_no_gradient():
    ids = jnp.array([3, 4, -1, -5, 100])
    out = jax.jit(lookup)(TABLE, ids)
    np.testing.assert_array_equal(out[0], TABLE[3])
    assert np.isnan(out[1:]).all()
    gradient = jax.jit(jax.grad(lambda t, i: jnp.nansum(lookup(t, i))))(TABLE, ids)
    np.testing.assert_array_equal(gradient, [[0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 1, 1]])


def test_gather_agrees_with_one_hot_where_legal():
    ids = jnp.array([2, 0, 3])
    one_hot = jax.nn.one_hot(ids, 4) @ TABLE
    np.testing.assert_array_equal(jax.jit(lookup)(TABLE, ids), one_hot)


def test_error_policy_raises_at_run_time():
    f = jax.jit(lambda i: lookup(TABLE, i, out_of_range="error", name="ids"))

    def run(i):
        out = jax.block_until_ready(f(jnp.array([i])))
        jax.effects_barrier()
        return out

    np.testing.assert_array_equal(run(1), TABLE[1:2])
    with pytest.raises(jax.errors.JaxRuntimeError, match="ids 9 at"):
        run(9)
    with pytest.raises(ValueError, match="ids 9 at"):
        lookup(TABLE, jnp.array([9]), out_of_range="error", name="ids")


def test_clip_policy_clamps_because_it_was_asked_to():
    ids = jnp.array([-3, 2, 40])
    for f in (lookup, jax.jit(lookup, static_argnames="out_of_range")):
        np.testing.assert_array_equal(
            f(TABLE, ids, out_of_range="clip"), TABLE[jnp.array([0, 2, 3])]
        )


def test_size_hides_surplus_rows():
    with pytest.raises(ValueError, match=r"index 3 at .*3 rows"):
        lookup(TABLE, jnp.array([3]), size=3)
    assert np.isnan(jax.jit(lambda i: lookup(TABLE, i, size=3))(jnp.array([3]))).all()
    with pytest.raises(ValueError, match=r"size must be in 1 \.\. 4 .* got 5"):
        lookup(TABLE, jnp.array([3]), size=5)


def test_padding_index_reads_zero_and_gives_no_gradient():
    ids = jnp.array([-1, 2])
    f = lambda t, i: lookup(t, i, padding_index=-1)
    for g in (f, jax.jit(f)):
        np.testing.assert_array_equal(g(TABLE, ids), np.stack([np.zeros(3), TABLE[2]]))
    gradient = jax.grad(lambda t: f(t, ids).sum())(TABLE)
    np.testing.assert_array_equal(gradient.sum(-1), [0, 0, 3, 0])
    with pytest.raises(ValueError, match="index -2"):
        f(TABLE, jnp.array([-2]))


@pytest.mark.parametrize("table_dtype", ["bfloat16", "float16", "float32"])
def test_gradient_accumulates_in_float32(table_dtype):
    table = jnp.ones((5, 2), table_dtype)
    ids = jnp.full(1024, 3)
    loss = lambda t: lookup(t, ids).astype(jnp.float32).sum()
    gradient = jax.grad(loss)(table)
    assert gradient.dtype == table.dtype
    np.testing.assert_array_equal(np.asarray(gradient, np.float32)[3], [1024, 1024])
    np.testing.assert_array_equal(np.asarray(gradient, np.float32)[4], [0, 0])


def test_under_vmap_scan_and_forward_mode():
    table, ids = jnp.ones((5, 2), jnp.bfloat16), jnp.full((4, 256), 3)
    mapped = lambda t: jax.vmap(lambda i: lookup(t, i))(ids).astype(jnp.float32).sum()
    np.testing.assert_array_equal(np.asarray(jax.grad(mapped)(table), np.float32)[3], 1024)
    # One table of gradients, not one per batch row.
    shapes = [v.aval.shape for e in jax.make_jaxpr(jax.grad(mapped))(table).eqns for v in e.outvars]
    assert (4, 5, 2) not in shapes
    _, tangent = jax.jvp(lambda t: lookup(t, ids), (table,), (2 * table,))
    np.testing.assert_array_equal(np.asarray(tangent, np.float32), 2)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int32", "int64"])
def test_ids_of_any_width_read_the_same_rows(dtype):
    tables = jnp.arange(256 * 300.0).reshape(256, 300, 1)
    ids = np.random.default_rng(0).integers(0, 127, (256, 7))
    want = jnp.take_along_axis(tables, ids[..., None], axis=1)
    with jax.enable_x64(dtype == "int64"):
        out = jax.jit(jax.vmap(lookup))(tables, jnp.asarray(ids, dtype))
        np.testing.assert_array_equal(out, want)


def test_wide_ids_do_not_wrap_into_legal_ones():
    with jax.enable_x64(True):
        ids = jnp.array([2**32 + 1], jnp.int64)
        assert np.isnan(jax.jit(lookup)(TABLE, ids)).all()
        with pytest.raises(ValueError, match=str(2**32 + 1)):
            lookup(TABLE, ids)
    ids = jnp.array([2**32 - 1], jnp.uint32)
    assert np.isnan(jax.jit(lookup)(TABLE, ids)).all()


@pytest.mark.parametrize("bad", [jnp.array([1.0]), np.array([True]), [0.5]])
def test_ids_must_be_integers(bad):
    with pytest.raises(TypeError, match=r"ids must be integers, got (float|bool)"):
        lookup(TABLE, bad, name="ids")


def test_bad_settings_raise():
    with pytest.raises(
        ValueError, match=r"out_of_range must be one of .*'nan', 'error', 'clip'.*got 'wrap'"
    ):
        lookup(TABLE, jnp.array([0]), out_of_range="wrap")  # pyright: ignore
    with pytest.raises(TypeError, match="table must be floating, got int32"):
        lookup(jnp.zeros((2, 2), jnp.int32), jnp.array([0]))
    with pytest.raises(ValueError, match=r"axes R D, got shape \(3,\)"):
        lookup(jnp.zeros(3), jnp.array([0]))


def test_a_concrete_index_is_checked_while_tracing_too():
    with pytest.raises(ValueError, match="index 4"):
        jax.jit(lambda t: lookup(t, np.array([4])))(TABLE)


def test_dtype_and_strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        f = jax.jit(lambda t, i: lookup(t, i, padding_index=0, dtype=jnp.bfloat16))
        out = f(TABLE, jnp.array([[0, 1]]))
    assert out.dtype == jnp.bfloat16


_traced_lookup = jax.jit(lookup, static_argnames=("out_of_range",))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 6), min_size=5, max_size=5))
def test_every_index_is_a_row_or_nan(ids):
    out = np.asarray(_traced_lookup(TABLE, jnp.asarray(ids, jnp.int32)))
    for row, i in zip(out, ids, strict=True):
        if 0 <= i < 4:
            np.testing.assert_array_equal(row, TABLE[i])
        else:
            assert np.isnan(row).all()
