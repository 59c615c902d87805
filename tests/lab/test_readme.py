"""What the README tells a newcomer to do, done to the letter."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from flax_pos.lab.grid.config import load_grid

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def own_files() -> dict[str, str]:
    """Files that the README shows whole, by the name in their first line."""
    named = ((re.match(r"# (\w+\.py)\n", block), block) for block in blocks("python"))
    return {match[1]: block for match, block in named if match}


def test_the_files_and_the_command_are_there():
    assert set(own_files()) == {"my_scheme.py", "my_task.py"}
    assert len(commands()) == 1


def test_the_grid_is_one(tmp_path):
    (text,) = [b for b in blocks("") if "[tasks." in b]
    (tmp_path / "my_grid.toml").write_text(text)
    grid = load_grid(tmp_path / "my_grid.toml")
    assert set(grid.tasks) == {"sort", "short_text"}
    assert set(grid.models) == {"small"}


GRID = """
import dataclasses, pathlib
from rich.console import Console
from flax_pos.lab.grid.config import load_grid
from flax_pos.lab.grid.execute import start_grid
grid = load_grid(pathlib.Path("my_grid.toml"))
train = dataclasses.replace(grid.train, steps=2, seeds=1, batch_size=2)
start_grid(dataclasses.replace(grid, train=train), pathlib.Path("grid"), Console(width=120))
"""


@pytest.mark.slow
def test_a_grid_of_the_users_own(tmp_path):
    for name, text in own_files().items():
        (tmp_path / name).write_text(text)
    (text,) = [b for b in blocks("toml") if b.startswith("# my_grid.toml")]
    (tmp_path / "my_grid.toml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", GRID], cwd=tmp_path, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    assert "tent(width=8.0)" in (tmp_path / "grid" / "tables.md").read_text()


@pytest.mark.slow
def test_the_scheme_passes_what_it_is_told_to_run(tmp_path):
    (tmp_path / "my_scheme.py").write_text(own_files()["my_scheme.py"])
    (command,) = [b for b in blocks("") if "check_scheme" in b]
    program, *options = shlex.split(command)
    assert program == "python"
    done = subprocess.run(
        [sys.executable, *options], cwd=tmp_path, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr


def commands() -> list[str]:
    return [b.strip() for b in blocks("") if "my_task.py" in b and b.count("\n") == 1]


@pytest.mark.slow
def test_a_scheme_and_a_task_in_two_files_end_in_one_report(tmp_path):
    for name, text in own_files().items():
        (tmp_path / name).write_text(text)
    program, script, *options = shlex.split(commands()[0])
    assert program == "python"
    small = "--train.steps 4 --train.seeds 2 --task.max-size 2 --task.test-size 3 --model.width 8"
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *options, *small.split(), "--out", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "run" / "report.html").read_text()
    for word in ("tent", "rope", "reaching back over all of a sequence", "min(i - j, width)"):
        assert word in page
    table = (tmp_path / "run" / "table.md").read_text()
    assert "| tent |" in table
    assert "exact match: 1–2" in table
