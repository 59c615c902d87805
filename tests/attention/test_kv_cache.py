"""The cache: where tokens go, what comes back, and decoding that equals one forward."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal

from flax_pos import Coords, Dims, Scheme, get_scheme
from flax_pos.attention import (
    append,
    attend,
    attend_cached,
    extend,
    init_cache,
    last,
    place_keys,
    prepare,
    ring_window,
)

DIMS = Dims(width=12, heads=4, kv_heads=2, head_dim=8, layers=1, max_len=64)
LENGTH = 12
NONE = get_scheme("none")()


def tokens(index, segment=None):
    """k and v that say which token they are of, and coords."""
    index = jnp.asarray(index, jnp.int32)
    k = jnp.broadcast_to(index[..., None, None].astype(jnp.float32), (*index.shape, 2, 8))
    return k, k + 0.5, Coords(index, index, {}, segment)


def stored(cache):
    return np.asarray(cache.at.index).tolist()


def test_rows_of_their_own_length_without_padding():
    cache = init_cache(NONE, DIMS, 2, 6)
    assert cache.k.shape == cache.v.shape == (2, 6, 2, 8)
    assert stored(cache) == [[-1] * 6] * 2
    cache = append(cache, *tokens([[-1, -1, 0], [0, 1, 2]]))
    assert stored(cache) == [[0, -1, -1, -1, -1, -1], [0, 1, 2, -1, -1, -1]]
    cache = append(cache, *tokens([[1, -1], [3, 4]]))
    assert stored(cache) == [[0, 1, -1, -1, -1, -1], [0, 1, 2, 3, 4, -1]]
    assert cache.length.tolist() == [2, 5]
    assert last(cache).index.tolist() == [[1], [4]]
    full = np.asarray(cache.at.index) >= 0
    index = np.asarray(cache.at.index)[full]
    np.testing.assert_array_equal(np.asarray(cache.k)[full][:, 0, 0], index)
    np.testing.assert_array_equal(np.asarray(cache.v)[full][:, 0, 0], index + 0.5)


def test_last_of_an_empty_row_is_no_token():
    fox = get_scheme("fox")()
    cache = init_cache(fox, DIMS, 2, 4)
    before = last(cache)
    assert before.index.tolist() == [[-1], [-1]]
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(before.feats))
    k, v, at = tokens([[-1], [0]])
    feats = jax.tree.map(lambda a: jnp.ones((2, 1, *a.shape[2:]), a.dtype), cache.at.feats)
    after = last(append(cache, k, v, at._replace(feats=feats)))
    assert after.index.tolist() == [[-1], [0]]
    for leaf in jax.tree.leaves(after.feats):
        assert (leaf[0] == 0).all()
        assert (leaf[1] == 1).all()


def test_a_full_cache_raises():
    cache = append(init_cache(NONE, DIMS, 2, 3), *tokens([[-1, 0], [0, 1]]))
    message = "3 slots; row 1 holds 2 tokens and 2 more came.*on_full='roll'"
    with pytest.raises(ValueError, match=message):
        append(cache, *tokens([[1, 2], [2, 3]]))


def test_a_full_row_is_poisoned_where_nothing_can_raise():
    cache = append(init_cache(NONE, DIMS, 2, 3), *tokens([[-1, 0], [0, 1]]))
    step = jax.jit(append)
    cache = step(cache, *tokens([[1, 2], [2, 3]]))
    one = jax.jit(
        lambda cache, at: attend(NONE, {}, jnp.ones((2, 1, 4, 8)), *cache[:2], at, cache.at)
    )
    q_at = tokens([[2], [3]])[2]
    out = one(cache, q_at)
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).all()
    cache = step(cache, *tokens([[-1], [4]]))
    assert np.isnan(one(cache, tokens([[2], [4]])[2])[1]).all()
    assert np.isfinite(one(cache, q_at)[0]).all()


@pytest.mark.parametrize("on_full", ["error", "roll"])
@pytest.mark.parametrize("again", [[0, 1], [1, 2], [2, 2], [3, 2], [-1, 1]], ids=str)
def test_a_call_that_does_not_go_on_is_found_out(again, on_full):
    """As when every call starts at position 0, which decodes fluent nonsense."""
    cache = append(init_cache(NONE, DIMS, 2, 8), *tokens([[-1, -1], [0, 1]]))
    new = tokens([[-1, 0], again])
    with pytest.raises(
        ValueError, match=r"index of row 1 comes to \d after \d: tokens go on where"
    ):
        append(cache, *new, on_full=on_full)
    after = jax.jit(lambda *args: append(*args, on_full=on_full))(cache, *new)
    out = attend(NONE, {}, jnp.ones((2, 2, 4, 8)), after.k, after.v, new[2], after.at)
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1, -1]).all()


def test_documents_in_a_cache_start_again():
    segment = lambda *rows: jnp.array([rows], jnp.int32)
    cache = init_cache(NONE, DIMS, 1, 8, segments=True)
    cache = append(cache, *tokens([[0, 1]], segment(1, 1)))
    assert stored(append(cache, *tokens([[2, 0]], segment(1, 2))))[0][:4] == [0, 1, 2, 0]


def test_what_all_rows_carry_in_common_is_cached_for_each():
    """A leaf of coords may have 1 for the batch, as all that `attend` takes may."""

    class Common(Scheme):
        def coords(self, params, x, at, prev):
            return at._replace(feats={**at.feats, "own": at.index[:1, :, None].astype(x.dtype)})

    scheme, index = Common(), jnp.tile(jnp.arange(6), (2, 1))
    for on_full in ("error", "roll"):
        cache, x = init_cache(scheme, DIMS, 2, 6), jnp.ones((2, 6, 12))
        q, k = jnp.ones((2, 6, 4, 8)), jnp.ones((2, 6, 2, 8))
        for cut in (slice(0, 2), slice(2, 6)):
            at = Coords(index[:, cut], index[:, cut])
            _, cache = attend_cached(scheme, {}, x[:, cut], q[:, cut], k[:, cut], k[:, cut],
                                     at, {}, cache, on_full=on_full)  # fmt: skip
        np.testing.assert_array_equal(cache.at.feats["own"][..., 0], index)


def test_a_ring_keeps_the_newest():
    cache = init_cache(NONE, DIMS, 2, 4)
    for piece in ([[0, 1, 2], [-1, 0, 1]], [[3, 4], [2, 3]], [[5], [-1]]):
        cache = append(cache, *tokens(piece), on_full="roll")
    assert stored(cache) == [[4, 5, 2, 3], [0, 1, 2, 3]]
    assert cache.length.tolist() == [6, 4]
    assert last(cache).index.tolist() == [[5], [3]]
    more = append(cache, *tokens([list(range(6, 17)), [-1] * 10 + [4]]), on_full="roll")
    assert stored(more) == [[16, 13, 14, 15], [4, 1, 2, 3]]


def test_rings_say_how_far_they_see():
    cache = init_cache(NONE, DIMS, 1, 4)
    assert ring_window(cache, None) == 4
    assert ring_window(cache, 3) == 3
    with pytest.raises(ValueError, match="ring of 4 slots cannot serve window=5"):
        ring_window(cache, 5)


def test_what_new_tokens_attend_to():
    cache = append(init_cache(NONE, DIMS, 1, 4), *tokens([[0, 1, 2]]))
    after, k, v, at = extend(cache, *tokens([[3]]), on_full="roll", window=4)
    assert at.index.tolist() == [[0, 1, 2, 3]]
    np.testing.assert_array_equal(k, after.k)
    # Two tokens push out token 0, which the first of them still sees in a window of 4.
    after, k, v, at = extend(cache, *tokens([[3, 4]]), on_full="roll", window=4)
    assert at.index.tolist() == [[0, 1, 2, -1, 3, 4]]
    assert k.shape[1] == v.shape[1] == 6
    assert stored(after) == [[4, 1, 2, 3]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k, v, at: (k.astype(jnp.bfloat16), v, at), "k is bfloat16, but the cache holds fl"),
        (lambda k, v, at: (k, v.astype(jnp.float16), at), "v is float16"),
        (lambda k, v, at: (k, v, at._replace(pos=at.pos.astype(jnp.float32))), "at.pos is float32"),
        (lambda k, v, at: (k, v, at._replace(feats={"a": at.pos})), r"features \['a'\]"),
        (lambda k, v, at: (k, v, at._replace(segment=at.index)), "segments=True"),
    ],
)
def test_tokens_that_do_not_fit(change, message):
    cache = init_cache(NONE, DIMS, 1, 4)
    with pytest.raises(TypeError, match=message):
        append(cache, *change(*tokens([[0]])))


def test_wrong_arguments():
    with pytest.raises(ValueError, match="size must be at least 1 slot, got 0"):
        init_cache(NONE, DIMS, 1, 0)
    cache = init_cache(NONE, DIMS, 1, 4, segments=True)
    with pytest.raises(TypeError, match="the new tokens have none"):
        append(cache, *tokens([[0]]))
    with pytest.raises(ValueError, match="on_full must be 'error' or 'roll', got 'grow'"):
        append(init_cache(NONE, DIMS, 1, 4), *tokens([[0]]), on_full="grow")


def test_segments_and_value_widths_have_their_place():
    cache = init_cache(NONE, DIMS, (2, 1), 4, segments=True, value_dim=5, dtype=jnp.bfloat16)
    assert cache.v.shape == (2, 1, 4, 2, 5)
    assert cache.k.dtype == jnp.bfloat16
    assert cache.at.segment.shape == (2, 1, 4)


def test_shapes_are_static_under_scan_and_stacks():
    """A scan over tokens, each with a scan over stacked layers."""
    one = init_cache(NONE, DIMS, 2, 8)
    stacked = jax.tree.map(lambda a: jnp.stack([a, a, a]), one)

    def token(caches, index):
        k, v, at = tokens(jnp.full((2, 1), index))
        step = lambda none, cache: (none, append(cache, k, v, at))
        return jax.lax.scan(step, None, caches)[1], None

    caches, _ = jax.jit(lambda c: jax.lax.scan(token, c, jnp.arange(5, dtype=jnp.int32)))(stacked)
    assert stored(caches) == [[[0, 1, 2, 3, 4, -1, -1, -1]] * 2] * 3


# Decoding ----------------------------------------------------------------------------------------


def scheme_of(name):
    cls = get_scheme(name)
    return cls(**cls.toy)


def activations(batch=2, length=LENGTH):
    shapes = (12,), (4, 8), (2, 8), (2, 8)
    return [normal((batch, length, *shape), seed) for seed, shape in enumerate(shapes)]


def whole(scheme, params, xs, index, length=LENGTH, **options):
    x, q, k, v = xs
    pos = scheme.positions(jnp.maximum(index, 0), length=length)
    features = scheme.features(pos, DIMS._replace(length=length))
    q, k, at = prepare(scheme, params, x, q, k, Coords(index, pos), features)
    return attend(scheme, params, q, k, v, at, at, **options)


def in_pieces(scheme, params, xs, index, pieces, size, **options):
    cache, start, outputs = init_cache(scheme, DIMS, index.shape[0], size), 0, []

    @jax.jit
    def step(cache, xs, index, length):
        dims = DIMS._replace(length=length)
        pos = scheme.positions(jnp.maximum(index, 0), length=length)
        at = Coords(index, pos)
        key_place = None
        if scheme.depends_on_length:
            how = {name: options[name] for name in ("on_full", "window") if name in options}
            key_place = place_keys(scheme, cache, at, dims, **how)
        tokens = (*xs, at, scheme.features(pos, dims))
        return attend_cached(scheme, params, *tokens, cache, key_place=key_place, **options)

    for count in pieces:
        stop = start + count
        cut = jax.tree.map(lambda a, s=slice(start, stop): a[:, s], (xs, index))
        out, cache = step(cache, *cut, jnp.int32(stop))
        outputs.append(out)
        start = stop
    return jnp.concatenate(outputs, 1), cache


INDEX = jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32), (2, LENGTH))


def params_of(scheme):
    return scheme.layer_params(scheme.init(jax.random.key(1), DIMS), 0)


@pytest.mark.parametrize("pieces", [(12,), (4, 4, 4), (11, 1), (5, 4, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "fox"])
def test_pieces_change_nothing(name, pieces):
    scheme = scheme_of(name)
    params, xs = params_of(scheme), activations()
    got, _ = in_pieces(scheme, params, xs, INDEX, pieces, LENGTH + 3)
    np.testing.assert_allclose(got, whole(scheme, params, xs, INDEX), atol=2e-5)


@pytest.mark.parametrize("pieces", [(12,), (5, 4, 3), (1,) * 12, (3,) + (1,) * 9], ids=str)
@pytest.mark.parametrize("size", [4, 6, 20])
@pytest.mark.parametrize("name", ["fox", "stick_breaking", "cope"])
def test_a_ring_is_a_sliding_window(name, size, pieces):
    scheme = scheme_of(name)
    params, xs = params_of(scheme), activations()
    index = INDEX.at[0].add(-3).clip(-1)
    wanted = whole(scheme, params, xs, index, window=4)
    got, _ = in_pieces(scheme, params, xs, index, pieces, size, on_full="roll", window=4)
    real = np.asarray(index >= 0)
    np.testing.assert_allclose(np.asarray(got)[real], np.asarray(wanted)[real], atol=2e-5)


@pytest.mark.parametrize("pieces", [(12,), (7, 5), (1,) * 12], ids=str)
def test_a_ring_without_a_window_sees_as_far_as_its_size(pieces):
    scheme, xs = scheme_of("rope"), activations()
    wanted = whole(scheme, {}, xs, INDEX, window=5)
    got, _ = in_pieces(scheme, {}, xs, INDEX, pieces, 5, on_full="roll")
    np.testing.assert_allclose(got, wanted, atol=2e-5)


def test_a_ring_counts_positions_not_rows_kept():
    scheme, xs = scheme_of("rope"), activations()
    _, cache = in_pieces(scheme, {}, xs, INDEX, (12,), 5, on_full="roll")
    assert sorted(np.asarray(cache.at.pos)[0].tolist()) == [7, 8, 9, 10, 11]
    assert cache.length.tolist() == [12, 12]


@pytest.mark.parametrize("name", ["rope", "fox"])
def test_entries_are_written_once(name):
    scheme = scheme_of(name)
    params, xs = params_of(scheme), activations()
    _, early = in_pieces(scheme, params, xs, INDEX, (4,), LENGTH)
    _, late = in_pieces(scheme, params, xs, INDEX, (4, 1, 1, 1, 1, 1), LENGTH)
    for old, new in zip(jax.tree.leaves(early[:3]), jax.tree.leaves(late[:3]), strict=True):
        np.testing.assert_array_equal(old[:, :4], new[:, :4])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stretched(Scheme):
    """Rotates by positions that shrink as the text grows: cached rotations would go stale."""

    depends_on_length = True

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        return index.astype(jnp.float32) * jnp.minimum(1.0, 6.0 / jnp.asarray(length, jnp.float32))

    def features(self, pos, dims):
        angle = pos[..., None] * jnp.asarray(dims.length, jnp.float32) ** -0.5
        return {"cos": jnp.cos(angle), "sin": jnp.sin(angle)}

    def rotate(self, params, x, at, side):
        cos, sin = (at.feats[name][..., None, :] for name in ("cos", "sin"))
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


@pytest.mark.parametrize(
    ("pieces", "options"),
    [((5, 4, 1, 1, 1), {}), ((5, 4, 1, 1, 1), {"on_full": "roll", "window": 3})],
    ids=["whole", "ring"],
)
def test_keys_are_rotated_for_the_current_length(pieces, options):
    scheme, xs = Stretched(), activations()
    size = 3 if options else LENGTH
    got, _ = in_pieces(scheme, {}, xs, INDEX, pieces, size, **options)
    stop = 0
    for count in pieces:
        start, stop = stop, stop + count
        window = options.get("window")
        wanted = whole(scheme, {}, xs, INDEX, length=stop, window=window)[:, start:stop]
        np.testing.assert_allclose(got[:, start:stop], wanted, atol=2e-5)


def test_keys_placed_for_a_cache_that_does_not_roll():
    """Three tokens push out what the first of them sees: the keys to see are then more."""
    xs, at = activations(1, 3), Coords(INDEX[:1, 3:6], INDEX[:1, 3:6].astype(jnp.float32))
    cache = init_cache(Stretched(), DIMS, 1, 4)
    dims = DIMS._replace(length=6)
    place = place_keys(Stretched(), cache, at, dims)
    with pytest.raises(ValueError, match=r"key_place has places .*\(1, 4\).*\(1, 7\).*on_full"):
        attend_cached(
            Stretched(), {}, *xs, at, Stretched().features(at.pos, dims), cache,
            key_place=place, on_full="roll",
        )  # fmt: skip


def test_keys_that_move_must_be_placed():
    x, q, k, v = activations(1, 1)
    at = Coords(jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1)))
    cache = init_cache(Stretched(), DIMS, 1, 4)
    features = Stretched().features(at.pos, DIMS._replace(length=1))
    with pytest.raises(ValueError, match="pass key_place=place_keys"):
        attend_cached(Stretched(), {}, x, q, k, v, at, features, cache)
