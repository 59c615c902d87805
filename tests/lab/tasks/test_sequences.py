"""Procedural tasks against oracles that read the ids in plain Python."""

import jax
import numpy as np
import pytest
from task_cases import CASES, LABELLED, batch_of, evaluation_of, make

from flax_pos.lab.tasks import get_task, list_tasks
from flax_pos.lab.tasks.parts import PAD
from flax_pos.lab.tasks.sequence import SequenceTask, UpToTask


def test_every_procedural_task_has_an_oracle():
    own = {n: get_task(n) for n in list_tasks() if get_task(n).__module__.startswith("flax_pos.")}
    procedural = {n for n, task in own.items() if issubclass(task, SequenceTask)}
    assert procedural - {"lag_lm"} == {name for name, _, _ in CASES.values()}


@pytest.mark.parametrize("case", CASES)
def test_answers_lengths_and_vocabulary(case):
    task, oracle = make(case)
    loaded = task.load()
    evaluation = evaluation_of(task)
    rows = list(zip(*evaluation, strict=True))
    sizes = np.repeat(task.tested, len(task.variants) * task.samples)
    assert len(rows) == len(sizes)
    seen = set()
    for (ids, labels, scored, length), size in zip(rows, sizes, strict=True):
        assert length == task.tokens(size)
        assert (ids[:length] != PAD).all()
        assert (ids[length:] == PAD).all()
        assert not scored[length:].any()
        assert scored.any()
        seen |= set(ids.tolist()) | set(labels[scored].tolist())
        for t in np.flatnonzero(scored):
            assert labels[t] == oracle(ids[: t + 1].tolist())
        if case not in LABELLED:
            np.testing.assert_array_equal(labels[: length - 1], ids[1:length])
    assert evaluation.ids.shape[1] == task.tokens(task.tested[-1])
    assert max(seen) < loaded.vocab_size


@pytest.mark.parametrize("case", CASES)
def test_training_batches(case):
    task, oracle = make(case)
    make_batch = jax.jit(lambda key: task.batch({}, key, 24))
    batch, again, other = (make_batch(jax.random.key(seed)) for seed in (3, 3, 4))
    jax.tree.map(np.testing.assert_array_equal, batch, again)
    assert (np.asarray(batch.ids) != np.asarray(other.ids)).any()
    ids, labels, weights = map(np.asarray, (batch.ids, batch.labels, batch.weights))
    assert ids.dtype == labels.dtype == np.int32
    assert weights.dtype == np.float32
    assert ids.shape == (24, task.train_length)
    assert set(np.unique(weights)) <= {0.0, 1.0}
    assert len({tuple(row) for row in ids.tolist()}) > 12
    for row in range(len(ids)):
        for t in np.flatnonzero(weights[row]):
            assert labels[row, t] == oracle(ids[row, : t + 1].tolist())
    lengths = {int((row != PAD).sum()) for row in ids}
    low, high = task.trained
    assert lengths <= {task.tokens(n) for n in range(low, high + 1)}
    if isinstance(task, UpToTask):
        assert len(lengths) > 3


@pytest.mark.parametrize("case", CASES)
def test_answers_are_not_the_same_for_all(case):
    """A task whose answer never changes would be solved without reading."""
    task, _ = make(case)
    evaluation = evaluation_of(task)
    last = evaluation.length == evaluation.length.max()
    answers = [
        tuple(row[s])
        for row, s in zip(evaluation.labels[last], evaluation.scored[last], strict=True)
    ]
    if case == "positional_probe_index":  # the answer is the place, whatever is read
        assert len(set(answers)) == 1
    else:
        assert len(set(answers)) > 1


@pytest.mark.parametrize("case", ["parity", "word_problem", "modular_sum"])
def test_states_that_are_asked_everywhere_are_never_shown(case):
    task, _ = make(case)
    evaluation = evaluation_of(task)
    states = task.table.shape[0]
    assert not np.isin(evaluation.ids, range(4, 4 + states)).any()


def test_test_sequences_are_the_same_each_time_and_not_those_of_training():
    task = get_task("random_copy")(max_size=12, test_size=14, samples=4)
    first, second = (task.evaluation(task.load()) for _ in range(2))
    np.testing.assert_array_equal(first.ids, second.ids)
    longest = task.tokens(12)
    tested = {tuple(row[:longest]) for row in first.ids[first.length == longest].tolist()}
    steps = jax.vmap(lambda step: jax.random.fold_in(jax.random.key(0), step))(np.arange(20))
    batches = jax.jit(jax.vmap(lambda key: task.batch({}, key, 64)))(steps).ids
    trained = {tuple(row) for row in np.asarray(batches).reshape(-1, longest).tolist()}
    assert not tested & trained


def test_word_problem_is_a_group():
    for group, order in (("S3", 6), ("S5", 120)):
        table = get_task("word_problem")(group=group).table
        assert table.shape == (order, order)
        for lines in (table, table.T):  # a Latin square: every move can be undone
            assert (np.sort(lines, axis=1) == np.arange(order)).all()
        np.testing.assert_array_equal(table[0], np.arange(order))
        a, b, c = np.random.default_rng(0).integers(0, order, (3, 200))
        np.testing.assert_array_equal(table[table[a, b], c], table[a, table[b, c]])
    swaps = get_task("word_problem")(group="S5", moves="swaps").table
    assert swaps.shape == (120, 1 + 10)


def test_addition_has_long_carries_and_hints_are_all_seen_in_training():
    task = get_task("addition")(max_size=4, test_size=9, index_hints=True)
    ids = np.asarray(batch_of(task, 0, 512).ids)
    assert set(range(15, 15 + task.hints)) <= set(ids.ravel().tolist())


def test_flip_flop_ignores_as_often_as_asked():
    task = get_task("flip_flop")(length=200, multiples=(1,), samples=60)
    evaluation = evaluation_of(task)
    kinds = evaluation.ids[:, 3:-2:2].reshape(3, -1)  # neither the first nor the last instruction
    for share, row in zip((0.8, 0.98, 0.1), kinds, strict=True):
        assert np.mean(row == 6) == pytest.approx(share, abs=0.015)
        assert np.mean(row == 4) == pytest.approx((1 - share) / 2, abs=0.015)


def test_needles_lie_at_the_depths_of_the_grid():
    task = get_task("multi_needle")(length=60, multiples=(1, 2), samples=8, needles=3)
    evaluation = evaluation_of(task)
    noise = task.symbols_needed - task.noise
    depths = np.tile(np.repeat(task.depths, task.samples), 2)
    for ids, depth in zip(evaluation.ids, depths, strict=True):
        ids = ids[: (ids != 0).sum()].tolist()
        name = ids[ids.index(5) + 1]
        place = next(i for i, t in enumerate(ids) if t == 4 and ids[i + 1] == name)
        total = sum(t >= noise for t in ids)
        before = sum(t >= noise for t in ids[:place])
        assert before == round(depth * total)


def test_passkey_in_training_lies_anywhere():
    task = get_task("passkey")(length=40)
    ids = np.asarray(batch_of(task, 0, 256).ids)
    places = (ids == 4).argmax(axis=1)
    assert len(set(places.tolist())) > 25


def test_counting_reaches_every_value_and_none_above():
    task = get_task("selective_counting")(length=40, max_value=5, idle=0.2, reset=0.1)
    batch = batch_of(task, 0, 256)
    answers = np.asarray(batch.labels)[np.asarray(batch.weights) > 0] - 5
    assert set(answers.tolist()) == set(range(6))


def test_indirect_indexing_asks_both_ways_and_all_distances():
    task = get_task("indirect_indexing")(max_size=20, test_size=24, max_shift=4)
    ids = np.asarray(batch_of(task, 0, 512).ids)
    shifts = {int(row[row != 0][-1]) - 4 - 64 - 4 for row in ids}
    assert shifts == {-4, -3, -2, -1, 1, 2, 3, 4}


def test_mqar_writes_every_key_as_often_as_asked():
    task, _ = make("mqar_overwritten")
    evaluation = evaluation_of(task)
    longest = evaluation.ids[evaluation.length == task.tokens(11)]
    for row in longest.tolist():
        keys = row[1 : row.index(2) : 2]
        assert len(keys) == 33
        assert {keys.count(k) for k in keys} == {3}


# Settings that cannot work ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("random_copy", {"max_size": 40}, "max_size=40 must be below test_size=40"),
        ("random_copy", {"repeats": False}, "symbols=12 is too few for 40 tokens"),
        ("reverse", {"max_size": 0}, "max_size=0 must be at least 1"),
        ("sort", {"samples": 0}, "samples=0 must be at least 1"),
        ("reverse", {"test_stride": 0}, "test_stride=0 must be at least 1"),
        ("replace", {"symbols": 1}, "symbols=1 must be at least 2"),
        ("modular_sum", {"modulus": 1}, "modulus=1 must be at least 2"),
        ("flip_flop", {"length": 63}, "length=63 must be even"),
        ("flip_flop", {"ignored": 1.5}, "ignored=1.5 is a share"),
        ("flip_flop", {"multiples": (2, 4)}, r"multiples=\[2, 4\] must rise and begin with 1"),
        ("selective_counting", {"idle": 0.8, "reset": 0.4}, "together at most 1"),
        ("mqar", {"keys": 8}, "keys=8 must be at least 16"),
        ("indirect_indexing", {"symbols": 20}, "symbols=20 must be at least 40"),
        ("indirect_indexing", {"max_size": 1}, "max_size=1 must be at least 2"),
        ("passkey", {"length": 10}, "length=10 is too short"),
        ("passkey", {"depths": (0.5, 0.1)}, "must rise"),
        ("passkey", {"depths": (0.5, 1.1)}, r"must lie in 0 \.\. 1"),
        ("multi_needle", {"asked": 5}, "asked=5 must be at most needles=4"),
        ("multi_needle", {"names": 3}, "names=3 must be at least 4"),
        ("positional_probe", {"back": 70}, "length=64 must be at least 72"),
        ("lag_lm", {"noise": -0.1}, "noise=-0.1 is a share"),
    ],
)
def test_settings_that_cannot_work_are_named(name, settings, message):
    with pytest.raises(ValueError, match=message):
        get_task(name)(**settings)
