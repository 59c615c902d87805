import json

import numpy as np
import pytest

from flax_pos.lab.checkpoint import Checkpoints
from flax_pos.lab.records import Records, write_atomic


def test_lines_are_appended_and_read(tmp_path):
    records = Records(tmp_path / "metrics.jsonl")
    assert records.read() == []
    records.append("data", about={"a": 1})
    records.append("train", scheme="x", step=1, loss=np.float32([1.5, np.nan]))
    assert records.read() == [
        {"event": "data", "about": {"a": 1}},
        {"event": "train", "scheme": "x", "step": 1, "loss": [1.5, "nan"]},
    ]


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_last_line_is_never_read(tmp_path, cut):
    path = tmp_path / "metrics.jsonl"
    records = Records(path)
    records.append("train", scheme="x", step=1)
    whole = path.read_bytes()
    records.append("train", scheme="x", step=2)
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    assert [e["step"] for e in records.read()] == [1]
    records.append("train", scheme="x", step=3)
    steps = [e["step"] for e in records.read()]
    # A line that lost nothing but its newline is whole once the next one is written.
    assert steps in ([1, 3], [1, 2, 3])
    assert (2 in steps) == (cut == len(whole) - 1)


def test_steps_trained_again_are_given_once(tmp_path):
    records = Records(tmp_path / "metrics.jsonl")
    for scheme in ("x", "y"):
        records.append("start", scheme=scheme, step=0)
        for step in (10, 20, 30):
            records.append("train", scheme=scheme, step=step, loss=0)
    records.append("start", scheme="x", step=10)
    for step in (20, 30, 40):
        records.append("train", scheme="x", step=step, loss=1)
    train = [e for e in records.read() if e["event"] == "train"]
    assert [(e["step"], e["loss"]) for e in train if e["scheme"] == "x"] == [
        (10, 0), (20, 1), (30, 1), (40, 1),
    ]  # fmt: skip
    assert [e["step"] for e in train if e["scheme"] == "y"] == [10, 20, 30]


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, "first")
    write_atomic(path, "second")
    assert path.read_text() == "second"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def state(value):
    return {"step": np.full(2, value, np.int32), "w": np.full((2, 3), value, np.float32)}


def test_only_the_latest_checkpoint_stays(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c")
    assert checkpoints.steps() == []
    for step in (10, 20, 20):
        checkpoints.save(step, state(step))
    assert checkpoints.steps() == [20]
    restored = checkpoints.restore(20, state(0))
    np.testing.assert_array_equal(restored["w"], state(20)["w"])
    assert restored["step"].dtype == np.int32


def test_a_half_written_checkpoint_is_not_one(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save(20, state(20))
    (tmp_path / "c" / "30" / "state").mkdir(parents=True)
    (tmp_path / "c" / "25.partial").mkdir()
    (tmp_path / "c" / "40").mkdir()
    (tmp_path / "c" / "40" / "complete.json").write_text('{"step": 4')
    (tmp_path / "c" / "50").mkdir()
    (tmp_path / "c" / "50" / "complete.json").write_text(json.dumps({"step": 20}))
    assert checkpoints.steps() == [20]
    assert {p.name for p in checkpoints.incomplete()} == {"25.partial", "30", "40", "50"}
    checkpoints.save(30, state(30))
    assert checkpoints.steps() == [30]
    assert checkpoints.incomplete() == []
    np.testing.assert_array_equal(checkpoints.restore(30, state(0))["w"], state(30)["w"])
