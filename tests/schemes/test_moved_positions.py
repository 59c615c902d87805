"""Wrappers that put tokens somewhere else: laws of their draws, and what evaluation sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import T, case, close, rope_dots, softmax_rows, weights

from flax_pos.schemes.alibi import Alibi
from flax_pos.schemes.cape import Cape
from flax_pos.schemes.interpolated import Interpolated
from flax_pos.schemes.learned import Learned
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.pose import PoSE
from flax_pos.schemes.randomized import Randomized
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.shape import Shape
from flax_pos.schemes.sinusoidal import Sinusoidal

INDEX = jnp.arange(T, dtype=jnp.int32)
KEYS = jax.random.split(jax.random.key(0), 400)


def draws(scheme, index=INDEX, length=T, keys=KEYS):
    return np.asarray(jax.vmap(lambda k: scheme.positions(index, length=length, key=k))(keys))


def test_randomized_draws_sorted_subsets_of_the_range_evenly():
    pos = draws(Randomized(range=40))
    assert (np.diff(pos) > 0).all()
    assert pos.min() == 0
    assert pos.max() == 39
    times = np.bincount(pos.ravel(), minlength=40) / len(KEYS)
    np.testing.assert_allclose(times, T / 40, atol=0.1)  # each id equally often
    # The mean of the smallest of T out of 40.
    assert abs(pos[:, 0].mean() - (40 - T) / (T + 1)) < 0.3


def test_randomized_evaluates_on_one_fixed_draw_or_as_they_come():
    scheme = Randomized(range=40)
    fixed = scheme.positions(INDEX, length=T)
    np.testing.assert_array_equal(fixed, scheme.positions(INDEX, length=T))
    assert (jnp.diff(fixed) > 0).all()
    assert (fixed != INDEX).any()
    plain = Randomized(evaluation="identity")
    np.testing.assert_array_equal(plain.positions(INDEX, length=T), INDEX)
    assert scheme.depends_on_length
    assert not plain.depends_on_length


@pytest.mark.parametrize("key", [None, KEYS[0]])
def test_randomized_is_pointwise_and_knows_traced_lengths(key):
    scheme = Randomized(range=40)
    whole = scheme.positions(INDEX, length=T, key=key)
    part = jax.jit(lambda i, n: scheme.positions(i, length=n, key=key))(INDEX[5:9], T)
    np.testing.assert_array_equal(part, whole[5:9])
    beyond = jnp.array([-1, T, T + 3], jnp.int32)
    np.testing.assert_array_equal(scheme.positions(beyond, length=T, key=key), [-1, 40, 43])


@pytest.mark.parametrize("scheme", [Randomized(range=8), PoSE(target=8)], ids=lambda s: s.name)
@pytest.mark.parametrize("length", [12, np.int32(12), jnp.int32(12)], ids=str)
def test_a_text_longer_than_the_range_is_refused(scheme, length):
    with pytest.raises(ValueError, match=r"length 12 exceeds (range|target)=8"):
        scheme.positions(INDEX[:12], length=length, key=KEYS[0])


def test_no_two_tokens_share_a_place_where_a_traced_length_exceeds_the_range():
    place = jax.jit(lambda n: Randomized(range=8).positions(INDEX, length=n, key=KEYS[0]))
    assert place(T).tolist() == list(range(T))


def test_randomized_at_full_length_is_the_identity():
    np.testing.assert_array_equal(
        Randomized(range=T).positions(INDEX, length=T, key=KEYS[1]), INDEX
    )
    with pytest.raises(ValueError, match="length 13 exceeds range=12"):
        Randomized(range=12).positions(INDEX, length=T)


def test_pose_moves_the_second_part_by_one_random_gap():
    pos = draws(PoSE(target=100))
    gap = pos - np.asarray(INDEX)
    skip, cut = gap[:, -1], (gap == 0).sum(-1)
    moved = skip > 0
    assert (np.diff(gap) >= 0).all()
    assert ((gap == 0) | (gap == skip[:, None])).all()
    assert skip.min() == 0
    assert skip.max() == 100 - T
    assert pos.max() == 99
    assert set(cut[moved]) == set(range(1, (T + 1) // 2 + 1))
    assert abs(skip.mean() - (100 - T) / 2) < 5
    np.testing.assert_array_equal(PoSE().positions(INDEX, length=T), INDEX)
    with pytest.raises(ValueError, match="length 13 exceeds target=12"):
        PoSE(target=12).positions(INDEX, length=T, key=KEYS[0])


def test_shape_moves_all_by_one_number():
    pos = draws(Shape(max_offset=20))
    offset = pos[:, 0]
    assert (pos - offset[:, None] == np.asarray(INDEX)).all()
    assert offset.min() == 0
    assert offset.max() == 20
    assert abs(offset.mean() - 10) < 1.5
    np.testing.assert_array_equal(Shape().positions(INDEX, length=T), INDEX)
    assert int(Shape().positions(jnp.array([-1], jnp.int32), length=T, key=KEYS[0])[0]) == -1


def test_cape_shifts_jitters_and_stretches():
    index = jnp.arange(200, dtype=jnp.int32)
    pos = draws(Cape(max_shift=5.0, max_jitter=0.5, max_stretch=1.2), index, 200, KEYS[:100])
    slope = np.polyfit(np.arange(200), pos.T, 1)
    assert 1 / 1.2 - 0.01 < slope[0].min() < 0.86
    assert 1.16 < slope[0].max() < 1.2 + 0.01
    shift = slope[1] / slope[0]
    assert -5.2 < shift.min() < -4
    assert 4 < shift.max() < 5.2
    rest = pos / slope[0][:, None] - np.arange(200) - shift[:, None]
    assert 0.45 < np.abs(rest).max() < 0.7
    assert np.abs(rest).std() > 0.1
    part = Cape().positions(index[50:60], length=200, key=KEYS[0])
    np.testing.assert_array_equal(part, Cape().positions(index, length=200, key=KEYS[0])[50:60])


def test_cape_evaluates_as_its_inner_scheme():
    scheme = Cape()
    pos = scheme.positions(INDEX[None], length=T)
    assert pos.dtype == jnp.float32
    x = jnp.zeros((1, T, 6))
    close(scheme.embed({}, x, pos), Sinusoidal().embed({}, x, INDEX[None]), 1e-6)


def test_interpolated_positions_turn_rope_by_less():
    scheme = Interpolated(factor=4.0)
    c = case(scheme)
    pos = scheme.positions(c.index, length=T)
    _, _, q, k = c.numpy()
    expected = softmax_rows(rope_dots(q, k, lambda i, j: (i - j) / 4))
    close(weights(scheme, c._replace(pos=pos)), expected)
    far = scheme.positions(c.index + (1 << 20), length=1 << 21)
    close(weights(scheme, c._replace(pos=far)), expected, 1e-5)


def test_interpolated_biases_shrink():
    scheme = Interpolated(inner=Alibi(), factor=2.0)
    c = case(scheme)
    pos = scheme.positions(c.index, length=T)
    half = Alibi().bias({}, *(2 * (_at(c.pos),)), 4) / 2
    close(scheme.bias({}, *(2 * (_at(pos),)), 4), half, 1e-6)


def _at(pos):
    from flax_pos.types import Coords

    return Coords(pos, pos)


def test_a_factor_may_be_swept():
    pos = jax.vmap(lambda s: Interpolated(factor=s).positions(INDEX, length=T))(
        jnp.array([1.0, 4.0])
    )
    np.testing.assert_array_equal(pos, np.stack([INDEX, INDEX / 4]))


def test_wrappers_nest_from_the_outside_in():
    """Randomized(Interpolated(x)) draws, then squeezes; all draws differ."""
    both = Randomized(inner=Interpolated(inner=Rope(), factor=2.0), range=40)
    pos = both.positions(INDEX, length=T)
    drawn = Randomized(range=40).positions(INDEX, length=T)
    np.testing.assert_array_equal(pos, drawn / 2)
    inner = Randomized(inner=Shape(inner=NoPE(), max_offset=1000), range=40)
    a, b = (inner.positions(INDEX, length=T, key=k) for k in KEYS[:2])
    assert int(a[0]) != int(b[0])


def test_positions_out_of_a_table_are_not_clamped():
    from harness import DIMS

    scheme = Shape(inner=Learned(), max_offset=500)
    params = scheme.init_model(KEYS[0], DIMS)
    x = jnp.zeros((1, T, DIMS.width))
    with pytest.raises(ValueError, match=r"position 500 at .* is out of range: the table has 64"):
        scheme.embed(params, x, INDEX[None] + 500)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Randomized(range=0), "range must be at least 1, got 0"),
        (lambda: Randomized(evaluation="same"), "evaluation must be one of .* got 'same'"),
        (lambda: PoSE(target=-1), "target must be at least 1, got -1"),
        (lambda: Shape(max_offset=-1), "max_offset must be at least 0, got -1"),
        (lambda: Cape(max_stretch=0.9), "max_stretch must be at least 1, got 0.9"),
        (lambda: Interpolated(factor=0.0), "factor must be above 0, got 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
