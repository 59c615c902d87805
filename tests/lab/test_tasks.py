import jax
import numpy as np
import pytest

from flax_pos.lab.errors import UserError
from flax_pos.lab.tasks import Evaluation, Task, get_task, list_tasks, register_task
from flax_pos.lab.tasks.copy import BOS, EOS, PAD, SEP, Copy
from flax_pos.lab.tasks.text import Text


@pytest.fixture(scope="module")
def text(text_file):
    task = Text(paths=(text_file,), length=8, multiples=(1, 2, 4), windows=5)
    return task, task.load()


def test_registry():
    assert {"text", "copy"} <= set(list_tasks())
    assert get_task("copy") is Copy
    with pytest.raises(UserError, match="unknown task 'txt'; did you mean 'text'"):
        get_task("txt")
    with pytest.raises(TypeError, match="subclasses of Task"):
        register_task("x")(int)
    with pytest.raises(TypeError, match="frozen"):
        register_task("x")(type("X", (Task,), {}))
    with pytest.raises(ValueError, match="already registered"):
        register_task("text")(Copy)


def test_batches_are_windows_of_the_training_part(text):
    task, loaded = text
    batch = task.batch(loaded.data, jax.random.key(3), 64)
    train = bytes(loaded.data["train"])
    for ids, labels in zip(np.asarray(batch.ids), np.asarray(batch.labels), strict=True):
        assert bytes(ids.astype(np.uint8)) in train
        np.testing.assert_array_equal(ids[1:], labels[:-1])
        assert bytes(np.append(ids, labels[-1]).astype(np.uint8)) in train
    np.testing.assert_array_equal(batch.weights, np.ones((64, 8), np.float32))
    again = task.batch(loaded.data, jax.random.key(3), 64)
    np.testing.assert_array_equal(batch.ids, again.ids)
    assert len({bytes(row) for row in np.asarray(batch.ids)}) > 30


def test_training_windows_reach_both_ends_of_the_text():
    task = Text(length=2, multiples=(1,))
    data = {"train": np.arange(5, dtype=np.uint8)}
    ids = np.asarray(task.batch(data, jax.random.key(0), 200).ids)
    assert sorted({tuple(r) for r in ids.tolist()}) == [(0, 1), (1, 2), (2, 3)]


def test_windows_of_all_lengths_share_their_last_targets(text):
    task, loaded = text
    evaluation = task.evaluation(loaded)
    last = {}
    for length in task.lengths:
        rows = evaluation.length == length
        last[length] = evaluation.labels[rows][:, length - task.tail : length]
        assert evaluation.scored[rows].sum() == 5 * length
        np.testing.assert_array_equal(
            evaluation.ids[rows][:, 1:length], evaluation.labels[rows][:, : length - 1]
        )
    np.testing.assert_array_equal(last[8], last[32])
    np.testing.assert_array_equal(last[8], last[16])


def test_losses_are_divided_by_the_tokens_that_were_scored(text):
    task, loaded = text
    evaluation = task.evaluation(loaded)
    nll = np.where(evaluation.scored, 2.0, 999.0).astype(np.float32)
    everywhere = np.ones(len(evaluation.length), bool)
    measures = task.measure(evaluation, nll, nll > 0, everywhere)
    assert set(measures.scalars.values()) == {2.0}
    assert set(measures.curves["loss by position"][1]) == {2.0}


def test_buckets_by_position_add_up_to_the_loss(text):
    task, loaded = text
    evaluation = task.evaluation(loaded)
    nll = np.random.default_rng(0).gamma(2.0, size=evaluation.ids.shape).astype(np.float32)
    everywhere = np.ones(len(evaluation.length), bool)
    measures = task.measure(evaluation, nll, nll > 0, everywhere)
    centres, losses = measures.curves["loss by position"]
    assert centres == [1.0 + 2 * i for i in range(16)]
    assert np.mean(losses) == pytest.approx(measures.scalars["loss@32"], rel=1e-6)


def test_past_its_positions_a_scheme_has_no_number(text):
    task, loaded = text
    evaluation = task.evaluation(loaded)
    nll = np.full(evaluation.ids.shape, np.nan, np.float32)
    nll[evaluation.length == 8] = 1.5
    measures = task.measure(evaluation, nll, nll > 0, evaluation.length <= 8)
    assert measures.scalars == {
        "loss@8": 1.5, "last@8": 1.5, "loss@16": None, "last@16": None, "loss@32": None,
        "last@32": None,
    }  # fmt: skip
    assert measures.curves["loss by position"][1] == [1.5] * 4 + [None] * 12
    assert measures.reach == (8, False)


@pytest.mark.parametrize(
    ("losses", "reach"),
    [
        ({8: 1.0, 16: 1.05, 32: 1.09}, (32, True)),
        ({8: 1.0, 16: 1.2, 32: 1.0}, (8, False)),
        ({8: 1.0, 16: 0.9, 32: 1.2}, (16, False)),
        ({8: np.nan, 16: 0.9, 32: 1.2}, (0, False)),
    ],
)
def test_reach_of_a_loss(text, losses, reach):
    task, loaded = text
    evaluation = task.evaluation(loaded)
    nll = np.zeros(evaluation.ids.shape, np.float32)
    for length, loss in losses.items():
        nll[evaluation.length == length] = loss
    everywhere = np.ones(len(evaluation.length), bool)
    assert task.measure(evaluation, nll, nll > 0, everywhere).reach == reach


def test_copy_sequences():
    task = Copy(symbols=3, max_count=2, test_count=3)
    evaluation = task.evaluation(task.load())
    assert evaluation.ids.shape == (9, 8)  # every token, every count
    row = [*evaluation.ids[4], evaluation.labels[4, -1]]  # n = 2, the middle token
    assert row == [BOS, 5, 5, SEP, 5, 5, EOS, PAD, PAD]
    assert evaluation.labels[4].tolist() == row[1:]
    assert evaluation.scored[4].tolist() == [False, False, False, True, True, True, False, False]
    assert evaluation.length[4] == 6
    assert task.load().vocab_size == 7
    assert task.train_length == 6


def test_copy_batches_hold_every_count_and_token():
    task = Copy(symbols=3, max_count=4, test_count=5)
    batch = jax.jit(lambda key: task.batch({}, key, 400))(jax.random.key(0))
    ids, weights = np.asarray(batch.ids), np.asarray(batch.weights)
    assert ids.shape == (400, task.train_length)
    assert sorted(set(weights.sum(axis=1))) == [2, 3, 4, 5]
    assert set(ids[:, 1]) == {4, 5, 6}
    for row, labels, weight in zip(ids, np.asarray(batch.labels), weights, strict=True):
        n = int(weight.sum()) - 1
        token = row[1]
        assert labels[weight > 0].tolist() == [token] * n + [EOS]
        assert row[: n + 2].tolist() == [BOS] + [token] * n + [SEP]


def test_copy_measures():
    task = Copy(symbols=2, max_count=2, test_count=4)
    evaluation = task.evaluation(task.load())
    count = np.repeat([1, 2, 3, 4], 2)
    correct = np.ones(evaluation.ids.shape, bool)
    correct[~evaluation.scored] = False  # what is not scored does not matter
    first_answer = evaluation.scored.argmax(axis=1)
    correct[4, first_answer[4]] = False  # one of two answers at n = 3
    correct[6:] = False  # n = 4
    everywhere = np.ones(8, bool)
    measures = task.measure(evaluation, np.zeros(correct.shape), correct, everywhere)
    assert measures.curves["accuracy by length"] == ([1, 2, 3, 4], [1, 1, 0.5, 0])
    assert measures.scalars == {
        "exact inside": 1.0,
        "exact past": 0.25,
        "token past": pytest.approx((3 / 4 + 1 + 0 + 0) / 4),
    }
    assert measures.reach == (3, False)

    bounded = task.measure(evaluation, np.zeros(correct.shape), correct, count <= 2)
    assert bounded.scalars == {"exact inside": 1.0, "exact past": None, "token past": None}
    assert bounded.reach == (2, False)

    unfitted = task.measure(evaluation, np.zeros(correct.shape), correct & False, everywhere)
    assert unfitted.reach == (0, False)


def test_evaluation_is_plain_data(text):
    task, loaded = text
    evaluation = task.evaluation(loaded)
    assert isinstance(evaluation, Evaluation)
    assert all(isinstance(a, np.ndarray) for a in evaluation)
