"""Small configs and programs, so that a test compiles little."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from flax_pos.cli import main
from flax_pos.lab.config import Config, ModelSettings, TrainConfig
from flax_pos.lab.members import make_entries, make_members
from flax_pos.lab.optimizer import OptimizerConfig
from flax_pos.lab.placement import place
from flax_pos.lab.program import Model, Program
from flax_pos.lab.tasks.text import Text

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "on", "red", "mat")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory) -> Path:
    """About 12 kB of words in random order."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(rng.choice(WORDS, 2500)) + "\n")
    return path


@pytest.fixture(scope="session")
def tiny(text_file) -> Config:
    """A config that trains in a moment."""
    return Config(
        name="tiny",
        schemes=("none",),
        task=Text(paths=(text_file,), length=8, multiples=(1, 2), windows=6),
        model=ModelSettings(width=8, layers=1, heads=2),
        train=TrainConfig(steps=6, batch_size=2, seeds=2, log_every=3, checkpoint_every=3),
        optimizer=OptimizerConfig(learning_rate=1e-2),
    )


def build(config: Config, inner="map", devices=1, label=None) -> Program:
    """The program of a config's first (or named) scheme."""
    entry = {e.label: e for e in make_entries(config)}[label or config.schemes[0]]
    loaded = config.task.load()
    members = make_members(config, entry)
    train = config.train
    return Program(
        model=Model(config.model.resolve(config.task, loaded.vocab_size), entry.scheme),
        task=config.task,
        loaded=loaded,
        members=members,
        placement=place(len(members["init_seed"]), inner, devices),
        optimizer=config.optimizer,
        steps=train.steps,
        batch_size=train.batch_size,
        log_every=train.log_every,
        skip_nonfinite=train.skip_nonfinite,
    )


@pytest.fixture(scope="session")
def build_program():
    return build


@pytest.fixture(scope="session")
def change():
    """`change(config, train={"steps": 3})`: nested `dataclasses.replace`."""

    def replace(config: Config, **changes) -> Config:
        nested = {
            name: dataclasses.replace(getattr(config, name), **value)
            if isinstance(value, dict) and name != "sweep"
            else value
            for name, value in changes.items()
        }
        return dataclasses.replace(config, **nested)

    return replace


@pytest.fixture
def fails(capsys, tmp_path, monkeypatch):
    """`fails(args...)`: the one line that a command ends with; it leaves no run behind."""
    monkeypatch.chdir(tmp_path)

    def run(*args) -> str:
        assert main([str(a) for a in args]) == 2
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        assert printed.err.count("\n") == 1
        assert printed.out == ""
        assert not (tmp_path / "runs").exists()
        return printed.err

    return run
