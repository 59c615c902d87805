import os
import subprocess
import sys
from pathlib import Path

import pytest

from flax_pos.cli import main
from flax_pos.lab import tomlio
from flax_pos.lab.accounting import account
from flax_pos.lab.members import make_entries, parse_scheme
from flax_pos.nnx import ModelConfig
from flax_pos.scheme import get_scheme, list_schemes

SCRIPT = Path(__file__).parents[2] / "train_toy.py"


def test_an_unknown_scheme(fails):
    line = fails("train", "--schemes", "none", "roep")
    assert line == "flax-pos train: error: unknown scheme 'roep'; did you mean 'rope'?\n"


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("rope(theta=-1.0)", "scheme 'rope(theta=-1.0)': "),
        ("rope(thet=1.0)", "has no field 'thet'"),
        ("rope(1.0)", "write settings as name=value"),
        ("rope(theta=x)", "unknown scheme 'x'"),
        ("rope(theta=1+y)", "is not a plain value"),
        ("ro pe", "neither NAME nor NAME(setting=value, ...)"),
    ],
)
def test_bad_settings_of_a_scheme(fails, scheme, message):
    assert message in fails("train", "--schemes", scheme)


def test_an_odd_head_width(fails):
    line = fails("train", "--schemes", "rope", "--model.width", "12", "--model.heads", "4")
    assert line.startswith("flax-pos train: error: scheme 'rope' does not fit this model: ")
    assert "3" in line


def test_sizes_that_do_not_fit(fails):
    assert "width=10 is not a multiple of heads=4" in fails("train", "--model.width", "10")


def test_a_misspelt_key_in_a_config(fails, tmp_path):
    (tmp_path / "c.toml").write_text("[train]\nstpes = 3\n")
    assert fails("train", "--config", "c.toml") == (
        "flax-pos train: error: unknown config key 'train.stpes'; did you mean 'steps'?\n"
    )
    (tmp_path / "c.toml").write_text("[train\n")
    assert "c.toml is not TOML" in fails("train", "--config", "c.toml")
    assert "no config file 'd.toml'" in fails("train", "--config", "d.toml")
    assert "no config 'qick'" in fails("train", "--config", "qick")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the corpus is empty"),
        (b"\x7fELF\0\0", "is binary (NUL byte at offset 4)"),
        (b"caf\xe9", "is not UTF-8 text (byte 0xe9 at offset 3)"),
        (b"short", "the corpus is too short"),
    ],
)
def test_bad_data(fails, tmp_path, content, message):
    (tmp_path / "data").write_bytes(content)
    assert message in fails("train", "--data", "data")


def test_missing_files(fails):
    assert "no data file 'none.txt'" in fails("train", "--data", "none.txt")
    assert "no tokenizer file 'none.json'" in fails("train", "--tokenizer", "none.json")
    assert "no file 'own.py' to import" in fails("train", "--import", "own.py")
    assert "cannot import 'no_such_module'" in fails("train", "--import", "no_such_module")
    assert "'run' is not a run folder" in fails("train", "--resume", "run")
    assert "'run' is not a run folder" in fails("report", "run")


def test_a_vocabulary_too_small(fails):
    line = fails("train", "--model.vocab-size", "100")
    assert "vocabulary too small: model.vocab_size=100" in line
    assert "needs 256" in line


def test_values_that_make_no_sense(fails):
    assert "steps=0 must be at least 1" in fails("train", "--steps", "0")
    assert "unknown task 'txet'; did you mean 'text'" in fails("train", "--task-name", "txet")
    assert "cannot sweep 'thta'" in fails("train", "--sweep", "thta=1,2")
    assert "--resume keeps the settings" in fails("train", "--resume", "run", "--seeds", "3")


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1"])
def test_a_swept_number_passes_the_check_of_its_field(fails, value):
    assert "learning_rate" in fails("train", "--optimizer.learning-rate", value)
    assert "sweep of " in fails("train", "--sweep", f"learning_rate={value}")
    assert "sweep of " in fails("train", "--schemes", "rope", "--sweep", f"theta=10,{value}")


@pytest.mark.parametrize("folder", ["file", "file/below", "/proc/none", "/proc"])
def test_a_folder_that_cannot_be_written(fails, tmp_path, folder, text_file):
    (tmp_path / "file").write_text("mine")
    sizes = ("--schemes", "none", "--task.length", "8", "--data", text_file)
    line = f"cannot write to the folder '{folder}': "
    assert line in fails("train", *sizes, "--out", folder)
    (tmp_path / "g.toml").write_text('schemes = ["none"]\n[tasks.copy]\n')
    assert line in fails("grid", "g.toml", "--out", folder)
    assert (tmp_path / "file").read_text() == "mine"


def test_unknown_commands_and_models(fails, capsys):
    assert "unknown command 'tarin'" in fails("tarin")
    assert "unknown model 'llama-8b'; did you mean 'llama-3.1-8b'" in fails("params", "llama-8b")


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    assert "train" in capsys.readouterr().out
    assert main([]) == 2
    capsys.readouterr()
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("flax-pos 0.")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--train.stpes", "3"],
            "Unrecognized options: --train.stpes, 3; did you mean --train.steps?",
        ),
        (["--seeds", "x"], "--seeds/--train.seeds: invalid literal for int() with base 10: 'x'"),
        (["--seeds"], "Missing value for argument '--seeds/--train.seeds'"),
        (["--train.vary", "all"], "invalid choice 'all' for argument '--train.vary'"),
        (["--sweep", "theta=1,a"], "'theta=1,a' is not NAME=NUMBER,NUMBER..."),
        (["stray"], "Unrecognized options: stray"),
        (["--schemes"], "schemes is empty; name at least one"),
        (["--schemes", "rope", "rope"], "scheme 'rope' is listed twice"),
        (["--sweep", "theta=1,1"], "sweep of 'theta' needs different numbers"),
    ],
)
def test_bad_options(fails, args, message):
    assert message in fails("train", *args)


def test_params(capsys):
    assert main(["params", "llama-3.1-8b"]) == 0
    out = capsys.readouterr().out
    assert "525,336,576" in out
    assert "0.53 B" in out
    assert "8,030,261,248" in out  # as published: 8.03 B
    assert "tying would save 0.53 B parameters, 1.05 GB" in out
    assert main(["params", "gpt2"]) == 0
    assert "124,439,808" in capsys.readouterr().out  # as published: 124 M
    assert main(["params", "quick"]) == 0
    assert "learned: 119,104 parameters, 4,096 of them positional" in capsys.readouterr().out


def test_params_of_a_config_file(capsys, tmp_path, tiny):
    (tmp_path / "c.toml").write_text(tomlio.dumps(tiny))
    assert main(["params", str(tmp_path / "c.toml"), "--scheme", "learned"]) == 0
    out = capsys.readouterr().out
    assert "positions (learned)" in out
    assert "V = 256, D = 8" in out


def test_params_of_several_schemes(capsys):
    assert main(["params", "gpt2", "--schemes", "rope", "learned"]) == 0
    out = capsys.readouterr().out
    assert "learned: 124,439,808 parameters" in out
    assert "rope: 123,653,376 parameters, 0 of them" in out


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ([], "quick"),
        (["--steps", "3"], "text"),
        (["--task-name", "sort"], "sort"),
        (["--task-name", "sort", "--name", "mine"], "mine"),
        (["--schemes", "rope", "--name", "quick"], "quick"),
        (["--config", "copy"], "copy"),
        (["--config", "quick", "--schemes", "rope"], "quick"),
    ],
)
def test_the_name_of_a_run(monkeypatch, args, name):
    """That of its config, else of its task, unless it is the preset's own."""
    started = []
    monkeypatch.setattr("flax_pos.lab.run.start", lambda config, *_, **__: started.append(config))
    assert main(["train", *args]) == 0
    assert [config.name for config in started] == [name]


def test_sample_needs_a_scheme_only_where_there_are_several(fails, tmp_path, tiny, change):
    (tmp_path / "config.toml").write_text(tomlio.dumps(tiny))
    assert "'none' has no complete checkpoint yet" in fails("sample", tmp_path)
    several = change(tiny, schemes=("none", "rope"), sweep={"theta": (1.0, 2.0)})
    (tmp_path / "config.toml").write_text(tomlio.dumps(several))
    line = fails("sample", tmp_path)
    assert "which scheme? this run has 'none', 'rope theta=1', 'rope theta=2'" in line


def test_accounting_adds_up():
    config = ModelConfig(vocab_size=10, width=8, layers=3, heads=2, tied=False, max_len=5)
    found = account(config, get_scheme("learned")())
    assert found.embedding.parameters == found.head.parameters == 80
    assert found.positional.parameters == 40
    assert found.rest.parameters == 3 * (4 * 64 + 2 * 8 * 32 + 2 * 8) + 8
    assert found.total.bytes == 4 * found.total.parameters
    tied = account(ModelConfig(vocab_size=10, width=8, layers=3, heads=2), get_scheme("none")())
    assert tied.head.parameters == tied.positional.parameters == 0


def test_schemes_lists_all(capsys):
    assert main(["schemes", "--markdown"]) == 0
    out = capsys.readouterr().out
    for name in list_schemes():
        assert f"| `{name}` |" in out
    assert "| `learned` | `init_model`, `embed` | absolute, bounded | 786,432 |" in out


def test_the_list_of_schemes_in_a_file_is_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["schemes"]) == 0
    words = capsys.readouterr().out.split()
    for name in list_schemes():
        assert {name, *get_scheme(name).paper.split()} <= set(words)


def test_scheme_texts():
    assert parse_scheme("rope") == get_scheme("rope")()
    assert parse_scheme("rope(theta=500.0)") == get_scheme("rope")(theta=500.0)
    nested = parse_scheme("stack(parts=[rope(theta=10.0), alibi])")
    parts = (get_scheme("rope")(theta=10.0), get_scheme("alibi")())
    assert nested == get_scheme("stack")(parts=parts)


def test_a_sweep_runs_where_the_setting_exists(tiny, change):
    config = change(tiny, schemes=("none", "rope"), sweep={"theta": (10.0, 100.0)})
    none, rope = make_entries(config)
    assert none.points == ({},)
    assert rope.points == ({"theta": 10.0}, {"theta": 100.0})
    assert rope.rows == ("rope theta=10", "rope theta=100")
    assert none.rows == ("none",)


@pytest.mark.slow
def test_the_script_ends_with_one_line_and_code_2(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--schemes", "rpoe"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "train_toy.py: error: unknown scheme 'rpoe'; did you mean 'rope'?\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("argv", "unbuffered"), [(["--version"], ""), (["--version"], "1"), (["schemes", "--help"], "")]
)
def test_a_reader_that_leaves(argv, unbuffered):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "flax_pos.cli", *argv],
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=closed,
            stderr=subprocess.PIPE,
        )
    assert (ended.returncode, ended.stderr) == (1, b"")
