"""Rotated queries and keys of 24 configurations against recorded values."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos.functional.rope import RopeSpec, rotate

GOLDEN = Path(__file__).parents[2] / "golden"
INDEX = json.loads((GOLDEN / "rope_apply_index.json").read_text())["cases"]
ARRAYS = np.load(GOLDEN / "rope_apply.npz")
TOLERANCE = dict.fromkeys(
    ("arange", "left_padded", "packed", "text_only", "image_video", "grid_3x5"), 3e-6
) | {"gaps": 5e-5, "grid_offset": 5e-5}


def inputs(case, pattern, name):
    """x as `B T N H` and positions with the axes first."""
    positions = ARRAYS[f"{case['id']}/{pattern}/position_ids"]
    if case["position_shape"].startswith("[N, 2]"):
        positions = positions.T[:, None]
    return np.moveaxis(ARRAYS[f"{case['id']}/{name}"], 1, 2), positions.astype(np.int32)


def test_all_cases_are_here():
    assert len(INDEX) == 24
    assert sum(len(c["patterns"]) for c in INDEX) == 110


@pytest.mark.parametrize("case", INDEX, ids=lambda c: c["id"])
def test_rotation(case):
    spec = RopeSpec.from_hf_config(case["config"], case["layer_type"])
    assert spec.rotary_dim_of() == case["rotary_dim"]
    if case["layout"] in ("half", "interleaved", "interleaved_in_half_out"):
        assert spec.layout == case["layout"]
    turn = jax.jit(rotate, static_argnames=("spec", "seq_len"))
    for pattern in case["patterns"]:
        for name in ("q", "k"):
            x, positions = inputs(case, pattern, name)
            # The reference takes the length from the largest position of the batch.
            length = int(positions.max()) + 1 if spec.depends_on_length else None
            got = np.moveaxis(np.asarray(turn(x, positions, spec=spec, seq_len=length)), 2, 1)
            assert got.dtype == np.float32
            key = f"{case['id']}/{pattern}/{name}"
            if pattern != "large":
                gap = np.abs(got - ARRAYS[f"{key}_float32"]).max()
                assert gap <= TOLERANCE[pattern], (pattern, name, gap)
            if f"{key}_float64" in ARRAYS:
                gap = np.abs(got - ARRAYS[f"{key}_float64"]).max()
                assert gap <= 1e-5, (pattern, name, gap)


@pytest.mark.parametrize("case", INDEX, ids=lambda c: c["id"])
def test_float64(case):
    spec = RopeSpec.from_hf_config(case["config"], case["layer_type"])
    with jax.enable_x64(True):
        for pattern in case["patterns"]:
            key = f"{case['id']}/{pattern}/q_float64"
            if key in ARRAYS:
                x, positions = inputs(case, pattern, "q")
                got = rotate(jnp.asarray(x, jnp.float64), jnp.asarray(positions), spec)
                assert got.dtype == jnp.float64
                np.testing.assert_allclose(np.moveaxis(got, 2, 1), ARRAYS[key], atol=1e-8, rtol=0)


def test_float32_phase_reproduces_the_reference_at_large_positions():
    """With the reference's rounding, its own float32 result at 100 000 to 2 000 000, where the
    exact one differs by more than 0.01. Theta 1e4: torch and NumPy round these powers alike."""
    case = next(c for c in INDEX if c["id"] == "llama-default")
    x, positions = inputs(case, "large", "q")
    exact = RopeSpec.from_hf_config(case["config"])
    rounded = RopeSpec.from_plain({**exact.to_plain(), "phase": "float32"})
    want = np.moveaxis(ARRAYS["llama-default/large/q_float32"], 1, 2)
    got = {s.phase: rotate(jnp.asarray(x), jnp.asarray(positions), s) for s in (exact, rounded)}
    gaps = {name: float(np.abs(g - want).max()) for name, g in got.items()}
    assert gaps["exact"] > 1e-2
    assert gaps["float32"] < 1e-5, gaps
