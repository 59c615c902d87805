"""Files of the user's own: what is wrong in them is said in one line, with its place."""

import io
import sys

import numpy as np
import pytest
from rich.console import Console

from flax_pos.lab.config import load_imports
from flax_pos.lab.grid.config import GridConfig, grid_from_table
from flax_pos.lab.grid.execute import prepare, resume_grid, start_grid
from flax_pos.lab.grid.results import find_measured
from flax_pos.lab.own import code_of, digest, told_in_one_line
from flax_pos.lab.results import _summary
from flax_pos.lab.run import start
from flax_pos.lab.tasks import base as tasks
from flax_pos.lab.tasks import get_task, list_tasks
from flax_pos.lab.tasks.check import load_checked
from flax_pos.scheme import from_dict, get_scheme, list_schemes, registry

SCHEME = """
from dataclasses import dataclass
import jax.numpy as jnp
from flax_pos import Scheme, register

@register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(Scheme):
    slope: float = 0.1

    def bias(self, params, q_at, k_at, heads):
        gap = (q_at.pos[..., :, None] - k_at.pos[..., None, :]).astype(jnp.float32)
        return {result}
"""

TASK = """
from dataclasses import dataclass
from flax_pos.lab.tasks import register_task
from flax_pos.lab.tasks.parts import BOS, SEP, SPECIAL, Part, draw, join, token
from flax_pos.lab.tasks.sequence import UpToTask

@register_task("first")
@dataclass(frozen=True, kw_only=True)
class First(UpToTask):
    symbols: int = 12
    max_size: int = 4
    test_size: int = 8

    @property
    def symbols_needed(self):
        return {needed}

    def tokens(self, size):
        return {tokens}

    def example(self, key, size, largest, variant):
        x = draw(key, largest, self.symbols)
        answer = Part(x[:1], 1, answer={answer})
        return {joined}
"""
RIGHT = {
    "needed": "SPECIAL + self.symbols",
    "tokens": "size + 2",
    "answer": "True",
    "joined": "join(self.tokens(largest), token(BOS), Part(x, size), token(SEP), answer)",
}


@pytest.fixture(autouse=True)
def forgotten():
    """What a test registers and imports is forgotten after it."""
    list_schemes(), list_tasks()
    kept = [(held, dict(held)) for held in (registry._REGISTRY, tasks._REGISTRY, sys.modules)]
    yield
    for held, before in kept:
        for name in held.keys() - before.keys():
            if held is not sys.modules or name in ("own_scheme", "own_task", "helper"):
                del held[name]


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        digest.cache_clear()  # as if another process had begun after it
        return str(path)

    return write


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            "-self.slope * gap",
            "scheme 'mine': its hook bias must return *B N T S = (1, 4, 64, 64) (or 1 where it "
            "does not differ); got shape (1, 64, 64)",
        ),
        ("gap @ gap[..., :3, :]", "own_scheme.py, line 13, in bias: TypeError: "),
        ("exit(0)", "own_scheme.py, line 13, in bias: SystemExit: 0"),
        ("params['slope'] * gap", "own_scheme.py, line 13, in bias: KeyError: 'slope'"),
    ],
)
def test_a_scheme_that_fails(fails, write, result, message):
    file = write("own_scheme.py", SCHEME.format(result=result))
    assert message in fails("train", "--import", file, "--schemes", "mine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": "size + 5"}, "ends in padding; `tokens` counts more ids than `example` makes"),
        (
            {"tokens": "size + 2.0", "joined": "join(6, token(BOS), answer)"},
            "training sequences have 6.0 ids; `train_length`, or `tokens` of the largest size",
        ),
        ({"tokens": "size + 1"}, "scored on the label at its id number 3; `tokens` must count"),
        (
            {"needed": "self.symbols"},
            "sequences hold the id 15, and the vocabulary (`symbols_needed`, `vocab_size`) has "
            "0 .. 11",
        ),
        ({"answer": "False"}, "a test sequence has no label that is scored; mark the answer"),
        (
            {"joined": "join(5, token(BOS), answer)"},
            "test sequences are 5 ids wide, and one is said to have 10",
        ),
        (
            {"joined": RIGHT["joined"].replace("self.tokens(largest)", "9 if largest < 5 else 10")},
            "ids of a training batch have shape (16, 9); they must have (16, 6)",
        ),
        ({"joined": "join(nowhere, answer)"}, "in example: NameError: name 'nowhere'"),
    ],
)
def test_a_task_that_is_not_what_it_says(fails, write, change, message):
    file = write("own_task.py", TASK.format(**{**RIGHT, **change}))
    line = fails("train", "--import", file, "--task-name", "first", "--schemes", "none")
    assert message in line


def test_a_task_that_is_what_it_says(write):
    exec(compile(TASK.format(**RIGHT), "own_task", "exec"), {"__name__": "own_task"})
    loaded, evaluation = load_checked(get_task("first")(), batch_size=8)
    assert loaded.vocab_size == 16
    np.testing.assert_array_equal(np.unique(evaluation.length), np.arange(1, 9) + 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*list_tasks()} - {"documents"}))  # no data of its own
def test_every_task_is_what_it_says(name):
    load_checked(get_task(name)(), batch_size=4)


@pytest.mark.parametrize("how", ["file", "module"])
def test_an_import_that_registers_nothing(fails, write, monkeypatch, tmp_path, how):
    file = write("helper.py", "x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = file if how == "file" else "helper"
    line = fails("train", "--import", name, "--schemes", "mine")
    assert f"{name} registers neither a scheme nor a task" in line


@pytest.mark.parametrize("error", ["exit(0)", "1 / 0"])
@pytest.mark.parametrize("how", ["file", "module"])
def test_an_import_that_fails(fails, write, monkeypatch, tmp_path, how, error):
    file = write("helper.py", error)
    monkeypatch.syspath_prepend(tmp_path)
    name = file if how == "file" else "helper"
    line = fails("train", "--import", name, "--schemes", "mine")
    kind = {"exit(0)": "SystemExit: 0", "1 / 0": "ZeroDivisionError: division by zero"}[error]
    assert f"{name} fails on import: {kind}" in line


def test_errors_of_the_package_keep_their_traceback():
    with pytest.raises(ZeroDivisionError), told_in_one_line(get_scheme("rope")()):
        1 / 0  # noqa: B018


# What decides the numbers -----------------------------------------------------------------------


def test_code_of_own_files_counts_wherever_it_is_nested(write):
    file = write("own_scheme.py", SCHEME.format(result="gap[..., None, :, :]"))
    load_imports([file])
    nested = from_dict({"name": "stack", "parts": [{"name": "rope"}, {"name": "mine"}]})
    before = code_of(nested)
    assert list(before) == ["own_scheme.Mine"]
    assert code_of(get_scheme("rope")(), get_task("copy")()) == {}
    write("own_scheme.py", SCHEME.format(result="-gap[..., None, :, :]"))
    assert code_of(nested) != before


def test_a_file_edited_while_it_is_in_use_stands_for_what_was_imported(write):
    file = write("own_scheme.py", SCHEME.format(result="gap[..., None, :, :]"))
    load_imports([file])
    before = code_of(get_scheme("mine")())
    with open(file, "a") as edited:
        edited.write("# more\n")
    assert code_of(get_scheme("mine")()) == before


def test_a_run_whose_code_changed_is_not_gone_on_with(fails, write, tiny, change, tmp_path):
    file = write("own_scheme.py", SCHEME.format(result="gap[..., None, :, :]"))
    load_imports([file])
    folder = tmp_path / "run"
    start(change(tiny, schemes=("mine",), imports=(file,)), folder, Console(quiet=True))
    write("own_scheme.py", SCHEME.format(result="-gap[..., None, :, :]"))
    line = fails("train", "--resume", folder)
    assert "the code of own_scheme.Mine has changed since run" in line


def own_grid(write) -> GridConfig:
    """A grid of a scheme and a text in files of the user's own."""
    file = write("own_scheme.py", SCHEME.format(result="gap[..., None, :, :]"))
    words = write("words.txt", "a few words in some order " * 400)
    return grid_from_table(
        {
            "schemes": ["none", "mine"],
            "imports": [file],
            "tasks": {"text": {"paths": [words], "length": 8, "multiples": [1, 2], "windows": 2}},
            "models": {"small": {"width": 8, "layers": 1, "heads": 2}},
            "train": {"steps": 2, "seeds": 1, "batch_size": 2},
        }
    )


def test_a_cell_has_another_key_where_its_files_changed(write):
    grid = own_grid(write)
    keys = lambda: [cell.key for cell in prepare(grid).cells]
    first = keys()
    assert keys() == first
    write("own_scheme.py", SCHEME.format(result="-gap[..., None, :, :]"))
    none, mine = keys()
    assert none == first[0]
    assert mine != first[1]
    write("words.txt", "other words in some order " * 400)
    assert set(keys()).isdisjoint([*first, none, mine])


def test_what_was_measured_with_other_code_is_not_found(write):
    file = write("own_scheme.py", SCHEME.format(result="gap[..., None, :, :]"))
    load_imports([file])
    made = {"event": "extension", "label": "later", "scheme": "mine"}
    events = [{**made, "code": code_of(get_scheme("mine")()), "rows": []}]
    find = lambda *changed: find_measured(events, *({**made, **dict(changed)}).values())
    assert find() is events[0]
    assert find(("label", "other")) is None
    assert find(("scheme", "mine(slope=0.2)")) is None
    write("own_scheme.py", SCHEME.format(result="-gap[..., None, :, :]"))
    assert find() is None


@pytest.mark.slow
def test_a_grid_says_what_it_trains_anew(write, tmp_path):
    grid = own_grid(write)
    folder, out = tmp_path / "grid", io.StringIO()
    start_grid(grid, folder, Console(file=out, width=200))
    assert "trained anew" not in out.getvalue()
    write("own_scheme.py", SCHEME.format(result="0.5 * gap[..., None, :, :]"))
    resume_grid(folder, Console(file=out, width=200))
    assert out.getvalue().count("mine on text: its code or data has changed") == 1
    assert "none on text: its code" not in out.getvalue()


def test_a_grid_is_gone_on_with_from_any_folder(write, tmp_path, monkeypatch):
    write("own_scheme.py", SCHEME.format(result="gap[..., None, :, :]"))
    monkeypatch.chdir(tmp_path)
    grid = grid_from_table(
        {"schemes": ["mine"], "imports": ["own_scheme.py"], "tasks": {"sort": {}}}
    ).absolute()
    assert grid.imports == (str(tmp_path / "own_scheme.py"),)


def test_scores_that_are_not_finite_are_summed_up():
    assert np.isnan(_summary([np.nan, np.nan])["std"])
    assert _summary([1.0, 3.0])["std"] == pytest.approx(2**0.5)
