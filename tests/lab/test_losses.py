"""Ways to measure loss, on texts small enough to count by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_pos.lab.losses import by_position, context_gain, mean_loss, windows


def test_windows_that_do_not_overlap():
    found = windows(np.arange(10, 20), 4)
    np.testing.assert_array_equal(found.ids, [[10, 11, 12, 13], [14, 15, 16, 17], [18, 0, 0, 0]])
    np.testing.assert_array_equal(found.labels, [[11, 12, 13, 14], [15, 16, 17, 18], [19, 0, 0, 0]])
    np.testing.assert_array_equal(found.length, [4, 4, 1])
    np.testing.assert_array_equal(found.scored, np.arange(4) < found.length[:, None])


def test_sliding_windows_score_what_is_new():
    found = windows(np.arange(10, 20), 4, 1)
    assert len(found.ids) == 6
    np.testing.assert_array_equal(found.scored[0], [True] * 4)
    np.testing.assert_array_equal(found.scored[1:], [[False, False, False, True]] * 5)


@given(st.integers(2, 40), st.integers(1, 12), st.data())
def test_every_target_is_scored_once_with_enough_context(tokens, length, data):
    stride = data.draw(st.integers(1, length))
    ids = np.arange(1, tokens + 1)
    found = windows(ids, length, stride)
    np.testing.assert_array_equal(found.labels[found.scored], ids[1:])
    inside = np.arange(length) < found.length[:, None]
    np.testing.assert_array_equal(found.labels[inside], found.ids[inside] + 1)
    assert not found.scored[~inside].any()
    context = np.nonzero(found.scored[1:])[1]
    assert (context >= length - stride).all()


def test_loss_is_divided_by_the_targets_that_were_scored():
    text = np.arange(12)
    found = windows(text[:8], 8)
    nll = np.full(found.ids.shape, 2.0)
    nll[~found.scored] = 0.0  # as scoring leaves what lies past the end
    assert found.scored.sum() == 7
    assert mean_loss(nll, found.scored) == 2.0


def test_buckets_weighted_by_tokens_reproduce_the_total():
    rng = np.random.default_rng(0)
    nll, scored = rng.gamma(2.0, size=(5, 23)), rng.random((5, 23)) < 0.6
    scored[:, 8:12] = False
    found = by_position(nll, scored, 4)
    np.testing.assert_allclose(found.centre, [2, 6, 10, 14, 18, 21.5])
    assert np.isnan(found.loss[2])
    assert found.count.sum() == scored.sum()
    total = np.nansum(found.loss * found.count) / found.count.sum()
    assert total == pytest.approx(mean_loss(nll, scored))
    assert found.loss[0] == pytest.approx(nll[:, :4][scored[:, :4]].mean())


def test_context_gain_is_on_the_same_targets():
    far, near = np.array([1.0, 2.0]), np.array([1.5, 2.5])
    assert context_gain({64: far, 8: near, 16: near}) == {8: 0.0, 16: 0.0, 64: 0.5}
    with pytest.raises(ValueError, match="same targets at every length"):
        context_gain({8: near, 16: far[:1]})


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match=r"stride=5 must lie in 1 \.\. length=4"):
        windows(np.arange(9), 4, 5)
    with pytest.raises(ValueError, match="at least 2 tokens"):
        windows(np.arange(1), 4)
    with pytest.raises(ValueError, match="width=0"):
        by_position(np.ones((1, 2)), np.ones((1, 2), bool), 0)
    with pytest.raises(ValueError, match="no target"):
        mean_loss(np.ones((1, 2)), np.zeros((1, 2), bool))
