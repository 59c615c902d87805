"""Events for TensorBoard, read back from their file."""

import struct
import sys

import pytest

from flax_pos.cli import main
from flax_pos.lab.scalars import Scalars


def read_events(folder):
    """Tag, step and value of every scalar in a folder's events files (framed records of TFRecord:
    length, checksum, bytes, checksum)."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.glob("events*")):
        raw, at = path.read_bytes(), 0
        while at < len(raw):
            (size,) = struct.unpack("<Q", raw[at : at + 8])
            event = Event.FromString(raw[at + 12 : at + 12 + size])
            found += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
            at += 16 + size
    return found


def train_event(step, losses):
    return dict.fromkeys(("accuracy", "gradient_norm", "learning_rate"), losses) | {
        "step": step,
        "loss": losses,
    }


def test_every_model_gets_its_own_scalars_while_it_trains(tmp_path):
    pytest.importorskip("tensorboardX")
    write = Scalars(tmp_path, ["rope seed 0", "rope seed 1/2"])
    write("start", {"step": 0})
    write("train", train_event(10, [1.5, 2.5]))
    # On the disk before training ends:
    assert ("training/loss", 10, 1.5) in read_events(tmp_path / "rope seed 0")
    write("train", train_event(20, [1.25, 2.25]))
    row = {"seeds": ["0", "1/2"], "scalars": {"loss@8": [0.5, 0.75], "loss@16": [None, None]}}
    write("result", {"rows": [row]})
    first, second = (read_events(tmp_path / f"rope seed {n}") for n in ("0", "1-2"))
    assert [v for tag, _, v in first if tag == "training/loss"] == [1.5, 1.25]
    assert [s for tag, s, _ in second if tag == "training/loss"] == [10, 20]
    assert ("results/loss@8", 0, 0.75) in second
    assert not [tag for tag, _, _ in second if "loss@16" in tag]


@pytest.mark.parametrize("command", ["train", "grid"])
def test_without_the_package_one_line_says_what_to_install(command, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)  # as if it could not be imported
    monkeypatch.delitem(sys.modules, "tensorboardX.event_file_writer", raising=False)
    assert main([command, "--tensorboard"]) == 2
    assert "install the extra: flax-pos[tensorboard]" in capsys.readouterr().err
