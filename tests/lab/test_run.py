"""Whole runs, small: what ends up in the folder and on the page."""

import dataclasses
import errno
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from flax_pos.lab import tomlio
from flax_pos.lab.config import load_config
from flax_pos.lab.errors import UserError
from flax_pos.lab.findings import findings
from flax_pos.lab.grid.compare import compare_folders
from flax_pos.lab.grid.compare import to_markdown as to_markdown_of_differences
from flax_pos.lab.members import make_entries
from flax_pos.lab.program import Model, blank_state
from flax_pos.lab.records import Records
from flax_pos.lab.report import write_outputs
from flax_pos.lab.results import read_run
from flax_pos.lab.run import Interrupted, SchemeRun, load_model, resume, start
from flax_pos.lab.stop import StopSignal
from flax_pos.lab.table import make_table, print_table, to_markdown

SCHEMES = ("none", "learned")


@pytest.fixture(scope="module")
def finished(tiny, change, tmp_path_factory):
    """A finished run of two schemes and what it printed."""
    config = change(tiny, schemes=SCHEMES, train={"seeds": 3})
    folder = tmp_path_factory.mktemp("runs") / "run"
    out = io.StringIO()
    start(config, folder, Console(file=out, width=100))
    return folder, config, out.getvalue()


def test_the_folder_holds_everything(finished):
    folder, config, _ = finished
    assert load_config(folder / "config.toml") == config
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["packages"]["jax"]
    assert environment["devices"]
    for figure in ("loss-by-step", "loss-by-position"):
        assert (folder / "figures" / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
    events = Records(folder / "metrics.jsonl").read()
    kinds = [e["event"] for e in events]
    assert kinds == ["data", *["start", "train", "train", "result"] * 2]
    assert [e["step"] for e in events if e["event"] == "train"] == [3, 6] * 2
    assert not list(folder.rglob("*.partial"))


def test_what_is_printed(finished):
    _, _, printed = finished
    assert re.search(r"none: \d+/12 updates  loss \d\.\d+ {2}\S+ tokens/s", printed)
    assert "report.html" in printed
    assert "undefined" in printed
    assert "loss, last 4 tokens" in " ".join(printed.split())


def test_the_table(finished):
    folder, _, _ = finished
    run = read_run(folder)
    table = make_table(run)
    none, learned = table.rows
    titles = [(h.group, h.title) for h in table.headers]
    assert none[0].text == "none"
    at = titles.index(("loss, all tokens", "2×"))
    assert re.fullmatch(r"\d\.\d{3}", none[at].text)
    low, high = map(float, none[at].small.split("–"))
    assert low <= float(none[at].text) <= high
    assert learned[at] == ("undefined", "", False)
    assert learned[titles.index(("carries to", "reach"))].text == "1×"
    assert none[titles.index(("cost", "positional"))].text == "0"
    assert learned[titles.index(("cost", "positional"))].text == str(8 * 8)
    markdown = to_markdown(table)
    assert markdown.count("| undefined ") == 2
    assert (folder / "table.md").read_text() == markdown
    for width in (40, 60, 80, 200):
        out = io.StringIO()
        print_table(table, Console(file=out, width=width))
        shown = out.getvalue()
        assert "…" not in shown
        assert all(c.small in shown for row in table.rows for c in row[:-1] if "–" in c.small)
        assert (
            max(map(len, shown.splitlines()[: shown.splitlines().index(table.notes[0])])) <= width
        )


def with_seeds(run, scores: list[float]):
    """The run as if its seeds had scored this in every column."""
    train = dataclasses.replace(run.config.train, seeds=len(scores))
    made = dataclasses.replace(run, config=dataclasses.replace(run.config, train=train))
    for event in made.events:
        if event["event"] == "train":
            event["loss"] = [1.0] * len(scores)
    for event in made.finished.values():
        for part in event["rows"]:
            part["scalars"] = {k: scores for k, v in part["scalars"].items() if None not in v}
            part["reach"] = part["reach"][:1] * len(scores)
    return made


def test_too_few_seeds_are_said_to_be_too_few(finished):
    """Up to four: every seed and their range; from five on an interval."""
    for count in range(1, 8):
        scores = [float(i) for i in range(count)]
        run = with_seeds(read_run(finished[0]), scores)
        run.finished.pop("learned")
        table = make_table(run)
        titles = [(h.group, h.title) for h in table.headers]
        cell = table.rows[0][titles.index(("loss, all tokens", "2×"))]
        few = any("too few for an interval" in note for note in table.notes)
        assert few == any("too few for an interval" in line for line in findings(run))
        assert few == (count < 5)
        if count == 1:
            assert cell.small == ""
        elif count < 5:
            assert cell.small == f"0.000–{count - 1:.3f}"
        else:
            low, high = map(float, cell.small.split("–"))
            assert 0 < low < high < count - 1


def test_few_seeds_rank_nothing(finished):
    for count in range(1, 7):
        run = with_seeds(read_run(finished[0]), [1.0] * count)
        lines = findings(run)
        assert ("too few for an interval, and so to rank" in lines[0]) == (count < 5)
        assert any("is best" in line for line in lines) == (count >= 5)


def test_the_table_says_how_many_updates_the_training_loss_is_of(finished):
    header = make_table(read_run(finished[0])).headers[1]
    assert header.help.endswith("mean over the last 3 updates")


def test_a_run_stopped_before_anything_finished(finished, tmp_path):
    """Warnings are errors in tests."""
    folder = finished[0]
    (tmp_path / "config.toml").write_text((folder / "config.toml").read_text())
    for event in Records(folder / "metrics.jsonl").read():
        if event["event"] == "result":
            break
        Records(tmp_path / "metrics.jsonl").append(event.pop("event"), **event)
    out = io.StringIO()
    write_outputs(read_run(tmp_path), Console(file=out))
    assert "nothing is finished yet" in out.getvalue()
    assert not list((tmp_path / "figures").iterdir())
    html = (tmp_path / "report.html").read_text()
    for absent in ("<table", "<figure", "Results", "Every seed"):
        assert absent not in html
    assert "not finished: none, learned" in (tmp_path / "table.md").read_text()
    assert "|" not in (tmp_path / "table.md").read_text()


def test_the_summary_holds_seeds_spread_and_method(finished):
    folder, _, _ = finished
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["train_length"] == 8
    assert summary["seeds"] == 3
    measure = summary["rows"]["none"]["measures"]["loss@16"]
    assert measure["mean"] == pytest.approx(np.mean(measure["values"]))
    assert measure["std"] == pytest.approx(np.std(measure["values"], ddof=1))
    assert measure["interval"] == "too few seeds"
    assert measure["iqm"] == pytest.approx(np.mean(measure["values"]))  # three: none is left out
    assert "16 tokens" in summary["method"]["loss@16"]
    assert summary["rows"]["learned"]["measures"]["loss@16"] == "undefined"
    assert summary["rows"]["none"]["scheme"] == {"name": "none"}
    curve = summary["rows"]["none"]["curves"]["loss by position"]
    assert np.mean(curve["y"], axis=1) == pytest.approx(measure["values"])


class Balanced(HTMLParser):
    """Fails where tags do not close in order; collects what a browser would fetch."""

    VOID = frozenset({"meta", "link", "br", "img", "input"})

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [v for k, v in attrs if k in ("src", "href", "xlink:href", "data") and v]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_is_one_file_that_fetches_nothing(finished):
    html = (finished[0] / "report.html").read_text()
    page = Balanced()
    page.feed(html)
    page.close()
    assert page.open == []
    assert all(link.startswith("#") for link in page.fetched)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    addresses = set(re.findall(r"https?://[^\s\"'<]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert page.tags.count("svg") == 2
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert "var(--ink)" in html
    for word in (*SCHEMES, "undefined", "Every seed", "Configuration", "Environment"):
        assert word in html


def test_text_in_the_report_is_escaped(finished, tmp_path):
    run = read_run(finished[0])
    named = dataclasses.replace(
        run, folder=tmp_path, config=dataclasses.replace(run.config, name="<b>&x")
    )
    (tmp_path / "config.toml").write_text(tomlio.dumps(named.config))
    write_outputs(named)
    html = (tmp_path / "report.html").read_text()
    assert "<b>&x" not in html
    assert "&lt;b&gt;&amp;x" in html


def test_nothing_finished_is_done_again(finished):
    folder, _, _ = finished
    before = (folder / "metrics.jsonl").read_bytes()
    resume(folder, Console(file=io.StringIO()))
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_stopped_run_does_every_update_once(finished, tmp_path, monkeypatch):
    """A checkpoint is named by the updates in it, and what follows ends where all at once does."""
    folder, config, _ = finished
    stopped, one = tmp_path / "run", dataclasses.replace(config, schemes=("none",))

    class AtOnce(StopSignal):
        asked = property(lambda self: True, lambda self, value: None)

    with monkeypatch.context() as patch:
        patch.setattr("flax_pos.lab.run.StopSignal", AtOnce)
        with pytest.raises(Interrupted):
            start(one, stopped, Console(file=io.StringIO()))
    checkpoints = SchemeRun.checkpoints_of(stopped, make_entries(one)[0])
    assert checkpoints.steps() == [3]
    model = Model(one.model.resolve(one.task, 256), make_entries(one)[0].scheme)
    like = blank_state(model, one.optimizer, 3)
    assert checkpoints.restore(3, like).step.tolist() == [3] * 3

    resume(stopped, Console(file=io.StringIO()))
    run, whole = read_run(stopped), read_run(folder)
    assert run.finished["none"]["rows"] == whole.finished["none"]["rows"]
    assert run.rows[0].steps == whole.rows[0].steps == (3, 6)
    assert run.rows[0].losses == whole.rows[0].losses
    assert [e["step"] for e in run.events if e["event"] == "start"] == [0, 3]


def test_two_runs_are_compared_row_by_row(finished):
    """Against itself: every column that is defined, the same numbers, seed by seed no change."""
    folder, config, _ = finished
    found = compare_folders(folder, folder)
    assert {d.row for d in found} == set(SCHEMES)
    assert len([d for d in found if d.row == "none"]) == len(config.task.columns)
    for d in found:
        assert d.first == d.second
        assert d.first.too_few
        assert d.change.value == 0
    text = to_markdown_of_differences(found)
    assert "(too few)" in text


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        ValueError("RESOURCE_EXHAUSTED: writing file: No space left on device"),
    ],
)
def test_a_full_disk_is_one_line(tiny, tmp_path, monkeypatch, error):
    def full(*_):
        raise error

    monkeypatch.setattr(SchemeRun, "run", full)
    with pytest.raises(UserError, match=r"no space left on the disk of .*--resume") as told:
        start(tiny, tmp_path / "run", Console(file=io.StringIO()))
    assert "\n" not in str(told.value)
    assert load_config(tmp_path / "run" / "config.toml")


def test_a_folder_with_a_run_is_not_written_over(finished):
    folder, config, _ = finished
    with pytest.raises(UserError, match="holds a run already; go on with --resume"):
        start(config, folder, Console(file=io.StringIO()))


def test_a_trained_model_can_be_used(finished):
    folder, config, _ = finished
    model, loaded = load_model(folder, "none", seed=1)
    evaluation = config.task.evaluation(loaded)
    rows = evaluation.length == 8
    import jax
    import jax.numpy as jnp

    logits = model(jnp.asarray(evaluation.ids[rows, :8]))
    picked = np.take_along_axis(
        np.asarray(jax.nn.log_softmax(logits)), evaluation.labels[rows, :8, None], -1
    )
    result = read_run(folder).finished["none"]["rows"][0]["scalars"]["loss@8"]
    assert -picked.mean() == pytest.approx(result[1], rel=1e-5)
    with pytest.raises(UserError, match="no 'nine' in this run; did you mean 'none'"):
        load_model(folder, "nine")
    with pytest.raises(UserError, match="no seed 3 in this run; it has 0, 1, 2"):
        load_model(folder, "none", seed=3)
    with pytest.raises(UserError, match="is not a run folder"):
        load_model(folder / "figures", "none")


def test_a_run_whose_data_changed_is_not_gone_on_with(tiny, tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("some words " * 100)
    task = dataclasses.replace(tiny.task, paths=(data,))
    config = dataclasses.replace(tiny, task=task)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(tomlio.dumps(config))
    Records(folder / "metrics.jsonl").append("data", about=task.load().about)
    data.write_text("other words " * 100)
    with pytest.raises(UserError, match="has changed since it began"):
        resume(folder, Console(file=io.StringIO()))
