"""RoPE at distances other than the true ones, against loops in float64."""

import jax.numpy as jnp
import numpy as np
import pytest
from harness import T, case, close, rope_dots, softmax_rows, weights

from flax_pos.schemes.dual_chunk import DualChunk
from flax_pos.schemes.leaky_rerope import LeakyReRope
from flax_pos.schemes.rerope import ReRope
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.self_extend import SelfExtend
from flax_pos.schemes.string import ShiftedRope


def dual_chunk(i, j, span=7, local=2):
    size = span - local
    if i // size == j // size:
        return i % size - j % size
    if i // size == j // size + 1:
        return min(i % size + size, span) - j % size
    return span - j % size


CASES = {
    "rerope": (ReRope(near=4), lambda i, j: min(i - j, 4)),
    "leaky": (
        LeakyReRope(near=4, slowdown=3),
        lambda i, j: i - j if i - j < 4 else 4 + (i - j - 4) / 3,
    ),
    "self_extend": (
        SelfExtend(near=4, group=3),
        lambda i, j: i - j if i - j < 4 else i // 3 - j // 3 + 4 - 4 // 3,
    ),
    "string": (
        ShiftedRope(shift=6, near=2),
        lambda i, j: i - j if i - j < 6 else i - j - 6 + 2,
    ),
    "dual_chunk": (DualChunk(span=7, local=2), dual_chunk),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("start", [0, 1 << 20])
def test_distances_are_read_as_the_paper_says(name, start):
    scheme, distance = CASES[name]
    c = case(scheme, pos=np.arange(T) + start)
    _, _, q, k = c.numpy()
    expected = softmax_rows(rope_dots(q, k, lambda i, j: distance(i + start, j + start)))
    close(weights(scheme, c), expected, 5e-6)
    blocks = weights(scheme, c, implementation="blockwise", block_q=4, block_k=5)
    close(blocks, expected, 5e-6)


@pytest.mark.parametrize(
    "scheme", [ReRope(), LeakyReRope(), SelfExtend(), ShiftedRope(), DualChunk()]
)
def test_short_texts_are_read_as_with_rope(scheme):
    c = case(scheme)
    close(weights(scheme, c), weights(Rope(), c))


@pytest.mark.parametrize("name", CASES)
def test_no_distance_exceeds_what_training_has_seen(name):
    """The largest distance that is read stays far below the true one."""
    _, distance = CASES[name]
    largest = max(distance(i, j) for i in range(200) for j in range(i + 1))
    assert largest <= {"rerope": 4, "dual_chunk": 7, "string": 195}.get(name, 70)


def test_keys_are_cached_as_they_come():
    scheme = ReRope(near=4)
    c = case(scheme)
    assert scheme.uses == {"scores"}
    assert scheme.rotate({}, c.k, None, "k") is c.k


def test_layouts_give_the_same_scores_for_permuted_channels():
    c = case(ReRope(near=4))
    order = jnp.array([0, 4, 1, 5, 2, 6, 3, 7])  # half to interleaved
    woven = c._replace(q=c.q[..., order], k=c.k[..., order])
    close(weights(ReRope(near=4, layout="interleaved"), woven), weights(ReRope(near=4), c))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReRope(near=0), "near must be at least 1, got 0"),
        (lambda: LeakyReRope(slowdown=0), "slowdown must be at least 1, got 0"),
        (lambda: SelfExtend(group=1.5), "group must be a whole number, got 1.5"),
        (lambda: ShiftedRope(shift=4, near=5), "near must be at most shift=4, got 5"),
        (lambda: DualChunk(span=5, local=5), "local must be below span=5, got 5"),
    ],
)
def test_settings_that_make_no_sense_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
