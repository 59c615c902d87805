"""Tiny random models and what the reference makes of them."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

DIRECTORY = Path(__file__).parents[1] / "golden" / "models"
NAMES = sorted(path.name for path in DIRECTORY.iterdir() if path.is_dir())


def io(name: str, directory: Path = DIRECTORY) -> dict[str, np.ndarray]:
    with np.load(directory / name / "io.npz") as file:
        return {key: file[key] for key in file.files}


def mask_of(arrays) -> jnp.ndarray:
    return jnp.asarray(arrays["attention_mask"].astype(bool))
