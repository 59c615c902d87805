import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal

from flax_pos import Dims, RopeSpec, from_dict, get_scheme
from flax_pos.attention import append, init_cache
from flax_pos.attention.place import (
    init_positions,
    order,
    place,
    rank_in_part,
    resolve,
)
from flax_pos.functional.rope import DynamicNTK
from flax_pos.scheme import plan_layers

DIMS = Dims(width=16, heads=4, kv_heads=2, head_dim=8, layers=4, max_len=8)


def by_layer(names, pattern):
    parts = [{"name": name} for name in names]
    return from_dict({"name": "by_layer", "parts": parts, "pattern": list(pattern)})


def test_order():
    index, segment = order((2, 3))
    assert index.tolist() == [[0, 1, 2]] * 2
    assert segment is None
    mask = jnp.array([[0, 1, 1], [1, 0, 1]], bool)
    assert order((2, 3), mask=mask)[0].tolist() == [[-1, 0, 1], [0, -1, 1]]
    start = jnp.array([4, 7])
    assert order((2, 3), start=start)[0].tolist() == [[4, 5, 6], [7, 8, 9]]
    assert order((2, 3), mask=mask, start=start)[0].tolist() == [[-1, 4, 5], [7, -1, 8]]
    segments = jnp.array([[1, 1, 2], [3, 0, 0]])
    index, segment = order((2, 3), segments=segments, mask=mask)
    assert index.tolist() == [[-1, 0, 0], [0, -1, -1]]
    assert segment.tolist() == [[0, 1, 2], [3, 0, 0]]


def test_parameters_are_stacked_over_the_layers_that_use_them():
    plan = plan_layers(by_layer(("fire", "none"), (0, 1, 0, 0)), 4)
    params = init_positions(plan, jax.random.key(0), DIMS)
    rows = {a.shape[0] for a in jax.tree.leaves(params["0"]["layers"])}
    assert rows == {3}
    assert jax.tree.leaves(params["1"]) == []
    assert [rank_in_part(plan, layer) for layer in range(4)] == [0, 0, 1, 2]


def test_parts_start_differently():
    plan = plan_layers(by_layer(("t5", "learned"), (0, 1)), 4)
    a = init_positions(plan, jax.random.key(0), DIMS)
    b = init_positions(plan, jax.random.key(1), DIMS)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert not np.array_equal(x, y)


def test_each_layer_reads_its_own_row():
    scheme = by_layer(("fire", "none"), (0, 1))
    plan = plan_layers(scheme, 4)
    params = init_positions(plan, jax.random.key(0), DIMS)
    _, placement = place(plan, params, DIMS, jnp.zeros((1, 3, 16)))
    own = placement.layer(2).params
    for name, value in own.items():
        np.testing.assert_array_equal(value, params["0"]["layers"][name][1])
    assert placement.layer(1).params == {}
    assert placement.layer(3).scheme == get_scheme("none")()


def test_padding_is_put_where_every_scheme_is_defined():
    plan = plan_layers(get_scheme("learned")(), 4)
    params = init_positions(plan, jax.random.key(0), DIMS)
    x, placement = place(
        plan,
        params,
        DIMS,
        jnp.zeros((1, 3, 16)),
        mask=jnp.array([[False, True, True]]),
        positions=jnp.array([[-5, 3, 4]]),
    )
    assert placement.at[0].pos.tolist() == [[0, 3, 4]]
    assert placement.at[0].index.tolist() == [[-1, 0, 1]]
    assert np.isfinite(x).all()


def test_features_are_made_once_for_all_layers():
    plan = plan_layers(by_layer(("rope", "none"), (0, 1)), 4)
    _, placement = place(
        plan, init_positions(plan, jax.random.key(0), DIMS), DIMS, jnp.zeros((1, 3, 16))
    )
    assert len(placement.features) == 2
    assert placement.layer(0).features is placement.layer(2).features
    assert placement.layer(1).features == {}


def test_only_rows_without_holes_are_called_contiguous():
    plan = plan_layers(get_scheme("none")(), 4)
    params, x = init_positions(plan, jax.random.key(0), DIMS), jnp.zeros((1, 3, 16))
    assert place(plan, params, DIMS, x)[1].contiguous
    assert place(plan, params, DIMS, x, positions=jnp.array([[0, 4, 2]]))[1].contiguous
    assert not place(plan, params, DIMS, x, mask=jnp.ones((1, 3), bool))[1].contiguous
    assert not place(plan, params, DIMS, x, segments=jnp.ones((1, 3), int))[1].contiguous
    # One query of a cached row is not the first of its keys.
    caches = [init_cache(get_scheme("none")(), DIMS, 1, 4)]
    assert not place(plan, params, DIMS, x[:, :1], caches=caches)[1].contiguous


def test_resolve():
    t5, none = get_scheme("t5")(), get_scheme("none")()
    params = init_positions(plan_layers(t5, 4), jax.random.key(0), DIMS)
    assert resolve(t5, params, DIMS)[1] is params
    _, same = resolve(t5, params, DIMS, get_scheme("t5")())
    jax.tree.map(np.testing.assert_array_equal, same, params)
    assert jax.tree.leaves(resolve(t5, params, DIMS, none)[1]) == []
    plan, some = resolve(t5, params, DIMS, by_layer(("none", "t5"), (0, 1)))
    assert plan.part_of == (0, 1, 0, 1)
    jax.tree.map(np.testing.assert_array_equal, some["1"]["model"], params["0"]["model"])
    with pytest.raises(ValueError, match="'fire' needs the parameters"):
        resolve(t5, params, DIMS, get_scheme("fire")())


DIGITS = list(range(10))
STRUCTURED = [
    ({"name": "abacus", "digits": DIGITS}, 3),
    ({"name": "bipe", "separators": [4, 9]}, 7),
    ({"name": "position_coupling", "digits": DIGITS, "equals": 11}, 9),
]
"""Each with a place where a text may be cut, in the middle of a number or of a sentence."""
HOLES = {"left": (3, 0, 2), "right": (0, 0, 5), "between": (0, 4, 0), "all over": (1, 2, 3)}
"""Padding before a call's tokens, after its second one and after the last."""


@pytest.mark.parametrize("holes", HOLES.values(), ids=HOLES)
@pytest.mark.parametrize(("settings", "cut"), STRUCTURED, ids=lambda s: str(s)[:20])
def test_structure_goes_on_across_padding(settings, cut, holes):
    """A text in two calls with padding anywhere is placed as in one call without."""
    scheme = from_dict(settings)
    plan, dims = plan_layers(scheme, 1), DIMS._replace(layers=1)
    params = init_positions(plan, jax.random.key(0), dims)
    text = [12, 6, 5, 3, 10, 4, 9, 11, 2, 0, 7, 12]  # 653 + 49 = 207
    put = lambda ids, **given: place(
        plan, params, dims, jnp.zeros((1, len(ids), 16)), ids=jnp.array([ids]), **given
    )[1].at[0]
    whole = put(text).pos[0]
    cache, got = init_cache(scheme, dims, 1, 16), []
    for part in (text[:cut], text[cut:]):
        pieces = [(1, holes[0]), (0, part[:2]), (1, holes[1]), (0, part[2:]), (1, holes[2])]
        ids = [i for pad, run in pieces for i in ([4] * run if pad else run)]
        real = [not pad for pad, run in pieces for _ in range(run if pad else len(run))]
        at = put(ids, mask=jnp.array([real]), caches=[cache])
        k = jnp.zeros((1, len(ids), 2, 8))
        cache = append(cache, k, k, at)
        got += at.pos[0][np.array(real)].tolist()
    assert got == whole.tolist()
    packed = put(text * 2, segments=jnp.array([[1] * 12 + [2] * 12])).pos[0]
    assert packed.tolist() == whole.tolist() * 2


@pytest.mark.parametrize("pieces", [(1,) * 8, (3, 1, 3, 1)], ids=str)
def test_a_ring_of_keys_that_move_with_the_length(pieces):
    spec = RopeSpec(scaling=DynamicNTK(factor=2.0, original_max_position_embeddings=4))
    scheme, size = get_scheme("rope")(spec=spec), 4
    plan, dims = plan_layers(scheme, 1), DIMS._replace(layers=1)
    x = normal((2, 8, 16))
    heads = lambda x, n: x.reshape(*x.shape[:2], n, 8)
    qkv = lambda x: (heads(jnp.tile(x, 2), 4), heads(x, 2), heads(-x, 2))
    cache, start = init_cache(scheme, dims, 2, size), 0
    for count in pieces:
        stop = start + count
        _, here = place(plan, {"0": {"model": {}, "layers": {}}}, dims, x[:, start:stop],
                        caches=[cache], on_full="roll")  # fmt: skip
        piece = x[:, start:stop]
        got, cache = here.layer(0).attend(piece, *qkv(piece), cache)
        _, whole = place(plan, {"0": {"model": {}, "layers": {}}}, dims, x[:, :stop], length=stop)
        want, _ = whole.layer(0).attend(x[:, :stop], *qkv(x[:, :stop]), window=size)
        np.testing.assert_allclose(got, want[:, start:], atol=2e-5)
        start = stop


def test_causal_is_not_optional_with_a_cache():
    plan = plan_layers(get_scheme("none")(), 4)
    _, placement = place(
        plan, init_positions(plan, jax.random.key(0), DIMS), DIMS, jnp.zeros((1, 3, 16))
    )
    x = jnp.zeros((1, 3, 2, 8))
    with pytest.raises(ValueError, match="causal=False has no meaning with a cache"):
        placement.layer(0).attend(x, x, x, x, cache=object(), causal=False)
