"""Which axis and which frequency each pair has, in every arrangement, and the position builders."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from draws import integers, normal
from rope_oracles import exact_angles, rotated

from flax_pos.functional.rope import (
    Axes,
    Grid,
    RopeSpec,
    apply_rope,
    grid_positions,
    grid_segments,
    mrope_positions,
    rotate,
)

T, H, W = 0, 1, 2


def test_qwen2_vl_sections():
    axis = Axes(sections=(16, 24, 24)).axis_of_pair()
    assert axis.tolist() == [T] * 16 + [H] * 24 + [W] * 24


def test_qwen3_vl_sections():
    axis = Axes(sections=(24, 20, 20), arrangement="interleaved").axis_of_pair()
    assert [i for i in range(64) if axis[i] == T] == [*range(0, 60, 3), 60, 61, 62, 63]
    assert [i for i in range(64) if axis[i] == H] == list(range(1, 60, 3))
    assert [i for i in range(64) if axis[i] == W] == list(range(2, 60, 3))
    small = Axes(sections=(11, 11, 10), arrangement="interleaved").axis_of_pair()
    assert small.tolist() == [T, H, W] * 10 + [T, H]


def test_ernie_sections():
    axis = Axes(sections=(22, 22, 20), arrangement="alternating", order=(1, 2, 0)).axis_of_pair()
    assert axis.tolist() == [H, W] * 22 + [T] * 20


def test_four_axes():
    assert Axes(sections=(1, 2, 3, 2)).axis_of_pair().tolist() == [0, 1, 1, 2, 2, 2, 3, 3]


def angles_by_hand(case, positions, theta, dim):
    """Angles of pairs written out for one arrangement: (axis, exponent) for each pair."""
    exponents, axes = zip(*case, strict=True)
    w = [theta ** (-e) for e in exponents]
    return np.stack(
        [exact_angles(positions[a], [v])[..., 0] for v, a in zip(w, axes, strict=True)], -1
    )


# Exponents of the ladder of width 8: 0, 1/4, 1/2, 3/4; of width 4: 0, 1/2.
@pytest.mark.parametrize(
    ("axes", "pairs"),
    [
        (Axes(sections=(2, 2), ladder="own"), [(0, 0), (1 / 2, 0), (0, 1), (1 / 2, 1)]),
        (Axes(sections=(2, 2), ladder="strided"), [(0, 0), (1 / 2, 0), (1 / 4, 1), (3 / 4, 1)]),
        (
            Axes(sections=(2, 2), ladder="own", arrangement="alternating", order=(1, 0)),
            [(0, 1), (0, 0), (1 / 2, 1), (1 / 2, 0)],
        ),
        (
            Axes(sections=(2, 2), ladder="own", order=(1, 0)),
            [(0, 1), (1 / 2, 1), (0, 0), (1 / 2, 0)],
        ),
        (Axes(sections=(2, 1, 1)), [(0, 0), (1 / 4, 0), (1 / 2, 1), (3 / 4, 2)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_against_float64(axes, pairs, layout):
    x = normal((2, 3, 2, 8))
    positions = integers((axes.count, 2, 3), 2**20, 1)
    spec = RopeSpec(axes=axes, theta=100.0, layout=layout)
    angles = angles_by_hand(pairs, np.asarray(positions), 100.0, 8)
    np.testing.assert_allclose(rotate(x, positions, spec), rotated(x, angles, layout), atol=2e-6)


def test_blocks_turn_each_axis_within_its_channels():
    """Gemma 4's tower: the first half of the head by rows, the second by columns."""
    x = normal((1, 3, 2, 16))
    rows, columns = jnp.array([[0, 1, 2]]), jnp.array([[5, 0, 7]])
    spec = RopeSpec(axes=Axes(sections=(4, 4), ladder="own", blocks=True), theta=100.0)
    got = rotate(x, jnp.stack([rows, columns]), spec)
    np.testing.assert_allclose(got[..., :8], apply_rope(x[..., :8], rows, 100.0), atol=1e-6)
    np.testing.assert_allclose(got[..., 8:], apply_rope(x[..., 8:], columns, 100.0), atol=1e-6)


def test_three_axes_leave_the_rest_of_the_head_alone():
    config = {"model_type": "minimax_m3_vl_vision", "hidden_size": 80, "num_attention_heads": 1}
    spec = RopeSpec.from_hf_config(config)
    assert spec.rotary_dim_of() == 78
    x = jnp.ones((1, 2, 1, 80))
    got = rotate(x, jnp.full((3, 1, 2), 3), spec)
    assert (got[..., 78:] == 1).all()
    assert (got[..., :78] != 1).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sections": ()}, "sections must be a list"),
        ({"sections": (2, -1)}, r"sections\[1\] must be a whole number"),
        ({"sections": 4}, "sections must be a list"),
        ({"sections": (2, 2), "arrangement": "zigzag"}, "arrangement must be one of"),
        ({"sections": (2, 2), "ladder": "rope"}, "ladder must be one of"),
        ({"sections": (2, 2), "order": (0, 0)}, "order must name each axis"),
        ({"sections": (2, 3), "arrangement": "alternating"}, "two first sections of one size"),
        ({"sections": (1, 3), "blocks": True}, "blocks needs"),
        ({"sections": (1, 3), "arrangement": "interleaved"}, "cannot be interleaved"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Axes(**settings)


# Positions ----------------------------------------------------------------------------------------

GOLDEN = Path(__file__).parents[2] / "golden"


def test_recorded_positions_of_text_and_images():
    recorded = np.load(GOLDEN / "rope_apply.npz")["qwen2-vl-mrope/image_video/position_ids"]
    assert json.loads((GOLDEN / "rope_apply_index.json").read_text())
    # Row 0: two tokens, an image of 2 x 2 tokens, one token.
    first, delta = mrope_positions([2, Grid(1, 4, 4), 1])
    np.testing.assert_array_equal(first, recorded[:, 0])
    assert delta == 5 - 7
    # Row 1 starts later: one token, a video of 2 frames of 1 x 2 tokens, two tokens.
    second, _ = mrope_positions([1, Grid(2, 2, 4), 2], start=3)
    np.testing.assert_array_equal(second, recorded[:, 1])


def test_decoding_continues_where_the_prompt_ends():
    """The delta gives the position of the next token as if the row had one text token more."""
    segments = [3, Grid(1, 6, 4), 5]
    positions, delta = mrope_positions(segments)
    longer, _ = mrope_positions([*segments[:-1], segments[-1] + 1])
    np.testing.assert_array_equal(longer[:, -1], positions.shape[1] + delta)
    assert mrope_positions([4])[1] == 0


def test_time_moves_by_the_interval():
    positions, _ = mrope_positions([Grid(3, 2, 2, 2.5)])
    assert positions[0].tolist() == [0, 2, 5]
    assert positions[1:].tolist() == [[0, 0, 0], [0, 0, 0]]


def test_segments_from_placeholders():
    ids = [7, 7, 1, 1, 1, 1, 7, 2, 2, 2, 2, 7]
    got = grid_segments(
        ids, image_token_id=1, video_token_id=2, images=[(1, 4, 4)], videos=[(2, 2, 4, 2.0)]
    )
    assert got == [2, Grid(1, 4, 4), 1, Grid(2, 2, 4, 2.0), 1]
    adjacent = grid_segments([1, 1, 1, 1], image_token_id=1, images=[(1, 2, 4), (1, 4, 2)])
    assert adjacent == [Grid(1, 2, 4), Grid(1, 4, 2)]


def test_positions_of_patches():
    np.testing.assert_array_equal(grid_positions(3, 2), [[0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]])
    assert grid_positions(2, 2, frames=3).shape == (2, 12)
    # Every block of four neighbours is one merged token.
    blocks = grid_positions(4, 6, merge_size=2).reshape(2, 6, 4)
    assert (np.ptp(blocks, axis=2) == 1).all()
    assert {tuple(p) for p in grid_positions(4, 6, merge_size=2).T} == {
        (r, c) for r in range(4) for c in range(6)
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mrope_positions([Grid(1, 3, 4)]), "merge_size 2 does not divide the grid 3 x 4"),
        (lambda: mrope_positions([Grid(0, 2, 2)]), "time must be a whole number"),
        (lambda: mrope_positions([-1]), "must not be below 0"),
        (lambda: grid_positions(3, 4, merge_size=2), "merge_size 2 does not divide"),
        (
            lambda: grid_segments([1], image_token_id=1),
            "token 0 is a placeholder .* without a grid",
        ),
        (
            lambda: grid_segments([1, 7], image_token_id=1, images=[(1, 4, 4)]),
            "needs 4 placeholders from token 0 on",
        ),
        (
            lambda: grid_segments([7], image_token_id=1, images=[(1, 4, 4)]),
            "1 grids have no placeholders",
        ),
    ],
)
def test_bad_grids(call, message):
    with pytest.raises(ValueError, match=message):
        call()
