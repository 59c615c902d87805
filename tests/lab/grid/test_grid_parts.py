"""A grid's settings, cells, budget, controls and claims, without training anything."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos.lab import tomlio
from flax_pos.lab.accounting import account
from flax_pos.lab.config import find_preset, list_presets
from flax_pos.lab.controls import Shuffled
from flax_pos.lab.errors import UserError
from flax_pos.lab.grid.budget import Cost, _estimate, _smaller
from flax_pos.lab.grid.cells import check_extensions, make_cells
from flax_pos.lab.grid.claims import Claim, ahead, change, check_claim, slower, within
from flax_pos.lab.grid.commands import seconds
from flax_pos.lab.grid.config import grid_from_table, is_grid, load_grid
from flax_pos.lab.grid.last import cut
from flax_pos.lab.grid.published import CLAIMS, check_claims
from flax_pos.lab.grid.report import _claims_html, _claims_markdown
from flax_pos.lab.grid.results import Row, _select, best_point
from flax_pos.lab.grid.table import comparisons, panel_table, to_latex
from flax_pos.lab.members import parse_scheme
from flax_pos.lab.tasks import Evaluation, get_task, list_tasks
from flax_pos.lab.tasks.copy import Copy
from flax_pos.scheme import list_schemes

TABLE = {
    "name": "tried",
    "schemes": ["none", "rope"],
    "learning_rates": [1e-3, 3e-3],
    "tasks": {"copy": {"max_count": 3, "test_count": 5}, "sort": {"max_size": 3, "test_size": 5}},
    "models": {"small": {"width": 8, "layers": 1, "heads": 2}},
    "train": {"steps": 10, "seeds": 6, "batch_size": 2},
}


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


# Tables and claims -----------------------------------------------------------------------------


def row(label, past, inside=None, kind="scheme", fit=(10,)):
    inside = [1.0] * len(past) if inside is None else inside
    scalars = {"exact inside": inside, "exact past": past, "token past": past}
    part = {
        "seeds": [str(i) for i in range(len(past))],
        "scalars": scalars,
        "curves": {},
        "reach": [{"length": 3, "open": False}] * len(past),
        "skipped": [0] * len(past),
    }
    scheme = {"name": "none"}
    cost = {"parameters": 5, "positional_parameters": 0, "tokens_per_second": 1.0}
    task = Copy(max_count=3, test_count=5)
    return Row(
        task="copy", model="small", label=label, kind=kind, scheme=scheme, changed=(),
        learning_rate=1e-3, validation={1e-3: 0.1}, part=part, steps=(), losses=(),
        fit_steps=fit * len(past), cost=cost, task_settings=task,
    )  # fmt: skip


class Fake:
    """A grid of given rows."""

    def __init__(self, *rows):
        self.rows = rows
        self.config = grid_from_table(TABLE)

    def panel(self, task):
        return self.rows


GOOD, BAD = [0.9, 0.95, 0.9, 0.92, 0.91, 0.97], [0.1, 0.2, 0.15, 0.1, 0.12, 0.1]


def claim(check, *labels, task="copy"):
    return Claim(text="", source="", published="", task=task, labels=labels, check=check)


def test_verdicts():
    run = Fake(row("none", GOOD), row("rope", BAD), row("alibi", GOOD[::-1]))
    verdict = lambda c: check_claim(c, run).verdict
    assert verdict(claim(ahead("exact past"), "none", "rope")) == "reproduced"
    assert verdict(claim(ahead("exact past", low=True), "none", "rope")) == "not reproduced"
    assert verdict(claim(ahead("exact past", by=0.9), "none", "rope")) == "not reproduced"
    assert verdict(claim(ahead("exact past"), "none", "alibi")) == "undecided"
    assert verdict(claim(within("exact past", most=0.3), "rope")) == "reproduced"
    assert verdict(claim(within("exact past", most=0.05), "rope")) == "not reproduced"
    assert verdict(claim(within("exact past", least=0.93), "none")) == "undecided"
    falls = change("exact inside", "exact past", most=-0.5)
    assert verdict(claim(falls, "rope")) == "reproduced"
    assert verdict(claim(falls, "none")) == "not reproduced"


def test_what_cannot_be_said_is_not_said():
    run = Fake(row("none", GOOD), row("t5", GOOD, inside=[0.2] * 6), row("rope", GOOD[:3]))
    found = check_claim(claim(ahead("exact past"), "none", "t5"), run)
    assert found.verdict == "not testable here"
    assert "t5 0% of seeds" in found.figure
    assert check_claim(claim(ahead("exact past"), "none", "fox"), run).figure.startswith("no fox")
    assert "no task text" in check_claim(claim(within("a"), "none", task="text"), run).figure
    few = check_claim(claim(ahead("exact past"), "none", "rope"), run)
    assert few.verdict == "undecided"
    assert "too few seeds" in few.figure
    assert "does not measure" in check_claim(claim(within("loss@4x"), "none"), run).figure


def test_claims_on_tasks_of_other_grids_are_one_line_that_counts_them():
    run = Fake(row("none", GOOD), row("rope", BAD))
    claims = check_claims(run)
    names = {task.name for task in run.config.tasks.values()}
    here = [c for c, _ in claims if c.task in names]
    assert 0 < len(here) < len(claims)
    for write in (_claims_markdown, _claims_html):
        text = write(run, claims)
        assert f"{len(claims) - len(here)} claims on tasks that this grid does not have" in text
        for name in {c.task for c in CLAIMS} - names:
            assert f"{name} ({sum(c.task == name for c in CLAIMS)})" in text
    assert _claims_markdown(run, claims).count("\n") == len(here) + 3


def test_fitting_more_slowly():
    run = Fake(
        row("none", GOOD, fit=(500,)), row("rope", GOOD, fit=(100,)), row("t5", GOOD, fit=(None,))
    )
    assert check_claim(claim(slower, "none", "rope"), run).verdict == "reproduced"
    assert check_claim(claim(slower, "rope", "none"), run).verdict == "not reproduced"
    assert check_claim(claim(slower, "t5", "none"), run).verdict == "reproduced"


def test_published_claims_can_be_tested():
    assert len(CLAIMS) >= 12
    assert len({c.text for c in CLAIMS}) == len(CLAIMS)
    for c in CLAIMS:
        assert c.task in list_tasks()
        assert c.source
        assert c.published
        for label in c.labels:
            assert label in list_schemes() or label.startswith(("control: ", "NTK", "PI", "YaRN"))


def test_rows_that_have_not_fitted_are_shown_and_not_ranked():
    rows = [row("none", GOOD, inside=[0.5] * 6), row("rope", BAD), row("alibi", [0.3] * 6)]
    table = panel_table(rows)
    past = next(i for i, h in enumerate(table.headers) if h.title == "n = 4–5")
    assert [line[past].best for line in table.rows] == [False, False, True]
    assert any("so not ranked: none" in note for note in table.notes)
    assert [(c.first, c.second) for c in comparisons(rows)] == [("alibi", "rope")]


def test_controls_are_never_best():
    table = panel_table([row("none", BAD), row("rope", BAD[::-1]), row("c", GOOD, kind="control")])
    past = next(i for i, h in enumerate(table.headers) if h.title == "n = 4–5")
    assert not table.rows[2][past].best


def test_few_seeds_have_no_interval_in_the_table():
    table = panel_table([row("none", GOOD[:3]), row("rope", BAD[:3])])
    assert any("3 seeds: too few for an interval" in note for note in table.notes)
    past = next(i for i, h in enumerate(table.headers) if h.title == "n = 4–5")
    assert table.rows[0][past].small == "0.900–0.950"  # the smallest and the largest


def test_latex_is_escaped():
    text = to_latex(panel_table([row("rope_x & 50%", GOOD), row("none", BAD)]), "a_b")
    assert "rope\\_x \\& 50\\%" in text
    assert "\\caption{a\\_b" in text
    assert "\\textbf{0.9" in text
    assert text.count("\\\\") == 3


def test_every_task_names_its_headline_and_first_column():
    for name in list_tasks():
        task = get_task(name)()
        keys = [c.key for c in task.columns]
        assert task.headline in keys
        assert dataclasses.is_dataclass(task)
