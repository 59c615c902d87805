import dataclasses
from pathlib import Path

import pytest

from flax_pos.lab import tomlio
from flax_pos.lab.config import (
    Config,
    ModelSettings,
    absolute,
    config_from_table,
    find_preset,
    list_presets,
    load_config,
)
from flax_pos.lab.errors import UserError
from flax_pos.lab.tasks.copy import Copy
from flax_pos.lab.tasks.text import Text


def written(config, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(tomlio.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("preset", ["quick", "copy"])
def test_presets_round_trip(preset, tmp_path):
    config = load_config(find_preset(preset))
    assert load_config(written(config, tmp_path)) == config


def test_round_trip_keeps_every_kind_of_value(tmp_path):
    config = Config(
        name='a "quoted" ü name\n',
        schemes=("rope(theta=500.0)", "none"),
        sweep={"learning_rate": (1e-3, 3e-3), "theta": (10.0,)},
        task=Text(paths=(tmp_path / "a b.txt",), tokenizer=tmp_path / "t.json", multiples=(1, 3)),
        model=ModelSettings(kv_heads=2, tied=False, logit_softcap=30.0),
    )
    assert load_config(written(config, tmp_path)) == config


def test_a_task_is_read_back_by_its_name(tmp_path):
    config = Config(task=Copy(max_count=3, test_count=5))
    assert load_config(written(config, tmp_path)).task == Copy(max_count=3, test_count=5)


def test_every_preset_begins_with_its_command_cost_and_result():
    for name in list_presets():
        comment = find_preset(name).read_text().split("\n\n")[0]
        head = "\n".join(
            line for line in find_preset(name).read_text().splitlines() if line.startswith("#")
        )
        assert comment.startswith(("# python train_toy.py", "# flax-pos ")), name
        assert "Cost:" in head, name
        assert "Expect:" in head, name


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"shemes": ["none"]}, "unknown config key 'shemes'; did you mean 'schemes'"),
        ({"train": {"step": 3}}, "unknown config key 'train.step'; did you mean 'steps'"),
        ({"task": {"lenght": 3}}, "unknown config key 'task.lenght'; did you mean 'length'"),
        ({"task": {"name": "cpy"}}, "unknown task 'cpy'; did you mean 'copy'"),
        ({"task": "copy"}, "'task' is a table with a name"),
        ({"train": 3}, "'train' is a table"),
        ({"train": {"steps": 1.5}}, "'train.steps' must be an integer, got 1.5"),
        ({"train": {"steps": True}}, "'train.steps' must be an integer, got True"),
        ({"train": {"vary": "none"}}, "'train.vary' must be one of 'both', 'init', 'data'"),
        ({"train": {"seeds": 0}}, "seeds=0 must be at least 1"),
        ({"schemes": [1]}, "'schemes' must be a string, got 1"),
        ({"schemes": []}, "schemes is empty"),
        ({"schemes": ["none", "none"]}, "'none' is listed twice"),
        ({"sweep": {"theta": [1.0, 1.0]}}, "needs different numbers"),
        ({"optimizer": {"learning_rate": 0.0}}, "learning_rate=0.0 must be greater than 0"),
        ({"task": {"multiples": [2, 1]}}, "must rise and begin with 1"),
    ],
)
def test_mistakes_are_named(table, message):
    with pytest.raises(UserError, match=message) as error:
        config_from_table(table)
    assert "\n" not in str(error.value)


def test_files_that_are_no_config(tmp_path):
    with pytest.raises(UserError, match="no config file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = [")
    with pytest.raises(UserError, match=r"bad\.toml is not TOML"):
        load_config(tmp_path / "bad.toml")
    with pytest.raises(UserError, match="no config 'qick'"):
        find_preset("qick")


def test_an_integer_is_a_number_but_not_the_other_way_round():
    assert config_from_table({"optimizer": {"clip": 2}}).optimizer.clip == 2.0
    assert isinstance(config_from_table({"optimizer": {"clip": 2}}).optimizer.clip, float)


def test_model_sizes_follow_the_data():
    task = Text(length=16)
    config = ModelSettings().resolve(task, 300)
    assert (config.vocab_size, config.max_len) == (300, 16)
    assert ModelSettings(vocab_size=512, max_len=99).resolve(task, 300).vocab_size == 512
    assert ModelSettings(vocab_size=512, max_len=99).resolve(task, 300).max_len == 99
    with pytest.raises(UserError, match=r"vocabulary too small: model.vocab_size=256.*needs 300"):
        ModelSettings(vocab_size=256).resolve(task, 300)
    with pytest.raises(UserError, match=r"in \[model\]: width=10 is not a multiple of heads=4"):
        ModelSettings(width=10).resolve(task, 300)


def test_files_are_named_from_the_root(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    task = Text(paths=(Path("a.txt"),), tokenizer=Path("t.json"))
    config = absolute(Config(imports=("own.py", "a.module"), task=task))
    assert config.imports == (str(tmp_path / "own.py"), "a.module")
    assert config.task == Text(paths=(tmp_path / "a.txt",), tokenizer=tmp_path / "t.json")
    assert absolute(Config()) == Config()


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().name = "other"
