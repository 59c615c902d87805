"""Statistics against closed forms, scipy and simulated grids."""

import itertools

import numpy as np
import pytest
from scipy import stats

from flax_pos.lab.statistics import (
    compare,
    estimate,
    fraction_solved,
    holm,
    iqm,
    mean,
    median,
    performance_profile,
    probability_of_improvement,
    sign_flip,
    span,
    span_name,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# Summaries -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 11, 20])
def test_iqm_agrees_with_a_reference(n):
    scores = normal(6, n)
    np.testing.assert_allclose(iqm(scores), stats.trim_mean(scores, 0.25, axis=1), rtol=1e-12)


def test_iqm_ignores_one_seed_that_failed():
    assert iqm(np.array([0.9, 0.9, 0.9, 0.9, 0.0])) == pytest.approx(0.9)
    assert iqm(np.array([1.0, 2.0, 3.0, 100.0])) == 2.5


def test_the_interval_of_a_mean_has_the_width_of_the_closed_form():
    scores = normal(400)
    found = estimate([scores], mean)
    half = 1.96 * scores.std() / 20
    assert found.value == pytest.approx(scores.mean())
    assert found.low == pytest.approx(scores.mean() - half, abs=0.05 * half)
    assert found.high == pytest.approx(scores.mean() + half, abs=0.05 * half)


def test_the_bootstrap_agrees_with_a_reference():
    scores = normal(12, seed=4)
    for statistic in (iqm, median):
        found = estimate([scores], statistic)
        wanted = stats.bootstrap(
            (scores,), statistic, method="percentile", n_resamples=20_000, random_state=1
        ).confidence_interval
        assert (found.low, found.high) == pytest.approx(wanted, abs=0.06)


def test_resampling_stays_inside_a_task():
    """Two tasks far apart without noise: any mixing of their seeds would show as a width."""
    found = estimate([[0.0] * 5, [1.0] * 5], mean)
    assert found == (0.5, 0.5, 0.5)
    noisy = [normal(30), 100 + normal(30, seed=1)]
    found = estimate(noisy, mean)
    spread = np.sqrt(sum(a.var() / 30 for a in noisy)) / 2
    assert found.high - found.low == pytest.approx(2 * 1.96 * spread, rel=0.1)


def test_intervals_cover_the_truth_as_often_as_stated():
    rng = np.random.default_rng(0)
    for n, stated in ((5, 0.89), (10, 0.94), (20, 0.94)):
        covered = [
            found.low <= 0 <= found.high
            for found in (estimate([rng.normal(size=n)], resamples=500, seed=i) for i in range(800))
        ]
        assert np.mean(covered) == pytest.approx(stated, abs=0.025)


def test_fewer_than_five_seeds_in_any_task_have_no_interval():
    assert estimate([[1.0, 2.0, 3.0, 4.0]]).too_few
    assert estimate([[1.0] * 9, [1.0, 2.0]]).too_few
    assert not estimate([[1.0, 2.0, 3.0, 4.0, 5.0]]).too_few
    assert fraction_solved([1.0, 0.0, 1.0], 0.5) == (2 / 3, None, None)
    assert probability_of_improvement([[1.0] * 4], [[0.0] * 9]) == (1.0, None, None)
    (found,) = compare({"a": [[1.0, 2.0]], "b": [[0.0, 0.0]]})
    assert found.difference == (1.5, None, None)
    assert found.p is None
    assert found.adjusted_p is None


@pytest.mark.parametrize(("solved", "n"), [(0, 5), (3, 10), (10, 10), (17, 40)])
def test_fraction_solved_agrees_with_a_reference(solved, n):
    found = fraction_solved([0.99] * solved + [0.2] * (n - solved), 0.99)
    wanted = stats.binomtest(solved, n).proportion_ci(method="wilson")
    assert found == pytest.approx((solved / n, wanted.low, wanted.high), abs=1e-12)


def test_performance_profile_is_one_minus_the_distribution():
    scores = [[0.1, 0.5, 0.9], [0.5, 0.5]]
    assert performance_profile(scores, [0.0, 0.5, 0.6, 1.0]) == pytest.approx(
        [1, (2 / 3 + 1) / 2, (1 / 3) / 2, 0]
    )


# Two schemes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [0, 6])
def test_probability_of_improvement_is_mann_whitney(digits):
    first, second = normal(9).round(digits), 0.5 + normal(13, seed=1).round(digits) / 2
    found = probability_of_improvement([first], [second])
    wanted = stats.mannwhitneyu(first, second).statistic / (9 * 13)
    assert found.value == pytest.approx(wanted)
    assert found.low <= found.value <= found.high


def test_probability_of_improvement_of_normals_has_its_closed_form():
    first, second = 0.5 + normal(3, 400), normal(3, 400, seed=1)
    found = probability_of_improvement(first, second, resamples=50)
    assert found.value == pytest.approx(stats.norm.cdf(0.5 / np.sqrt(2)), abs=0.02)
    mirrored = probability_of_improvement(second, first, resamples=50)
    assert found.value + mirrored.value == pytest.approx(1)


def test_sign_flip_agrees_with_a_reference():
    for seed in range(4):
        differences = 0.4 + normal(9, seed=seed)
        wanted = stats.permutation_test(
            (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
        )
        assert sign_flip([differences]) == pytest.approx(wanted.pvalue, abs=1e-12)


def test_sign_flip_by_hand():
    assert sign_flip([[1.0] * 5]) == 2 / 2**5
    assert sign_flip([[0.0] * 6]) == 1.0
    assert sign_flip([[1.0, 2.0, -3.0]]) == 1.0
    # Two tasks, weighted alike though one has twice the seeds: sums +-1/2 +-1/2 +-1 of 1/2 each.
    assert sign_flip([[1.0, 1.0], [1.0]]) == 2 / 8


def test_sampled_flips_are_close_to_all_flips():
    differences = 0.35 + normal(18, seed=3)
    signs = np.array(list(itertools.product([1, -1], repeat=18)), np.int8)
    exact = (abs(signs @ differences) >= abs(differences.sum()) - 1e-9).mean()
    assert sign_flip([differences]) == pytest.approx(exact, abs=0.008)
    assert sign_flip([np.full(40, 9.0)]) == pytest.approx(1 / 20_000)


def test_holm_is_the_closure_of_bonferroni():
    p = [0.01, 0.04, 0.03, 0.6, 0.012]
    closed = [
        max(
            min(len(group) * min(p[j] for j in group), 1.0)
            for size in range(1, 6)
            for group in itertools.combinations(range(5), size)
            if i in group
        )
        for i in range(5)
    ]
    assert holm(p) == pytest.approx(closed)
    assert holm([]) == []


def test_pairing_removes_what_seeds_share():
    shared = 10 * normal(8)
    scores = {"a": [shared + 1 + 0.1 * normal(8, seed=1)], "b": [shared + 0.1 * normal(8, seed=2)]}
    (found,) = compare(scores)
    assert (found.first, found.second) == ("a", "b")
    assert found.difference.value == pytest.approx(1, abs=0.2)
    assert found.difference.low > 0.7
    assert found.p == found.adjusted_p == 2 / 2**8
    assert found.better.low < 0.5 < found.better.high  # unpaired, the seeds hide it


def test_results_are_the_same_each_time():
    scores = {"a": [normal(7)], "b": [normal(7, seed=1)], "c": [normal(7, seed=2)]}
    assert compare(scores, resamples=500) == compare(scores, resamples=500)


# Two hundred grids -----------------------------------------------------------------------------


def grids(effect):
    """For each of 200 grids of four schemes and ten seeds on two tasks: the pairs found different
    at 5 %. Seeds share an effect of the data, as large as the noise; `effect` is added to the
    first scheme, in standard deviations of the noise."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        shared = rng.normal(size=(2, 10))
        scores = {name: shared + rng.normal(size=(2, 10)) for name in "abcd"}
        scores["a"] = scores["a"] + effect
        found = compare(scores, resamples=10)
        yield {c.first + c.second for c in found if c.adjusted_p <= 0.05}


def test_a_null_is_rarely_called_an_effect():
    """At most 5 % of grids with any false call; 8.5 % is 2.3 standard errors above."""
    assert np.mean([bool(found) for found in grids(0.0)]) <= 0.085


def test_a_planted_effect_is_found():
    """1.5 standard deviations: all three pairs with the changed scheme in 9 of 10 grids, and
    false calls among the others no more often than stated."""
    found = list(grids(1.5))
    assert np.mean([{"ab", "ac", "ad"} <= f for f in found]) >= 0.9
    assert np.mean([bool(f - {"ab", "ac", "ad"}) for f in found]) <= 0.085


# Bad input -------------------------------------------------------------------------------------


def test_bad_scores_are_named():
    with pytest.raises(ValueError, match="one list of seeds for each task"):
        estimate([1.0, 2.0])
    with pytest.raises(ValueError, match="one list of seeds for each task"):
        estimate([])
    with pytest.raises(ValueError, match="must be finite"):
        estimate([[1.0, float("nan")]])
    with pytest.raises(ValueError, match="first has 1 tasks, second has 2"):
        probability_of_improvement([[1.0]], [[1.0], [2.0]])
    with pytest.raises(ValueError, match=r"'a' has \[2\] seeds by task, 'b' \[3\]"):
        compare({"a": [[1.0, 2.0]], "b": [[1.0, 2.0, 3.0]]})


def test_the_span_is_an_interval_or_of_too_few_seeds_their_range():
    scores = [3.0, 1.0, 2.0, 9.0]
    assert span(scores) == (1.0, 9.0)
    assert span(scores[:1]) == (3.0, 3.0)
    assert span([*scores, 4.0]) == estimate([[*scores, 4.0]])[1:]
    assert "too few" in span_name(4)
    assert "too few" not in span_name(5)
