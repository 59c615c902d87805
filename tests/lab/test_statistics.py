import numpy as np
import pytest
from scipy import stats

from flax_pos.lab.statistics import summarise, t_cdf, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 19, 60])
def test_student_t_agrees_with_a_reference(degrees):
    for probability in (0.5, 0.6, 0.9, 0.975, 0.999):
        expected = stats.t.ppf(probability, degrees)
        assert t_quantile(probability, degrees) == pytest.approx(expected, abs=1e-9, rel=1e-9)
    for t in (0.0, 0.3, 2.0, 30.0):
        assert t_cdf(t, degrees) == pytest.approx(stats.t.cdf(t, degrees), abs=1e-12)


def test_the_interval_of_a_mean():
    values = [1.0, 2.0, 4.0, 5.0]
    found = summarise(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((3.0, low, high))
    assert found.values == (1.0, 2.0, 4.0, 5.0)
    assert summarise(values, "range")[:3] == (3.0, 1.0, 5.0)


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0]])
def test_too_few_seeds_have_no_interval(values):
    found = summarise(values)
    assert found.too_few
    assert (found.low, found.high) == (None, None)
    assert found.mean == np.mean(values)


def test_what_is_undefined_for_a_seed_is_undefined():
    assert summarise([1.0, None, 2.0]) is None
    assert summarise([]) is None


def test_a_value_that_is_not_finite_leaves_no_interval():
    assert summarise([1.0, float("nan"), 2.0]).too_few


def test_intervals_cover_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = [
        found.low <= 3.0 <= found.high
        for found in (summarise(rng.normal(3.0, 2.0, 4)) for _ in range(2000))
    ]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)
