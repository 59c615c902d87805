"""What the scores of procedural tasks mean, for models whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from task_cases import CASES, evaluation_of, make

from flax_pos.lab.members import parse_scheme
from flax_pos.lab.program import Model
from flax_pos.lab.tasks import get_task
from flax_pos.nnx import ModelConfig, generate


def measured(task, correct_where, defined=None):
    evaluation = evaluation_of(task)
    correct = correct_where(evaluation)
    defined = np.ones(len(evaluation.length), bool) if defined is None else defined(evaluation)
    nll = np.zeros(correct.shape, np.float32)
    return task.measure(evaluation, nll, correct, defined)


def everything(evaluation):
    return np.ones(evaluation.ids.shape, bool)


@pytest.mark.parametrize("case", CASES)
def test_a_perfect_model_and_a_hopeless_one(case):
    task, _ = make(case)
    perfect = measured(task, everything)
    assert set(perfect.scalars.values()) == {1.0}
    assert (perfect.reach.length, perfect.reach.open) == (task.tested[-1], True)
    hopeless = measured(task, lambda e: ~e.scored)  # right only where it does not count
    assert set(hopeless.scalars.values()) == {0.0}
    assert (hopeless.reach.length, hopeless.reach.open) == (0, False)
    assert {c.key for c in task.columns} <= set(perfect.scalars)
    assert {c.key for c in task.curves} <= set(perfect.curves)
    for x, y in perfect.curves.values():
        assert len(x) == len(y)
        assert set(y) == {1.0}


@pytest.mark.parametrize("case", CASES)
def test_what_is_undefined_has_no_number(case):
    task, _ = make(case)
    inside = measured(task, everything, lambda e: e.length <= task.train_length)
    assert inside.reach.length == task.trained[1]
    assert not inside.reach.open
    past = [v for n, v in zip(task.tested, inside.curves[task.curves[0].key][1], strict=True)
            if n > task.trained[1]]  # fmt: skip
    assert past
    assert set(past) == {None}
    assert None in inside.scalars.values()
    assert 1.0 in inside.scalars.values()


def test_one_wrong_token_spoils_the_answer_but_not_the_other_tokens():
    task = get_task("random_copy")(max_size=4, test_size=8, samples=2)

    def first_answer_wrong(e):
        correct = everything(e)
        wrong = e.length == task.tokens(7)
        correct[wrong, e.scored[wrong].argmax(axis=1)] = False
        return correct

    scores = measured(task, first_answer_wrong)
    assert scores.scalars["exact inside"] == 1.0
    assert scores.scalars["exact past"] == pytest.approx(3 / 4)
    assert scores.scalars["token past"] == pytest.approx((1 + 1 + 7 / 8 + 1) / 4)
    assert scores.curves["exact by size"][1] == [1.0] * 6 + [0.0, 1.0]
    assert (scores.reach.length, scores.reach.open) == (6, False)


def test_not_fitted_inside_the_trained_sizes_is_no_reach():
    task = get_task("reverse")(max_size=4, test_size=8, samples=2)
    scores = measured(
        task, lambda e: np.repeat((e.length <= task.tokens(3))[:, None], e.ids.shape[1], 1)
    )
    assert scores.reach.length == 0


def test_guessing_is_no_reach():
    """Half of all parities are guessed; a model that does so has not carried anywhere."""
    task = get_task("parity")(ask="last", samples=200, max_size=4, test_size=8)
    half = np.random.default_rng(0)
    scores = measured(
        task, lambda e: np.repeat(half.random((len(e.ids), 1)) < 0.6, e.ids.shape[1], 1)
    )
    assert scores.scalars["exact inside"] == pytest.approx(0.6, abs=0.08)
    assert scores.reach.length == 0


def test_flip_flop_tells_tails_apart():
    task = get_task("flip_flop")(length=20, multiples=(1, 2), samples=10)

    def never_sparse(e):
        correct = everything(e)
        shape = correct.shape
        correct.reshape(2, 3, 10, -1)[:, 1] = False
        return correct.reshape(shape)

    scores = measured(task, never_sparse)
    assert scores.scalars == {"token@20": 1.0, "token@40": 1.0, "sparse": 0.0, "dense": 1.0}
    assert scores.reach.length == 40


def test_passkey_has_a_grid_of_lengths_and_depths():
    task = get_task("passkey")(length=32, multiples=(1, 2), samples=4)

    def lost_in_the_middle(e):
        correct = everything(e)
        correct.reshape(2, 5, 4, -1)[1, 2] = False
        return correct

    scores = measured(task, lost_in_the_middle)
    assert scores.curves["exact by depth@32"] == ([0.0, 0.25, 0.5, 0.75, 1.0], [1.0] * 5)
    assert scores.curves["exact by depth@64"][1] == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert scores.scalars == {"exact@32": 1.0, "exact@64": pytest.approx(0.8)}


def test_tested_sizes_with_a_stride_keep_the_edges():
    task = get_task("random_copy")(max_size=20, test_size=40, test_stride=7)
    assert task.tested == (1, 8, 15, 20, 21, 22, 29, 36, 40)


def test_exact_match_is_what_greedy_decoding_says():
    """The most likely token after the right ones so far is the label at every place, exactly where
    decoding from the question alone writes the answer."""
    task = get_task("reverse")(max_size=3, test_size=5, samples=4, symbols=3)
    config = ModelConfig(vocab_size=task.symbols_needed, width=16, layers=1, heads=2)
    model = Model(config, parse_scheme("rope"))
    params = model.init(jax.random.key(3))
    module = model.with_params(params)
    evaluation = task.evaluation(task.load())
    ids, labels = evaluation.ids.copy(), evaluation.labels.copy()
    decoded = np.zeros(len(ids), bool)
    for row, (length, scored) in enumerate(zip(evaluation.length, evaluation.scored, strict=True)):
        asked = int(scored.argmax()) + 1  # ids before the first answer
        written = generate(module, ids[None, row, :asked], max_new_tokens=int(length) + 1 - asked)
        written = np.asarray(written)[0]
        if row % 2:  # as if the model's own answer were the right one
            ids[row, :length], labels[row, :length] = written[:-1], written[1:]
        if row % 4 == 3 and scored.sum() > 2:  # all but one token of it
            at = int(np.flatnonzero(scored)[1])
            labels[row, at] = ids[row, at + 1] = (labels[row, at] + 1) % config.vocab_size
        answer = np.append(ids[row, :length], labels[row, length - 1])
        decoded[row] = (answer == written).all()
    assert 0.2 < decoded.mean() < 0.8
    logits = module(jnp.asarray(ids), mask=np.arange(ids.shape[1]) < evaluation.length[:, None])
    correct = np.asarray(logits.argmax(-1)) == labels
    exact = (correct | ~evaluation.scored).all(axis=1)
    np.testing.assert_array_equal(exact, decoded)
    measured_here = task.measure(
        evaluation._replace(ids=ids, labels=labels),
        np.zeros(correct.shape, np.float32),
        correct,
        np.ones(len(ids), bool),
    )
    shares = decoded.reshape(len(task.tested), -1).mean(axis=1)
    assert measured_here.curves["exact by size"][1] == shares.tolist()
