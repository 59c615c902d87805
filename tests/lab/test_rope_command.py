"""The command `rope`: what it says about pairs, and how it fails."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from flax_pos.cli import main
from flax_pos.functional.rope import Linear, RopeSpec, Yarn
from flax_pos.lab.rope.figure import _wavelengths
from flax_pos.lab.rope.pairs import Case, score_by_distance, treatment

LLAMA = {
    "model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip
GEMMA = {"model_type": "gemma3_text", "max_position_embeddings": 32768}


def run(tmp_path, capsys, config, *options):
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    out = tmp_path / "picture.png"
    code = main(["rope", str(path), "--out", str(out), *options])
    told = capsys.readouterr()
    return code, told.out + told.err, out


def test_pairs_that_leave_the_trained_range():
    """Theta 1e4, width 16: wavelengths 6.3, 19.9, 62.8, 199, ...: the fourth pair and those after
    it have not made one turn in 64 tokens."""
    plain = Case(None, RopeSpec(head_dim=16), 64, 128)
    assert plain.leaves(plain.own).tolist() == [False] * 3 + [True] * 5
    stretched = Case(None, RopeSpec(head_dim=16, scaling=Linear(factor=2)), 64, 128)
    assert not stretched.leaves(stretched.own).any()
    short = Case(None, RopeSpec(head_dim=16, scaling=Linear(factor=2)), 64, 256)
    assert short.leaves(short.own).tolist() == [False] * 3 + [True] * 5
    assert not Case(None, RopeSpec(head_dim=16), 64, 64).leaves(plain.own).any()
    assert plain.turns == pytest.approx(64 / (2 * np.pi * 1e4 ** (np.arange(8) / 8)))


def test_other_laws_stretch_as_far_as_needed():
    case = Case(None, RopeSpec(head_dim=16), 64, 512)
    assert list(case.others()) == ["linear", "NTK", "dynamic", "YaRN"]
    np.testing.assert_allclose(case.others()["linear"], case.plain / 8)
    yarn = RopeSpec(head_dim=16, scaling=Yarn(factor=8, original_max_position_embeddings=64))
    np.testing.assert_array_equal(case.others()["YaRN"], yarn.frequencies()[0])
    assert Case(None, RopeSpec(head_dim=16), 64, 64).others() == {}


def test_treatment():
    assert treatment(1.0, 1.0) == "kept"
    assert treatment(1.0, 0.25) == "/ 4"
    assert treatment(1.0, 0.0) == "stands still"
    assert treatment(1.0, 1.25) == "x 1.25"


def test_score_by_distance():
    got = score_by_distance(np.array([0.5, 0.1]), 2.0, np.array([0, 3]))
    assert got == pytest.approx([4, 2 * (np.cos(1.5) + np.cos(0.3))])


def test_table_and_picture(tmp_path, capsys):
    code, told, picture = run(tmp_path, capsys, LLAMA, "--length", "512")
    assert code == 0
    assert "all layers: llama3, theta 10000, 16 of 16 channels, half" in told
    assert "trained to 64, looked at from 512" in told
    rows = {
        line.split()[0]: line.split() for line in told.splitlines() if line.strip()[:1].isdigit()
    }
    assert len(rows) == 8
    assert rows["0"][1:4] == ["6.3", "10.19", "kept"]
    assert rows["7"][1:5] == ["19,869", "0.003221", "/", "8"]
    assert "leaves the trained range at length 512: no pair as configured" in told
    assert "with the factor linear 8, NTK 8, dynamic 2, YaRN 8." in told
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert not list(tmp_path.glob("*.partial"))


def test_a_narrow_terminal_cuts_no_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, told, _ = run(tmp_path, capsys, LLAMA, "--length", "512")
    assert "…" not in told


def test_kinds_of_layers(tmp_path, capsys):
    code, told, _ = run(tmp_path, capsys, GEMMA, "--trained", "8192")
    assert code == 0
    assert "sliding_attention layers: default, theta 10000" in told
    assert "full_attention layers: default, theta 1e+06" in told
    assert "leaves the trained range at length 32,768: pairs" in told


def test_folder(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert main(["rope", str(tmp_path), "--out", str(tmp_path / "x.png")]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ("{", (), "is not JSON"),
        ("[]", (), "holds no JSON object"),
        ({"model_type": "gpt2"}, (), "this model has no rotary embedding"),
        ({"head_dim": 7}, (), "rotary width must be even"),
        ({"head_dim": 8}, (), "does not say the trained length; give --trained"),
        (LLAMA, ("--length", "1"), "--length must be a whole number from 2"),
        (LLAMA, ("--length", "0"), "--length must be a whole number from 2"),
        (LLAMA, ("--trained", "0"), "--trained must be a whole number from 2"),
        (LLAMA, ("--lenght", "9"), "lenght"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, config, options, message):
    code, told, picture = run(tmp_path, capsys, config, *options)
    assert code == 2
    assert message in told
    assert len(told.strip().splitlines()) == 1
    assert not picture.exists()


def test_no_two_lines_look_alike():
    axes = Figure().add_subplot()
    _wavelengths(axes, Case(None, RopeSpec(head_dim=16), 64, 512))
    lines = [line for line in axes.lines if line.get_label()[0] != "_"][:-1]  # the last: dots
    assert len(lines) == 6
    assert len({line.get_color() for line in lines}) == 6
    broken = [line for line in lines if line.get_label() not in ("unscaled", "as configured")]
    assert len({str(line._dash_pattern) for line in broken}) == 4


def test_missing_file(tmp_path, capsys):
    assert main(["rope", str(tmp_path / "none.json")]) == 2
    assert "cannot read" in capsys.readouterr().err
