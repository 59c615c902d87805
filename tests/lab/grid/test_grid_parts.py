"""A grid's settings, cells, budget, controls and selection, without training anything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid_cases import TABLE

from flax_pos.lab import tomlio
from flax_pos.lab.accounting import account
from flax_pos.lab.config import find_preset, list_presets
from flax_pos.lab.controls import Shuffled
from flax_pos.lab.errors import UserError
from flax_pos.lab.grid.budget import Cost, _estimate, _smaller
from flax_pos.lab.grid.cells import check_extensions, make_cells
from flax_pos.lab.grid.commands import seconds
from flax_pos.lab.grid.config import grid_from_table, is_grid, load_grid
from flax_pos.lab.grid.last import cut
from flax_pos.lab.grid.results import _select, best_point
from flax_pos.lab.members import parse_scheme
from flax_pos.lab.tasks import Evaluation
from flax_pos.lab.tasks.copy import Copy


def cells_of(**changes):
    grid = grid_from_table(TABLE | changes)
    return make_cells(grid, {label: task.load() for label, task in grid.tasks.items()})


# Settings --------------------------------------------------------------------------------------


def test_a_grid_survives_its_file(tmp_path):
    table = TABLE | {
        "controls": ["window", "last"],
        "extensions": {"PI 2x": {"of": "rope", "scheme": "rope"}},
    }
    grid = grid_from_table(table)
    (tmp_path / "grid.toml").write_text(tomlio.dumps(grid))
    assert grid_from_table(tomlio.read(tmp_path / "grid.toml")) == grid


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schemes": []}, "at least one of schemes"),
        ({"tasks": {}}, "one table"),
        ({"tasks": {"copi": {}}}, "unknown task 'copi'; did you mean 'copy'"),
        ({"tasks": {"copy": {"max": 3}}}, "unknown config key 'tasks.copy.max'"),
        ({"tasks": ["copy"]}, "made of tables"),
        ({"models": {"a": {"widht": 8}}}, "unknown config key 'models.a.widht'"),
        ({"schemes": ["rope", "rope"]}, "names one twice"),
        ({"controls": ["nothing"]}, "controls"),
        ({"schemes": ["none"], "controls": ["last"]}, "add it to the schemes"),
        ({"extensions": {"x": {"of": "alibi", "scheme": "rope"}}}, "not one of the schemes"),
        ({"extensions": {"x": {"of": "rope"}}}, r"\[extensions.x\] needs of"),
        ({"steps": 3}, "a table .steps. by task"),
        ({"steps": {"copi": 3}}, "steps names the task 'copi'"),
        ({"steps": {"copy": 0}}, "whole number of at least 1"),
        ({"learning_rates": [0.01, float("inf")]}, "learning_rate=inf must be greater than 0"),
        ({"updates": 3}, "unknown config key 'updates'"),
    ],
)
def test_bad_settings_are_one_line(change, message):
    with pytest.raises(UserError, match=message):
        grid_from_table(TABLE | change)


@pytest.mark.parametrize(("text", "wanted"), [("20m", 1200), ("1h30m", 5400), ("45s", 45)])
def test_times_of_a_budget(text, wanted):
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "20", "m", "1.5h", "20 m"])
def test_what_is_no_time_is_said(text):
    with pytest.raises(UserError, match="is no time"):
        seconds(text)


def test_updates_by_task():
    cells = cells_of(steps={"sort": 20})
    assert {c.task: c.config.train.steps for c in cells} == {"copy": 10, "sort": 20}


@pytest.mark.parametrize("name", [n for n in list_presets() if is_grid(find_preset(n))])
def test_presets_can_be_run(name):
    grid = load_grid(find_preset(name))
    check_extensions(grid)
    assert grid.train.models >= 5
    cells = make_cells(grid, {label: task.load() for label, task in grid.tasks.items()})
    assert {c.scheme for c in cells} >= set(grid.schemes)
    text = find_preset(name).read_text()
    for word in (f"# flax-pos grid {name}\n", "# Cost: ", "# Expect: "):
        assert word in text


# Cells -----------------------------------------------------------------------------------------


def test_a_cell_for_each_scheme_task_model_and_control():
    cells = cells_of(controls=["none", "window", "shuffled"])
    assert [(c.task, c.label, c.kind) for c in cells][:4] == [
        ("copy", "none", "scheme"),
        ("copy", "rope", "scheme"),
        ("copy", "control: window", "control"),
        ("copy", "control: shuffled", "control"),
    ]
    assert len(cells) == 8
    assert len({c.key for c in cells}) == 8
    assert parse_scheme(cells[2].scheme).window == Copy(max_count=3, test_count=5).train_length


def test_a_key_changes_with_what_decides_the_numbers_and_with_nothing_else():
    keys = [c.key for c in cells_of()]
    assert [c.key for c in cells_of(name="other")] == keys
    assert [c.key for c in cells_of(schemes=["rope", "none", "alibi"])][1::3] == keys[::2]
    for settings in (
        {"train": TABLE["train"] | {"seeds": 7}},
        {"train": TABLE["train"] | {"steps": 11}},
        {"learning_rates": [1e-3]},
        {"optimizer": {"weight_decay": 0.3}},
        {"models": {"small": TABLE["models"]["small"] | {"qk_norm": "head"}}},
        {"schemes": ["none", "rope(theta=500.0)"]},
    ):
        assert not {c.key for c in cells_of(**settings)} & {keys[1], keys[3]}


def test_parameters_are_matched_to_the_largest():
    cells = cells_of(schemes=["none", "learned", "t5"], match_parameters=True)
    for task in ("copy", "sort"):
        counts = []
        for cell in (c for c in cells if c.task == task):
            needed = cell.config.task.load().vocab_size
            model = cell.config.model.resolve(cell.config.task, needed)
            counts.append(account(model, parse_scheme(cell.scheme)).total.parameters)
        assert max(counts) - min(counts) <= 8  # half a column of 2 * 8
    plain = cells_of(schemes=["none", "learned", "t5"])
    assert all(c.config.model.mlp_width is None for c in plain)


def test_shuffled_positions_say_nothing_of_order():
    scheme = Shuffled(span=50)
    index = jnp.arange(40)[None]
    first, again = (scheme.positions(index, length=40) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = scheme.positions(index, length=40, key=jax.random.key(3))
    assert (first != other).any()
    assert (first >= 0).all()
    assert (first < 50).all()
    assert abs(np.corrcoef(index[0], first[0])[0, 1]) < 0.5
    part = scheme.positions(index[:, 7:9], length=40)
    np.testing.assert_array_equal(part, first[:, 7:9])


# The oracle of short context -------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_windows_of_the_last_tokens_give_every_score_once(stride):
    lengths = np.array([5, 8, 9, 20], np.int32)
    ids = np.arange(1, 21, dtype=np.int32) + 100 * np.arange(4, dtype=np.int32)[:, None]
    inside = np.arange(20) < lengths[:, None]
    evaluation = Evaluation(np.where(inside, ids, 0), np.where(inside, ids + 1, 0), inside, lengths)
    windows, restore = cut(evaluation, 8, stride)
    assert windows.ids.shape[1] == 8
    assert (windows.length <= 8).all()
    for row in range(len(windows.ids)):
        n = windows.length[row]
        np.testing.assert_array_equal(windows.ids[row, :n], windows.ids[row, 0] + np.arange(n))
        context = np.flatnonzero(windows.scored[row])
        if windows.ids[row, 0] % 100 > 1:  # not the first window of a sequence
            assert (context >= 8 - stride).all()
    assert windows.scored.sum() == inside.sum()
    scores = windows.labels.astype(np.float32) * np.array([1.0, 2.0])[:, None, None]
    back = restore(scores)
    np.testing.assert_array_equal(back[0], evaluation.labels)
    np.testing.assert_array_equal(back[1], 2 * evaluation.labels)


# Budget ----------------------------------------------------------------------------------------


def test_learning_rates_go_before_seeds_and_updates_never():
    grid = grid_from_table(TABLE | {"learning_rates": [1e-4, 1e-3, 1e-2]})
    tried = list(_smaller(grid))
    assert [g.learning_rates for g, _ in tried[:3]] == [
        (1e-4, 1e-3, 1e-2),
        (1e-3, 1e-2),
        (1e-3,),
    ]
    assert [g.train.seeds for g, _ in tried] == [6, 6, 6, 5]
    assert {g.train.steps for g, _ in tried} == {10}
    assert [note for _, note in tried] == [
        "",
        "learning rate 0.0001",
        "learning rate 0.01",
        "seed 5",
    ]


def test_an_estimate_counts_models_updates_and_compiling():
    grid = grid_from_table(TABLE)
    cells = make_cells(grid, {label: task.load() for label, task in grid.tasks.items()})
    prepared = type("Prepared", (), {"cells": cells})
    costs = {("copy", "small"): Cost(2.0, 0.1), ("sort", "small"): Cost(3.0, 0.2)}
    wanted = 2 * (2.0 + 0.1 * 2 * 6 * 10) + 2 * (3.0 + 0.2 * 2 * 6 * 10)
    assert _estimate(prepared, grid, costs) == pytest.approx(1.25 * wanted)


# Selection -------------------------------------------------------------------------------------


def result(validations, past):
    rows = [
        {
            "row": f"none learning_rate={rate:g}",
            "point": {"learning_rate": rate},
            "seeds": [str(i) for i in range(6)],
            "validation": [v] * 6,
            "scalars": {"exact past": [p] * 6, "exact inside": [1.0] * 6, "token past": [p] * 6},
            "curves": {},
            "reach": [{"length": 3, "open": False}] * 6,
            "skipped": [0] * 6,
        }
        for rate, v, p in zip((1e-3, 3e-3), validations, past, strict=True)
    ]
    counts = dict.fromkeys(
        ("parameters", "positional_parameters", "tokens_per_second", "compile_seconds"), 1
    )
    return {"rows": rows, **counts}


def test_a_learning_rate_is_chosen_by_validation_alone():
    cell = cells_of()[0]
    grid = grid_from_table(TABLE)
    row = _select(grid, cell, result([0.2, 0.1], past=[1.0, 0.0]), [])
    assert row.learning_rate == 3e-3
    assert row.scores("exact past") == [0.0] * 6
    assert best_point(result([0.2, 0.1], past=[0.0, 1.0])) == 1
    assert best_point(result([0.2, "nan"], past=[0.0, 1.0])) == 0


def test_updates_to_fit_are_the_first_with_99_percent():
    train = [
        {"event": "train", "step": s, "loss": [1.0] * 12, "accuracy": [0.0] * 6 + [a] * 6}
        for s, a in ((5, 0.5), (10, 0.99), (15, 0.7))
    ]
    row = _select(grid_from_table(TABLE), cells_of()[0], result([0.2, 0.1], [0, 0]), train)
    assert row.fit_steps == (10,) * 6
    assert row.steps == (5, 10, 15)
