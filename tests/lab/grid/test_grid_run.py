"""Grids from the settings to the report, stopped, killed and gone on with."""

import errno
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from rich.console import Console

from flax_pos.cli import main
from flax_pos.lab import tomlio
from flax_pos.lab.errors import UserError
from flax_pos.lab.grid import execute
from flax_pos.lab.grid.compare import compare_folders
from flax_pos.lab.grid.config import grid_from_table
from flax_pos.lab.grid.execute import resume_grid, start_grid
from flax_pos.lab.grid.report import write_grid_outputs
from flax_pos.lab.grid.results import read_grid
from flax_pos.lab.lock import alone
from flax_pos.lab.records import Records
from flax_pos.lab.run import Interrupted
from flax_pos.lab.stop import StopSignal

TABLE = {
    "name": "tiny",
    "schemes": ["rope", "alibi"],
    "controls": ["window", "last"],
    "learning_rates": [1e-2, 1e-3],
    "tasks": {"random": {"name": "random_copy", "max_size": 2, "test_size": 4, "samples": 4}},
    "models": {"small": {"width": 8, "layers": 1, "heads": 2}},
    "extensions": {
        "PI 2x": {
            "of": "rope",
            "scheme": "rope(spec={'scaling': {'rope_type': 'linear', 'factor': 2.0}})",
        }
    },
    "train": {"steps": 6, "batch_size": 4, "seeds": 5, "log_every": 3, "checkpoint_every": 3},
}


def quiet():
    return Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid") / "tiny"
    console = quiet()
    start_grid(grid_from_table(TABLE), folder, console)
    return folder, console.file.getvalue()


def test_rows_are_schemes_controls_and_extensions(finished):
    run = read_grid(finished[0])
    assert [(r.label, r.kind) for r in run.rows] == [
        ("rope", "scheme"),
        ("PI 2x", "extension"),
        ("control: last", "control"),
        ("alibi", "scheme"),
        ("control: window", "control"),
    ]
    assert not run.missing
    for row in run.rows:
        assert len(row.scores("exact past")) == 5
        assert set(row.validation) == {1e-2, 1e-3}
        assert row.learning_rate == min(row.validation, key=row.validation.get)
    rope, extended, last = run.rows[:3]
    assert rope.losses
    assert not extended.losses
    assert rope.scores("token inside") == last.scores("token inside")  # it is short enough
    assert extended.part["validation"] != rope.part["validation"]
    assert "spec" in str(extended.changed)
    assert not rope.changed


def test_an_extension_with_other_settings_is_not_the_one_measured(finished, tmp_path):
    folder = tmp_path / "changed"
    shutil.copytree(finished[0], folder)
    settings = folder / "grid.toml"
    settings.write_text(settings.read_text().replace("'factor': 2.0", "'factor': 4.0"))
    labels = [row.label for row in read_grid(folder).rows]
    assert labels == ["rope", "control: last", "alibi", "control: window"]


def test_a_folder_is_for_one_process_at_a_time(finished):
    folder, _ = finished
    start = lambda: start_grid(grid_from_table(TABLE), folder, quiet())
    with alone(folder):
        for go in (start, lambda: resume_grid(folder, quiet())):
            with pytest.raises(UserError, match="another process is at work"):
                go()
    resume_grid(folder, quiet())


@pytest.mark.slow
def test_a_stop_while_measuring_keeps_what_was_measured(finished, tmp_path, monkeypatch):
    folder = tmp_path / "grid"
    shutil.copytree(finished[0], folder)
    before = (folder / "results.json").read_bytes()
    logs = (folder / "cells").glob("*/metrics.jsonl")
    log = max(logs, key=lambda log: log.read_bytes().count(b'"label"'))
    lines = log.read_bytes().splitlines(keepends=True)
    measured = [i for i, line in enumerate(lines) if b'"label"' in line]
    log.write_bytes(b"".join(lines[: measured[0]]))

    class Stop(StopSignal):
        asked = property(lambda self: b'"label"' in log.read_bytes(), lambda self, value: None)

    with monkeypatch.context() as patch:
        patch.setattr(execute, "StopSignal", Stop)
        with pytest.raises(Interrupted):
            resume_grid(folder, quiet())
    assert log.read_bytes().count(b'"label"') == 1 < len(measured)
    resume_grid(folder, quiet())
    assert (folder / "results.json").read_bytes() == before


@pytest.mark.slow
def test_nothing_is_trained_twice(finished, monkeypatch):
    folder, _ = finished
    before = (folder / "results.json").read_text()
    monkeypatch.setattr("flax_pos.lab.grid.execute.SchemeRun.run", None)  # any call would fail
    resume_grid(folder, quiet())
    assert (folder / "results.json").read_text() == before
    start_grid(grid_from_table(TABLE | {"schemes": ["alibi", "rope"]}), folder, quiet())
    assert [r.label for r in read_grid(folder).rows if r.kind == "scheme"] == ["alibi", "rope"]
    start_grid(grid_from_table(TABLE), folder, quiet())


def test_outputs(finished):
    folder, printed = finished
    page = (folder / "report.html").read_text()
    for word in ("control: last", "PI 2x", "Published claims", "Every seed", "not testable here"):
        assert word in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    open_tags = []

    class Check(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in {"meta", "br", "use", "path", "image", "link", "input", "rect"}:
                open_tags.append(tag)

        def handle_endtag(self, tag):
            if tag not in {"path", "use", "image", "rect"}:
                assert open_tags.pop() == tag

    Check().feed(page)
    assert not open_tags
    lines = (folder / "results.csv").read_text().splitlines()
    assert len(lines) == 1 + 5 * 5 * 4
    assert lines[0].startswith("task,model,row")
    assert "| rope |" in (folder / "tables.md").read_text()
    assert "\\begin{tabular}" in (folder / "tables.tex").read_text()
    figures = {p.stem for p in (folder / "figures").glob("*.png")}
    assert figures >= {
        "random-exact-by-size",
        "random-token-by-size",
        "random-attention-by-distance",
        "random-entropy-of-attention",
        "random-receptive-field-by-gradient",
        "random-use-of-ropes-bands",
        "random-angles-that-training-never-showed",
    }
    assert "What the models do with positions" in page
    assert "random" in printed


def test_results_hold_what_decided_them(finished):
    results = json.loads((finished[0] / "results.json").read_text())
    assert "lowest loss" in results["selection"]
    rope = results["rows"][0]
    assert rope["paper_defaults"]
    assert rope["scheme"]["theta"] == 10000.0
    assert rope["parameters"] > 0
    assert set(rope["validation"]) == {"0.01", "0.001"}
    assert not results["rows"][1]["paper_defaults"]


def test_a_run_and_a_grid_are_compared(finished):
    found = compare_folders(finished[0], finished[0])
    assert {d.row for d in found} >= {"rope", "alibi", "PI 2x"}
    assert all(d.change.value == 0 and d.p == 1 for d in found)


def test_another_grid_in_common_with_none(finished, tmp_path):
    write = grid_from_table(TABLE | {"schemes": ["none"], "controls": [], "extensions": {}})
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "grid.toml").write_text(tomlio.dumps(write))
    with pytest.raises(UserError, match="have no row in common"):
        compare_folders(finished[0], folder)


@pytest.mark.slow
def test_half_written_results_are_not_read(finished, tmp_path):
    """What a kill in the middle of a write leaves behind, in every cell."""
    folder = tmp_path / "copy"

    shutil.copytree(finished[0], folder)
    for cell in (folder / "cells").iterdir():
        metrics = cell / "metrics.jsonl"
        lines = metrics.read_bytes().split(b"\n")
        at = next(i for i, line in enumerate(lines) if b'"event": "result"' in line)
        metrics.write_bytes(b"\n".join(lines[:at]) + b"\n" + lines[at][:80])
        label = next((cell / "checkpoints").iterdir())
        (label / "5").mkdir()
    resume_grid(folder, quiet())
    assert (folder / "results.json").read_text() == (finished[0] / "results.json").read_text()


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_nothing(finished, tmp_path, monkeypatch):
    folder = tmp_path / "full"
    append = Records.append
    written = []

    def full(self, event, **fields):
        if event == "result" and len(written) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        if event == "result":
            written.append(fields["scheme"])
        append(self, event, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(Records, "append", full)
        with pytest.raises(UserError, match=r"no space left on the disk of .*--resume"):
            start_grid(grid_from_table(TABLE), folder, quiet())
    write_grid_outputs(folder)
    run = read_grid(folder)
    assert [r.label for r in run.rows if r.kind == "scheme"] == written == ["rope"]
    assert run.missing == ["alibi on random", "control: window on random"]
    assert "Not finished: alibi" in (folder / "report.html").read_text()
    resume_grid(folder, quiet())
    assert (folder / "results.json").read_text() == (finished[0] / "results.json").read_text()


@pytest.mark.slow
def test_a_budget_drops_and_says_so(finished, tmp_path):
    table = TABLE | {"schemes": ["alibi"], "controls": [], "extensions": {}}
    grid = grid_from_table(table | {"train": TABLE["train"] | {"seeds": 7}})
    console = quiet()
    with pytest.raises(UserError, match="too short: even with one learning rate and 5 seeds"):
        start_grid(grid, tmp_path / "none", console, budget=0.001)
    folder = start_grid(grid, tmp_path / "all", console, budget=3600)
    assert not read_grid(folder).dropped
    assert "estimated" in console.file.getvalue()


def test_commands_say_what_is_wrong(tmp_path, capsys):
    for argv, message in (
        (["grid"], "which grid?"),
        (["grid", "nowhere"], "no config 'nowhere'"),
        (["grid", "--resume", str(tmp_path)], "is not a grid folder"),
        (["grid", "x.toml", "--resume", str(tmp_path)], "--resume keeps the settings"),
        (["compare", str(tmp_path), str(tmp_path)], "is not a run folder"),
    ):
        assert main(argv) == 2
        errors = capsys.readouterr().err
        assert message in errors
        assert errors.count("\n") == 1


def test_an_extension_that_does_not_fit_is_refused_before_training(tmp_path):
    table = TABLE | {"extensions": {"learned": {"of": "rope", "scheme": "learned"}}}
    with pytest.raises(UserError, match="extension 'learned' does not fit a trained 'rope'"):
        start_grid(grid_from_table(table), tmp_path / "none", quiet())
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(tmp_path):
    """Killed without warning again and again, then left alone: the same results file."""
    table = TABLE | {"train": TABLE["train"] | {"steps": 300, "log_every": 10}}
    grid = grid_from_table(table)
    (tmp_path / "g.toml").write_text(tomlio.dumps(grid))
    command = [sys.executable, "-m", "flax_pos.cli", "grid", "g.toml", "--out"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    whole = [*command, "undisturbed"]
    subprocess.run(whole, cwd=tmp_path, env=environment, check=True, capture_output=True)
    rng = random.Random(0)
    kills = int(os.environ.get("FLAX_POS_KILLS", "5"))
    for _ in range(kills):
        process = subprocess.Popen(
            [*command, "disturbed"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(timeout=rng.uniform(4, 14))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    end = [*command, "disturbed"]
    subprocess.run(end, cwd=tmp_path, env=environment, check=True, capture_output=True)
    one, other = ((tmp_path / f / "results.json").read_text() for f in ("undisturbed", "disturbed"))
    assert one == other
