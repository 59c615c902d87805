"""Runs as a user starts them: stopped, killed and gone on with, and with a scheme of their own."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flax_pos.lab import tomlio
from flax_pos.lab.records import Records
from flax_pos.lab.results import read_run


def command(*args, cwd: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "flax_pos.cli", "train", *map(str, args)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_updates(process: subprocess.Popen, folder: Path, step: int) -> None:
    """Until a checkpointed step past `step` is in the log."""
    records = Records(folder / "metrics.jsonl")
    end = time.monotonic() + 1200
    while time.monotonic() < end and process.poll() is None:
        if any(e["event"] == "train" and e["step"] >= step for e in records.read()):
            return
        time.sleep(0.01)
    pytest.fail(f"no update {step}; exit code {process.poll()}: {process.communicate()}")


@pytest.mark.slow
def test_a_run_stopped_and_killed_ends_with_the_same_numbers(tiny, change, tmp_path):
    config = change(
        tiny,
        schemes=("alibi",),
        train={"steps": 1000, "log_every": 5, "checkpoint_every": 20},
    )
    (tmp_path / "c.toml").write_text(tomlio.dumps(config))
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"

    process = command("--config", "c.toml", "--out", disturbed, cwd=tmp_path)
    wait_for_updates(process, disturbed, 100)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 130
    assert f"--resume {disturbed}" in errors
    assert "Traceback" not in errors
    stopped_at = max(e["step"] for e in Records(disturbed / "metrics.jsonl").read() if "step" in e)
    assert 100 <= stopped_at < 1000

    process = command("--resume", disturbed, cwd=tmp_path)
    wait_for_updates(process, disturbed, stopped_at + 100)
    process.kill()
    process.communicate()
    # What a kill in the middle of a write leaves behind.
    with (disturbed / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event": "train", "scheme": "alibi", "step": 9')
    (disturbed / "checkpoints" / "alibi" / "999" / "state").mkdir(parents=True)

    process = command("--resume", disturbed, cwd=tmp_path)
    output, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    assert "999 is not a complete checkpoint; it is not read" in output.replace("\n", "")

    process = command("--config", "c.toml", "--out", undisturbed, cwd=tmp_path)
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors

    one, other = read_run(undisturbed), read_run(disturbed)
    for scheme, result in one.finished.items():
        assert other.finished[scheme]["rows"] == result["rows"], scheme
    for row, other_row in zip(one.rows, other.rows, strict=True):
        assert row.steps == other_row.steps
        assert row.losses == other_row.losses
    restarts = [e["step"] for e in other.events if e["event"] == "start"]
    assert restarts[0] == 0
    assert restarts[1] == stopped_at
    assert stopped_at + 80 <= restarts[2]


OWN = '''
"""A bias that falls with the square root of the distance, by someone who knows only `register`."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos import Scheme, register


@register("sqrt_decay")
@dataclass(frozen=True, kw_only=True)
class SqrtDecay(Scheme):
    rate: float = 0.5

    def bias(self, params, q_at, k_at, heads):
        distance = q_at.pos[..., :, None] - k_at.pos[..., None, :]
        return -self.rate * jnp.sqrt(jnp.abs(distance).astype(jnp.float32))[..., None, :, :]
'''

USE = """
import jax.numpy as jnp, numpy as np, pathlib, sys
from flax_pos.cli import main
from flax_pos.lab.run import load_model
from flax_pos.nnx import generate

assert main(["train", "--config", "c.toml", "--import", "own.py", "--schemes", "none",
             "sqrt_decay(rate=0.3)", "--sweep", "rate=0.3,0.6", "--out", "run"]) == 0
model, _ = load_model(pathlib.Path("run"), "sqrt_decay(rate=0.3) rate=0.6", seed=1)
assert model.scheme.rate == 0.6
ids = jnp.asarray([[116, 104, 101, 32]])
out = generate(model, ids, max_new_tokens=6)
for t in range(4, 10):
    assert int(jnp.argmax(model(out[:, :t])[0, -1])) == int(out[0, t])
assert main(["sample", "run", "--scheme", "none", "--prompt", "the ", "--tokens", "5"]) == 0
assert main(["schemes", "--markdown", "--import", "own.py"]) == 0
"""


@pytest.mark.slow
def test_a_scheme_in_a_file_of_the_users_own(tiny, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "c.toml").write_text(tomlio.dumps(tiny))
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    assert "| `sqrt_decay` | `bias` | relative, unbounded | 0 |" in done.stdout
    for file in ("table.md", "report.html", "summary.json"):
        text = (tmp_path / "run" / file).read_text()
        assert "sqrt_decay(rate=0.3) rate=0.6" in text, file
    resolved = tomlio.read(tmp_path / "run" / "config.toml")
    assert resolved["imports"] == [str(tmp_path / "own.py")]  # found from any folder
