"""Padding, packing, explicit positions and their limits, through the whole model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import run, some_ids, tiny

CLASSIC = ("none", "sinusoidal", "learned", "rope", "alibi", "t5")


@pytest.mark.parametrize("name", CLASSIC)
def test_padding_changes_nothing(name):
    """On the left, on the right and in between; whatever stands on it, ids that do not exist and
    the library's own mark for nothing included."""
    model, ids = tiny(name), some_ids(4, 9)
    mask = np.ones((4, 9), bool)
    mask[0, :4] = mask[1, 5:] = mask[2, [0, 3, 4, 8]] = False
    out = run(model, ids, mask=jnp.asarray(mask))
    assert np.isfinite(out).all()
    for content in (-1, 999):
        other = run(model, jnp.where(mask, ids, content), mask=jnp.asarray(mask))
        np.testing.assert_array_equal(other[mask], out[mask])
    solo = run(model, ids[:1, 4:])[0]
    np.testing.assert_allclose(out[0, 4:], solo, atol=1e-5)
    np.testing.assert_allclose(out[1, :5], run(model, ids[1:2, :5])[0], atol=1e-5)
    holes = run(model, ids[2][mask[2]][None])[0]
    np.testing.assert_allclose(out[2][mask[2]], holes, atol=1e-5)
    np.testing.assert_allclose(out[3], run(model, ids[3:])[0], atol=1e-5)


@pytest.mark.parametrize("name", CLASSIC)
def test_packed_documents_equal_their_own_runs(name):
    model, ids = tiny(name), some_ids(1, 8)
    segments = jnp.array([[1, 1, 1, 2, 2, 3, 0, 0]])
    out = run(model, ids, segments=segments)
    for start, end in ((0, 3), (3, 5), (5, 6)):
        solo = run(model, ids[:, start:end])
        np.testing.assert_allclose(out[:, start:end], solo, atol=1e-5)


def test_segments_and_mask_together():
    model, ids = tiny("rope"), some_ids(1, 6)
    segments, mask = jnp.array([[1, 1, 1, 2, 2, 2]]), jnp.array([[0, 1, 1, 1, 1, 0]], bool)
    out = run(model, ids, segments=segments, mask=mask)
    np.testing.assert_allclose(out[:, 1:3], run(model, ids[:, 1:3]), atol=1e-5)


@pytest.mark.parametrize("name", CLASSIC)
def test_explicit_positions(name):
    model, ids = tiny(name), some_ids(2, 6)
    at = jnp.broadcast_to(jnp.arange(6), (2, 6))
    np.testing.assert_array_equal(run(model, ids, positions=at), run(model, ids))
    shifted = run(model, ids, positions=at + 5)
    apart = run(model, ids, positions=2 * at)
    relative = name not in ("sinusoidal", "learned")
    assert np.allclose(shifted, run(model, ids), atol=1e-4) == relative
    assert np.allclose(apart, run(model, ids), atol=1e-4) == (name == "none")


def test_positions_move_tokens_but_not_their_order():
    """Which token sees which is said by the mask alone, also where positions run backwards."""
    model, ids = tiny("alibi"), some_ids(1, 6)
    back = jnp.arange(6)[None, ::-1]
    changed = ids.at[0, -1].set((ids[0, -1] + 1) % 17)
    a, b = (run(model, x, positions=back) for x in (ids, changed))
    np.testing.assert_array_equal(a[:, :-1], b[:, :-1])


def test_past_the_end_of_a_table():
    model = tiny("learned", max_len=8)
    with pytest.raises(ValueError, match=r"9 tokens, but scheme 'learned' .* 0 \.\. 7 .*max_len=8"):
        run(model, some_ids(1, 9))
    at = jnp.stack([jnp.arange(8), jnp.arange(8) + 1])
    out = run(model, some_ids(2, 8), positions=at)  # traced: cannot be raised
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1, 7]).all()
    with pytest.raises(ValueError, match=r"position 8 at \[1, 7\] is out of range"):
        model(some_ids(2, 8), positions=at)
    # Padding and packing: rows may be longer than any text in them.
    mask = jnp.arange(12)[None] >= 5
    assert np.isfinite(run(model, some_ids(1, 12), mask=mask)).all()
    segments = 1 + jnp.arange(12)[None] // 7
    assert np.isfinite(run(model, some_ids(1, 12), segments=segments)).all()
    assert np.isfinite(run(tiny("rope", max_len=8), some_ids(1, 9))).all()


def test_training_noise_needs_a_key():
    model, ids = tiny("randomized"), some_ids(1, 6)
    noisy = jax.jit(lambda m, i, k: m(i, key=k))
    a, b = (noisy(model, ids, jax.random.key(seed)) for seed in (0, 1))
    assert np.abs(a - b).max() > 1e-4
    np.testing.assert_array_equal(a, noisy(model, ids, jax.random.key(0)))
    np.testing.assert_array_equal(run(model, ids), run(model, ids))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": np.ones((1, 5), bool)}, ValueError, r"mask has shape \(1, 5\), but the ids"),
        ({"mask": np.ones((1, 6), np.int32)}, TypeError, "mask has dtype int32; it must be bool"),
        ({"segments": np.ones(6, np.int32)}, ValueError, r"segments has shape \(6,\)"),
        ({"segments": np.ones((1, 6))}, TypeError, "segments must be integers"),
        ({"positions": np.arange(6)}, ValueError, r"positions has shape \(6,\)"),
        ({"positions": np.ones((1, 6), np.float32)}, TypeError, "positions must be integers"),
        ({"positions": np.ones((1, 6), np.int16)}, TypeError, "at least 32 bits, got int16"),
    ],
)
def test_arguments_that_do_not_fit(options, error, message):
    with pytest.raises(error, match=message):
        tiny("rope")(some_ids(1, 6), **options)


def test_packing_has_no_cache():
    model = tiny("rope")
    with pytest.raises(ValueError, match="segments are for packed rows without a cache"):
        model(some_ids(1, 6), segments=jnp.ones((1, 6), jnp.int32), cache=model.init_cache(1, 8))


def test_ids_that_are_no_integers():
    with pytest.raises(TypeError, match="ids must be integers"):
        tiny("rope")(jnp.ones((1, 6)))
