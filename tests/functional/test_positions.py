"""Positions from masks and segments."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_pos.functional.positions import (
    check_positions,
    positions_from_mask,
    positions_from_segments,
)

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "biases.npz")


def test_each_row_counts_its_own_tokens():
    mask = jnp.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], bool)
    out = positions_from_mask(mask)
    assert out.dtype == jnp.int32
    np.testing.assert_array_equal(out, [[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
    step = positions_from_mask(jnp.ones((2, 1), bool), start=mask.sum(-1))
    np.testing.assert_array_equal(step, [[3], [5]])


def test_integer_masks_count_every_non_zero():
    np.testing.assert_array_equal(positions_from_mask(jnp.array([2, 0, 1])), [0, -1, 1])


@pytest.mark.parametrize("name", ["full", "left_padded"])
def test_golden_generate(name):
    mask = GOLDEN[f"alibi/mask_{name}"]
    np.testing.assert_array_equal(
        positions_from_mask(mask, padding=0), GOLDEN[f"positions/generate_{name}"]
    )


def test_golden_roberta_and_fairseq():
    mask = GOLDEN["positions/pad1_input_ids"] != 1
    out = positions_from_mask(mask, start=2, padding=1)
    np.testing.assert_array_equal(out, GOLDEN["positions/pad1_roberta"])
    np.testing.assert_array_equal(out, GOLDEN["positions/pad1_fairseq"])
    cached = positions_from_mask(mask, start=2 + 5, padding=1)
    np.testing.assert_array_equal(cached, GOLDEN["positions/pad1_m2m100_cached5"])


def test_positions_restart_with_each_segment():
    out = positions_from_segments(jnp.array([1, 1, 1, 2, 2, 3, 0, 0]))
    assert out.dtype == jnp.int32
    np.testing.assert_array_equal(out, [0, 1, 2, 0, 1, 0, -1, -1])


def test_segments_on_both_sides_of_padding_and_the_same_id_again():
    out = positions_from_segments(jnp.array([[0, 4, 4, 0, 4, 2], [2, 1, 1, 2, 2, 2]]))
    np.testing.assert_array_equal(out, [[-1, 0, 1, -1, 0, 0], [0, 0, 1, 0, 1, 2]])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=6, max_size=6))
def test_mask_positions_are_a_running_count(mask):
    out = positions_from_mask(np.array(mask)).tolist()
    assert [p for p, m in zip(out, mask, strict=True) if m] == list(range(sum(mask)))
    assert all(p == -1 for p, m in zip(out, mask, strict=True) if not m)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_segment_positions_count_within_runs(segments):
    want, run = [], 0
    for i, s in enumerate(segments):
        run = run + 1 if i and segments[i - 1] == s else 0
        want.append(run if s else -1)
    assert positions_from_segments(np.array(segments)).tolist() == want


def test_under_jit_vmap_and_strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        mask = jnp.ones((3, 2, 4), bool)
        out = jax.jit(jax.vmap(positions_from_mask))(mask)
        np.testing.assert_array_equal(out, np.broadcast_to(np.arange(4), (3, 2, 4)))
        starts = jnp.arange(6, dtype=jnp.int32).reshape(3, 2)
        out = jax.jit(lambda m, s: positions_from_mask(m, start=s))(mask, starts)
        np.testing.assert_array_equal(out[..., 0], starts)
        out = jax.jit(jax.vmap(positions_from_segments))(mask.astype(jnp.int32))
        np.testing.assert_array_equal(out, np.broadcast_to(np.arange(4), (3, 2, 4)))


def test_an_empty_row_is_fine():
    assert positions_from_mask(jnp.ones((2, 0), bool)).shape == (2, 0)
    assert positions_from_segments(jnp.ones((2, 0), jnp.int32)).shape == (2, 0)


def test_additive_masks_are_refused():
    with pytest.raises(TypeError, match=r"mask must be bool.*got float32"):
        positions_from_mask(jnp.zeros(3))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int16", "uint16", "bool"])
def test_positions_that_cannot_count_are_refused(dtype):
    bad = jnp.zeros(3, dtype)
    with pytest.raises(TypeError, match=rf"start_ids must be integers of at least 32 .*{dtype}"):
        check_positions(bad, "start_ids")
    with pytest.raises(TypeError, match=dtype):
        jax.jit(check_positions)(bad)


def test_positions_become_int32_and_never_wrap():
    for good in (np.arange(3), jnp.arange(3, dtype=jnp.uint32)):
        out = check_positions(good)
        assert out.dtype == jnp.int32
        np.testing.assert_array_equal(out, [0, 1, 2])
    assert check_positions(7).shape == ()
    for too_far in (np.array([0, 2**31]), jnp.array([0, 2**31], jnp.uint32)):
        with pytest.raises(ValueError, match=r"positions must fit int32, got .* 0 \.\. 2147483648"):
            check_positions(too_far)


def test_axes_are_checked():
    good = jnp.zeros((3, 2, 5), jnp.int32)
    assert check_positions(good, axes=3).shape == good.shape
    with pytest.raises(ValueError, match=r"leading axis of length 3, got shape \(2, 5\)"):
        check_positions(good[0], axes=3)


def test_the_whole_of_int32_fits_and_nothing_else():
    ends = np.array([-(2**31), 2**31 - 1])
    np.testing.assert_array_equal(check_positions(ends), ends)
    for beyond in (np.array([-(2**31) - 1, 0]), np.array([0, 2**31])):
        with pytest.raises(ValueError, match="positions must fit int32"):
            check_positions(beyond)


@pytest.mark.parametrize("start", [2**31 - 2, np.array([0, 2**31 - 2])])
def test_positions_never_wrap(start):
    mask = jnp.array([[1, 1, 1], [0, 1, 1]], bool)
    fits = positions_from_mask(mask[:, 1:], start=start)
    assert int(fits.max()) == 2**31 - 1
    longer = jnp.ones((2, 3), bool)
    with pytest.raises(ValueError, match=r"start must leave room .* positions run to 2147483648"):
        positions_from_mask(longer, start=start)


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 3), (2, 1)])
def test_a_start_that_fits_no_row(shape):
    mask = jnp.ones((2, 3), bool) if shape != (1,) else jnp.ones(3, bool)
    with pytest.raises(ValueError, match="start must be one number or one per row"):
        positions_from_mask(mask, start=jnp.zeros(shape, jnp.int32))


def test_rows_have_an_axis():
    with pytest.raises(ValueError, match="mask must have axes"):
        positions_from_mask(True)
    with pytest.raises(ValueError, match="segments must have axes"):
        positions_from_segments(1)
