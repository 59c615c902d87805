"""What a run ran on."""

import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = (
    "flax-pos",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "tokenizers",
)


def cpu_cores() -> int:
    """Cores that this process may use: its affinity, cut by a container's quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(cores, 1)


def describe() -> dict[str, Any]:
    """Versions, devices and source revision, as plain data."""
    import jax

    source = Path(__file__).parents[2]
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": cpu_cores(),
        "packages": versions,
        "backend": jax.default_backend(),
        "devices": [str(d) for d in jax.devices()],
        "device_kind": jax.devices()[0].device_kind,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "git": _git(source) if (source / ".git").exists() else None,
        "checkout": _git(Path.cwd()),
    }


@functools.cache
def made_with() -> dict[str, Any]:
    """What every result says of its making: versions, revisions and device."""
    found = describe()
    return {
        "flax-pos": found["packages"]["flax-pos"],
        "jax": found["packages"]["jax"],
        "device": found["device_kind"],
        "git": found["git"],
        "checkout": found["checkout"],
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git(root: Path) -> dict[str, Any] | None:
    """Revision of the checkout that a folder lies in, and whether files differ from it; None if
    it lies in none."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return {"sha": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
