"""Weights moved between layouts keep every score."""

import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal

from flax_pos.functional.rope import apply_rope, permute_layout


def test_bias_of_grouped_query_heads():
    k = permute_layout(np.arange(8), heads=2, source="interleaved", target="half")
    assert k.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    q = permute_layout(np.arange(16), heads=4, source="interleaved", target="half")
    assert q.tolist() == [4 * h + i for h in range(4) for i in (0, 2, 1, 3)]


def test_partial_and_trailing_channels():
    move = lambda **kw: permute_layout(
        np.arange(8), heads=1, source="interleaved", target="half", rotary_dim=4, **kw
    ).tolist()
    assert move() == [0, 2, 1, 3, 4, 5, 6, 7]
    assert move(trailing=True) == [0, 1, 2, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("source", ["half", "interleaved", "interleaved_in_half_out"])
@pytest.mark.parametrize("target", ["half", "interleaved", "interleaved_in_half_out"])
def test_there_and_back(source, target):
    w = np.random.default_rng(0).normal(size=(24, 5))
    there = permute_layout(w, heads=3, source=source, target=target, rotary_dim=6)
    back = permute_layout(there, heads=3, source=target, target=source, rotary_dim=6)
    np.testing.assert_array_equal(back, w)


@pytest.mark.parametrize("source", ["half", "interleaved", "interleaved_in_half_out"])
@pytest.mark.parametrize("target", ["half", "interleaved", "interleaved_in_half_out"])
@pytest.mark.parametrize("rotary_dim", [8, 4])
def test_scores_are_kept(source, target, rotary_dim):
    """Projections with biases, 4 query heads on 2 key heads, with a partial rotary width."""
    x = normal((1, 6, 12))
    positions = jnp.array([[0, 1, 5, 77, 900, 2**20]])
    sizes = {"q": 4, "k": 2}
    params = {name: (normal((n * 8, 12), n), normal((n * 8,), n + 1)) for name, n in sizes.items()}

    def scores(params, layout):
        q, k = (
            apply_rope(
                (x @ params[name][0].T + params[name][1][None, None]).reshape(1, 6, n, 8),
                positions, layout=layout, rotary_dim=rotary_dim,
            )
            for name, n in sizes.items()
        )  # fmt: skip
        return jnp.einsum("btnh,bsnh->bnts", q, jnp.repeat(k, 2, 2), precision="highest")

    moved = {
        name: tuple(
            permute_layout(
                w, heads=sizes[name], source=source, target=target, rotary_dim=rotary_dim
            )
            for w in params[name]
        )
        for name in sizes
    }
    np.testing.assert_allclose(scores(moved, target), scores(params, source), atol=5e-4)


def test_any_axis():
    w = np.random.default_rng(0).normal(size=(5, 2, 4))  # a Flax kernel, D x heads x H
    by_axis = permute_layout(w, heads=1, source="interleaved", target="half", axis=-1)
    flat = permute_layout(w.reshape(5, 8), heads=2, source="interleaved", target="half", axis=1)
    np.testing.assert_array_equal(by_axis.reshape(5, 8), flat)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "axis 0 of length 8 does not hold 3 heads"),
        ({"rotary_dim": 3}, "rotary_dim must be even and between 2 and the head width 4, got 3"),
        ({"rotary_dim": 6}, "the head width 4, got 6"),
        ({"source": "neox"}, "layout must be one of"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        permute_layout(
            np.arange(8), **{"heads": 2, "source": "half", "target": "interleaved", **settings}
        )
