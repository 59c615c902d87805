"""What the project says about itself: the README's code runs and its generated parts are true, and
the package imports no more than it promises."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# The core's dependencies, what they import themselves, and the standard library.
FORBIDDEN = (
    "torch",
    "transformers",
    "tensorflow",
    "matplotlib",
    "tyro",
    "rich",
    "orbax.checkpoint",
    "tokenizers",
    "safetensors",
    "gguf",
    "grain",
)


def test_readme_generated_parts_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "readme.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_code_runs(number, tmp_path):
    path = tmp_path / f"readme_block_{number}.py"
    path.write_text(BLOCKS[number])
    runpy.run_path(str(path))


def test_import_needs_the_core_dependencies_only():
    script = (
        "import sys, json, flax_pos, flax_pos.nnx, flax_pos.linen, flax_pos.checks\n"
        "flax_pos.list_schemes()\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    # flax itself imports some of these; what matters is that flax_pos adds none.
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, json, flax.linen, flax.nnx, optax; print(json.dumps(sorted(sys.modules)))",
        ],
        capture_output=True,
        text=True,
    )
    without = json.loads(done.stdout)
    added = set(loaded) - set(without)
    assert not [m for m in added if m.startswith(FORBIDDEN)]
    assert "torch" not in loaded
    assert "transformers" not in loaded


def test_import_computes_nothing():
    script = (
        "import jax\n"
        "import flax_pos, flax_pos.nnx, flax_pos.linen\n"
        "flax_pos.list_schemes()\n"
        "from jax._src import xla_bridge\n"
        "print(len(xla_bridge._backends))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "0", done.stdout + done.stderr
