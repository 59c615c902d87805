"""The language with known dependency lengths: its optimum, and scores against it."""

import itertools

import numpy as np
import pytest
from task_cases import batch_of, evaluation_of

from flax_pos.lab.tasks import get_task


def small(**settings):
    given = {"length": 8, "multiples": (1, 2), "samples": 16, "symbols": 3, "longest_lag": 12}
    return get_task("lag_lm")(**(given | settings))


def test_the_optimum_is_the_probability_of_the_process():
    """Against the joint probability of whole sequences, by adding over all lags and sources."""
    task = small(symbols=2, longest_lag=3, noise=0.2, exponent=0.7)
    weights = [n**-0.7 for n in (1, 2, 3)]
    weights = [w / sum(weights) for w in weights]
    total = 0.0
    for sequence in itertools.product(range(2), repeat=5):
        probability = 1.0
        for t, value in enumerate(sequence):
            p = 0.2 / 2
            for lag, weight in zip((1, 2, 3), weights, strict=True):
                known = float(sequence[t - lag] == value) if lag <= t else 1 / 2
                p += 0.8 * weight * known
            probability *= p
        got = task.optimum(np.array([sequence])).sum()
        assert got == pytest.approx(-np.log(probability), rel=1e-12)
        total += probability
    assert total == pytest.approx(1.0)


def test_data_follow_the_stated_process():
    """Empirical frequencies of x_t given the two tokens before, for lags of 1 and 2 only."""
    task = small(symbols=2, longest_lag=2, noise=0.3, exponent=1.0, length=64, multiples=(1,))
    labels = np.asarray(batch_of(task, 1, 512).labels) - 4
    a, b, c = labels[:, :-2].ravel(), labels[:, 1:-1].ravel(), labels[:, 2:].ravel()
    near, far = 2 / 3, 1 / 3
    for x, y in itertools.product(range(2), repeat=2):
        rows = (a == x) & (b == y)
        wanted = 0.15 + 0.7 * (near * (y == 1) + far * (x == 1))
        assert c[rows].mean() == pytest.approx(wanted, abs=0.015)


def test_no_other_prediction_does_better():
    task = small(samples=300)
    labels = evaluation_of(task).labels[-300:] - 4
    best = task.optimum(labels).mean()
    for other in (small(exponent=0.5), small(exponent=2.0), small(noise=0.3)):
        assert other.optimum(labels).mean() > best
    near = task.optimum(labels, window=2).mean()
    assert near > best
    np.testing.assert_array_equal(task.optimum(labels, window=16), task.optimum(labels))


def scores(task, losses, defined=None):
    evaluation = evaluation_of(task)
    nll = losses(evaluation).astype(np.float64)
    known = np.ones(len(nll), bool) if defined is None else defined(evaluation)
    return task.measure(evaluation, nll, np.zeros(nll.shape, bool), known)


def test_scores_are_above_the_optimum():
    task = small()
    perfect = scores(task, lambda e: task.optimum(e.labels))
    assert perfect.scalars["excess@8"] == pytest.approx(0, abs=1e-9)
    assert perfect.scalars["gain@16"] == pytest.approx(1)
    assert perfect.reach.length == 16
    short = scores(task, lambda e: task.optimum(e.labels, task.length))
    assert short.scalars["gain@16"] == pytest.approx(0, abs=1e-9)
    assert short.scalars["excess@8"] == pytest.approx(0, abs=1e-9)
    worse = scores(task, lambda e: task.optimum(e.labels) + 0.5 * (np.arange(16) >= 8))
    assert worse.scalars["excess@16"] == pytest.approx(0.25)
    assert worse.curves["excess by position"][1] == pytest.approx([0, 0, 0, 0, 0.5, 0.5, 0.5, 0.5])
    assert (worse.reach.length, worse.reach.open) == (8, False)


def test_undefined_lengths_have_no_number():
    task = small()
    cut = scores(task, lambda e: task.optimum(e.labels), lambda e: e.length <= 8)
    assert cut.scalars["excess@16"] is None
    assert cut.scalars["gain@16"] is None
    assert cut.curves["excess by position"][1][4:] == [None] * 4
    assert {c.key for c in task.columns} <= set(cut.scalars)


def test_lengths_are_exact_and_everything_is_scored():
    task = small()
    evaluation = evaluation_of(task)
    for ids, scored, length in zip(
        evaluation.ids, evaluation.scored, evaluation.length, strict=True
    ):
        assert ids[0] == 1
        np.testing.assert_array_equal(scored, np.arange(16) < length)
        assert (ids[:length] > 0).all()
        assert (ids[length:] == 0).all()
