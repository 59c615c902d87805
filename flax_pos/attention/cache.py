"""The key/value cache: static shape, every row at its own length, coords kept beside k and v.

Padding never enters the cache: a row's tokens lie in slots 0, 1, 2, ... in order of arrival, so
left-padded, right-padded and unequal rows need nothing from the caller but `index = -1` on
padding. A cache that keeps the last S tokens only is a ring (`on_full="roll"`).
"""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from flax_pos.scheme import Scheme, check_scheme
from flax_pos.types import Coords, Dims

OnFull = Literal["error", "roll"]


class KVCache(NamedTuple):
    """Keys, values and coords of the tokens seen so far, in S slots. One per layer; a stack of
    layers is one more leading axis."""

    k: jax.Array
    """`*B S K H`: rotated keys; not rotated for schemes that claim `depends_on_length`."""
    v: jax.Array
    """`*B S K Hv`."""
    at: Coords
    """Each leaf `*B S ...`; `index` is -1 in an empty slot."""
    length: jax.Array
    """int32 `*B`: tokens that the row has seen, those that a ring has dropped included."""

    @property
    def size(self) -> int:
        """S, the number of slots."""
        return self.k.shape[-3]


class KeyPlace(NamedTuple):
    """Where the keys of a forward are put at the current length: see `place_keys`."""

    pos: jax.Array
    """`*B S`."""
    features: dict[str, jax.Array]
    """`scheme.features(pos, dims)`, each `*B S ...`."""


def init_cache(
    scheme: Scheme,
    dims: Dims,
    batch: int | tuple[int, ...],
    size: int,
    *,
    dtype=jnp.float32,
    value_dim: int | None = None,
    segments: bool = False,
) -> KVCache:
    """An empty cache for one layer.

    Args:
      scheme: the layer's scheme; what its `coords` puts into `feats` gets a place in the cache.
      dims: sizes of the model.
      batch: batch size, or the batch axes.
      size: number of slots S. With `on_full="roll"`, also how far back a query can see.
      dtype: of k, v and the layer's activations.
      value_dim: width of a value; None means `dims.head_dim`.
      segments: whether tokens carry segment numbers.

    Raises:
      ValueError: `size` is below 1.
    """
    check_scheme(scheme)
    if size < 1:
        raise ValueError(f"size must be at least 1 slot, got {size}")
    axes = (batch,) if isinstance(batch, int | np.integer) else tuple(batch)
    dims = dims._replace(length=1)

    def one_token(key: jax.Array) -> Coords:
        params = scheme.layer_params(scheme.init(key, dims._replace(layers=1)), 0)
        index = jnp.zeros((*axes, 1), jnp.int32)
        pos = scheme.positions(index, length=1, ids=index)
        features = scheme.features(pos, dims)
        x = jnp.zeros((*axes, 1, dims.width), dtype)
        at = scheme.coords(params, x, Coords(index, pos, features), None)
        kept = {name: value for name, value in at.feats.items() if name not in features}
        return Coords(index, pos, kept, index if segments else None)

    token = jax.eval_shape(one_token, jax.eval_shape(lambda: jax.random.key(0)))
    at = jax.tree.map(
        lambda leaf: jnp.zeros((*axes, size, *leaf.shape[len(axes) + 1 :]), leaf.dtype), token
    )
    width = dims.head_dim if value_dim is None else value_dim
    return KVCache(
        k=jnp.zeros((*axes, size, dims.kv_heads, dims.head_dim), dtype),
        v=jnp.zeros((*axes, size, dims.kv_heads, width), dtype),
        at=at._replace(index=jnp.full((*axes, size), -1, jnp.int32)),
        length=jnp.zeros(axes, jnp.int32),
    )


def append(
    cache: KVCache,
    k: Float[Array, "*B T K H"],
    v: Float[Array, "*B T K Hv"],
    at: Coords,
    *,
    on_full: OnFull = "error",
) -> KVCache:
    """The cache with T more tokens; those with index -1 (padding) are left out.

    Entries are written once: what is in the cache already is never transformed again.

    Args:
      cache: what there is so far.
      k: keys, as they are to be cached. v: values. at: coords, without per-forward features.
      on_full: "error": every row must have room. "roll": a row's oldest tokens make room.

    Raises:
      ValueError: `on_full="error"` and a row is full; or a token's index is not above that of the
        token before it, cached ones included (where a call starts again at 0, say; tokens with
        segment numbers may). Where that is known only at run time nothing can be raised: the row
        is poisoned with NaN, and so is all that attends to it.
      TypeError: the tokens do not fit the cache (dtype, features, segments).
      ValueError: nor do their shapes (batch axes, heads, widths).
    """
    at = _in_all_rows(cache, at)
    _check_fits(cache, k, v, at)
    slot = _slots(cache, at.index, on_full)
    bad = _check_order(cache, at) | check_room(cache, at.index, on_full)
    poison = bad[..., None, None, None]
    k, v = (jnp.where(poison, jnp.asarray(jnp.nan, x.dtype), x) for x in (k, v))
    length = cache.length + _count(at.index)
    k, v, at = jax.tree.map(
        lambda old, new: _write(old, new, slot), (cache.k, cache.v, cache.at), (k, v, at)
    )
    return KVCache(k, v, at, length)


def last(cache: KVCache) -> Coords:
    """Coords `*B 1 ...` of each row's last token: the `prev` of the tokens to come.

    Where a row has no token yet, index is -1 and the features are zeros.
    """
    slot = (cache.length - 1) % cache.size  # a row without tokens: its last slot, empty as well
    return jax.tree.map(lambda leaf: _read(leaf, slot), cache.at)


def extend(
    cache: KVCache,
    k: Float[Array, "*B T K H"],
    v: Float[Array, "*B T K Hv"],
    at: Coords,
    *,
    on_full: OnFull = "error",
    window: int | None = None,
) -> tuple[KVCache, jax.Array, jax.Array, Coords]:
    """`append`, and the keys, values and coords that the new tokens are to attend to.

    Those are the cache's own slots, unless a ring is so small that later tokens of this very call
    push out what its first ones still need: then they are the old slots followed by the new
    tokens. Attend with `window=ring_window(cache, window)` when `on_full="roll"`; results do not
    depend on how the tokens were cut into calls.
    """
    at = _in_all_rows(cache, at)
    after = append(cache, k, v, at, on_full=on_full)
    if not _joins(cache, at.index, on_full, window):
        return after, after.k, after.v, after.at
    join = lambda old, new: jnp.concatenate([old, new], cache.length.ndim)
    return after, *jax.tree.map(join, (cache.k, cache.v, cache.at), (k, v, at))


def ring_window(cache: KVCache, window: int | None) -> int:
    """The sliding window to attend with when `on_full="roll"`.

    Raises:
      ValueError: the ring has fewer slots than the window.
    """
    if window is not None and window > cache.size:
        raise ValueError(
            f"a ring of {cache.size} slots cannot serve window={window}; give it {window} slots"
        )
    return cache.size if window is None else window


def place_keys(
    scheme: Scheme,
    cache: KVCache,
    at: Coords,
    dims: Dims,
    *,
    on_full: OnFull = "error",
    window: int | None = None,
    key: jax.Array | None = None,
) -> KeyPlace:
    """Positions and features of all keys, the new ones included, at the current length.

    For schemes that claim `depends_on_length` (dynamic NTK, LongRoPE, length-dependent
    interpolation): a key's rotation changes as the sequence grows, so keys are cached unrotated
    and rotated on reading. The result is the same for every layer with this scheme: compute it
    once per forward from any one layer's cache, before the new tokens are appended.

    Args:
      scheme: the layer's scheme.
      cache: a layer's cache. at: the new tokens' coords; only `index` and `pos` matter.
      dims: sizes, with `length` the total length including the new tokens.
      on_full, window: as for `attend_cached`.
      key: what `scheme.positions` was given for the new tokens.
    """
    window = scheme.window if window is None else window
    _check_on_full(on_full)
    if _joins(cache, at.index, on_full, window):
        merge = lambda old, new: jnp.concatenate([old, new], -1)
    else:
        slots = _slots(cache, at.index, on_full)
        merge = lambda old, new: _write(old, new, slots)
    if "positions" in scheme.uses:
        index = merge(cache.at.index, at.index)
        pos = scheme.positions(jnp.maximum(index, 0), length=dims.length, key=key)
    else:  # tokens are where they were put
        pos = merge(cache.at.pos, at.pos)
    return KeyPlace(pos, scheme.features(pos, dims))


# Slots -----------------------------------------------------------------------------------------


def _slots(cache: KVCache, index: Int[Array, "*B T"], on_full: OnFull) -> jax.Array:
    """int32 `*B T`: where each new token goes; S for those that are not written."""
    _check_on_full(on_full)
    real = index >= 0
    rank = jnp.cumsum(real, -1, dtype=jnp.int32)  # 1 for the first
    slot = cache.length[..., None] + rank - 1
    if on_full == "roll":
        kept = real & (rank > rank[..., -1:] - cache.size)
        return jnp.where(kept, slot % cache.size, cache.size)
    # A full row is poisoned in its last slot, where every later query looks.
    return jnp.where(real, jnp.minimum(slot, cache.size - 1), cache.size)


def _check_on_full(on_full: OnFull) -> None:
    if on_full not in get_args(OnFull):
        raise ValueError(f"on_full must be 'error' or 'roll', got {on_full!r}")


def _joins(cache: KVCache, index: jax.Array, on_full: OnFull, window: int | None) -> bool:
    if on_full != "roll":
        return False
    return cache.size < ring_window(cache, window) - 1 + index.shape[-1]


def _write(old: jax.Array, new: jax.Array, slot: jax.Array) -> jax.Array:
    """`old` (`*B S ...`) with `new` (`*B T ...`) at `slot` (`*B T`)."""
    put = lambda row, values, at: row.at[at].set(values, mode="drop")
    for _ in range(slot.ndim - 1):
        put = jax.vmap(put)
    return put(old, new, slot)


def _read(leaf: jax.Array, slot: jax.Array) -> jax.Array:
    """`leaf` (`*B S ...`) at `slot` (`*B`): `*B 1 ...`."""
    take = lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, 1)
    for _ in range(slot.ndim):
        take = jax.vmap(take)
    return take(leaf, slot)


def check_room(cache: KVCache, index: Int[Array, "*B T"], on_full: OnFull) -> jax.Array:
    """bool `*B`: rows of the cache that these tokens are too many for.

    Raises:
      ValueError: there are such rows, and that is known already.
    """
    count = _count(index)
    full = (cache.length + count > cache.size) & (on_full == "error")
    if not isinstance(full, Tracer) and np.any(full):
        row = int(np.argmax(np.ravel(full)))
        raise ValueError(
            f"the KV cache has {cache.size} slots; row {row} holds {np.ravel(cache.length)[row]} "
            f"tokens and {np.ravel(count)[row]} more came: make the cache larger, or pass "
            "on_full='roll' to drop the oldest tokens"
        )
    return full


def _count(index: Int[Array, "*B T"]) -> jax.Array:
    """int32 `*B`: tokens that are not padding."""
    return jnp.sum(index >= 0, -1, dtype=jnp.int32)


def _check_order(cache: KVCache, at: Coords) -> jax.Array:
    """bool `*B`: rows in which a token comes after one with the same index or a higher one."""
    if at.segment is not None:
        return jnp.zeros(cache.length.shape, bool)
    index = jnp.concatenate([last(cache).index, at.index], -1)
    before = jax.lax.cummax(index, axis=index.ndim - 1)[..., :-1]
    wrong = (at.index >= 0) & (at.index <= before)
    bad = wrong.any(-1)
    if not isinstance(bad, Tracer) and np.any(bad):
        row, token = np.argwhere(np.reshape(wrong, (-1, wrong.shape[-1])))[0]
        given, seen = (
            int(np.reshape(a, (-1, a.shape[-1]))[row, token]) for a in (at.index, before)
        )
        raise ValueError(
            f"index of row {row} comes to {given} after {seen}: tokens go on where the cache ends, "
            "at `cache.length` of their row"
        )
    return bad


def _in_all_rows(cache: KVCache, at: Coords) -> Coords:
    """`at` with what is one for all rows of the batch repeated in each."""
    axes = cache.length.shape
    repeat = lambda a: jnp.broadcast_to(a, (*axes, *a.shape[len(axes) :]))
    return at._replace(feats=jax.tree.map(repeat, at.feats))


def _check_fits(cache: KVCache, k: jax.Array, v: jax.Array, at: Coords) -> None:
    for name, old, new in (("k", cache.k, k), ("v", cache.v, v), ("at.pos", cache.at.pos, at.pos)):
        if old.dtype != new.dtype:
            raise TypeError(f"{name} is {new.dtype}, but the cache holds {old.dtype}")
    axes = cache.length.ndim
    for name, old, new in (
        ("k", cache.k, k),
        ("v", cache.v, v),
        ("at.index", cache.at.index, at.index),
        ("at.pos", cache.at.pos, at.pos),
    ):
        wanted = f"{(*old.shape[:axes], 'T', *old.shape[axes + 1 :])}".replace("'", "")
        if new.ndim != old.ndim or new.shape[:axes] + new.shape[axes + 1 :] != (
            old.shape[:axes] + old.shape[axes + 1 :]
        ):
            raise ValueError(f"{name} has shape {new.shape}, but the cache is for {wanted}")
    if cache.at.feats.keys() != at.feats.keys():
        raise TypeError(
            f"tokens carry features {sorted(at.feats)}, but the cache has places for "
            f"{sorted(cache.at.feats)}: initialise it with the scheme of this layer"
        )
    if (cache.at.segment is None) != (at.segment is None):
        raise TypeError(
            "tokens carry segment numbers, but the cache has no place for them: "
            "init_cache(..., segments=True)"
            if cache.at.segment is None
            else "the cache holds segment numbers, but the new tokens have none"
        )


__all__ = [
    "KVCache",
    "KeyPlace",
    "append",
    "check_room",
    "extend",
    "init_cache",
    "last",
    "place_keys",
    "ring_window",
]
