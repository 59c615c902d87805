"""One attention layer between its projections: coords and rotation, then attention, with or
without a cache."""

import jax
import jax.numpy as jnp

from flax_pos.attention.cache import KeyPlace, KVCache, OnFull, extend, last, ring_window
from flax_pos.attention.dispatch import attend
from flax_pos.scheme import Scheme, check_scheme, contract
from flax_pos.types import Coords, Params, Side


def prepare(
    scheme: Scheme,
    params: Params,
    x: jax.Array,
    q: jax.Array,
    k: jax.Array,
    at: Coords,
    features: dict[str, jax.Array],
    prev: Coords | None = None,
) -> tuple[jax.Array, jax.Array, Coords]:
    """Coords of a layer's tokens, and q and k rotated by them.

    Args:
      scheme: the layer's scheme (`for_layer` already applied).
      params: its parameters, shared and own merged.
      x: the layer's input, `*B T D`.
      q: `*B T N H`. k: `*B T K H`.
      at: index, pos and segment of the tokens, without features.
      features: the result of `scheme.features`, for this forward.
      prev: coords of the last cached token, `*B 1 ...`, or None.

    Returns:
      q, k, and the coords to use and cache: without `features`, which only `coords` and `rotate`
      see.
    """
    check_scheme(scheme)
    at = _coords(scheme, params, x, _with(at, features), prev)
    q = _rotated(scheme, params, q, at, "q")
    k = _rotated(scheme, params, k, at, "k")
    return q, k, _without(at, features)


def attend_cached(
    scheme: Scheme,
    params: Params,
    x: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    at: Coords,
    features: dict[str, jax.Array],
    cache: KVCache,
    *,
    key_place: KeyPlace | None = None,
    on_full: OnFull = "error",
    window: int | None = None,
    **options,
) -> tuple[jax.Array, KVCache]:
    """Attention of T new tokens to themselves and to all that the cache holds.

    One call with a whole prompt, calls with pieces of it and calls with single tokens give the
    same rows. Everything is causal.

    Args:
      scheme, params, x, q, k, at, features: as for `prepare`.
      v: `*B T K Hv`.
      cache: this layer's cache before these tokens.
      key_place: `place_keys` at the current length; required by schemes that claim
        `depends_on_length`, whose keys are cached unrotated and rotated here.
      on_full: "error" or "roll", see `append`. A ring limits the window to its size.
      window: as for `attend`.
      **options: further options of `attend`.

    Returns:
      `*B T N Hv`, and the cache with these tokens in it.

    Raises:
      ValueError: no `key_place` where one is needed, or one made for another `on_full` or
        `window`; a full cache (see `append`); a ring smaller than the window.
      TypeError: `causal` among the options; tokens that do not fit the cache (see `append`).
    """
    check_scheme(scheme)
    if "causal" in options:
        raise TypeError("attention through a cache is causal: leave out causal")
    at = _coords(scheme, params, x, _with(at, features), last(cache))
    q = _rotated(scheme, params, q, at, "q")
    if not scheme.depends_on_length:
        k = _rotated(scheme, params, k, at, "k")
    elif key_place is None:
        raise ValueError(
            f"scheme {scheme.name!r} rotates keys by the total length, so cached keys are rotated "
            "on reading: pass key_place=place_keys(scheme, cache, at, dims)"
        )
    at = _without(at, features)
    window = scheme.window if window is None else window
    if on_full == "roll":
        window = ring_window(cache, window)
    cache, k, v, k_at = extend(cache, k, v, at, on_full=on_full, window=window)
    if key_place is not None and scheme.depends_on_length:
        if key_place.pos.shape != k_at.pos.shape:
            raise ValueError(
                f"key_place has places for keys {key_place.pos.shape}, but the keys to see are "
                f"{k_at.pos.shape}: give place_keys the same on_full ({on_full!r}) and window"
            )
        k_at = k_at._replace(pos=key_place.pos)
        k = _rotated(scheme, params, k, _with(k_at, key_place.features), "k")
    if on_full == "roll" and "scores" in scheme.uses:
        k, v, k_at = _in_order(k, v, k_at)
    out = attend(scheme, params, q, k, v, at, k_at, causal=True, window=window, **options)
    return out, cache


def _in_order(k: jax.Array, v: jax.Array, at: Coords):
    """A ring's keys in the order of their tokens, in which carries go from block to block."""
    order = jnp.argsort(at.index, -1)
    take = lambda a: jnp.take_along_axis(
        a, order.reshape(*order.shape, *[1] * (a.ndim - order.ndim)), order.ndim - 1
    )
    return jax.tree.map(take, (k, v, at))


def _coords(scheme: Scheme, params: Params, x: jax.Array, at: Coords, prev: Coords | None):
    with contract.params_of(scheme, params):
        carried = scheme.coords(params, x, at, prev)
    contract.check_coords(scheme, carried, x.shape[:-1])
    return carried


def _rotated(scheme: Scheme, params: Params, x: jax.Array, at: Coords, side: Side) -> jax.Array:
    with contract.params_of(scheme, params):
        rotated = scheme.rotate(params, x, at, side)
    axes = f"*B T {'N' if side == 'q' else 'K'} H"
    contract.check_array(scheme, "rotate", rotated, axes, (*x.shape[:-1], None), dtype=x.dtype)
    return rotated


def _with(at: Coords, features: dict[str, jax.Array]) -> Coords:
    return at._replace(feats={**at.feats, **features})


def _without(at: Coords, features: dict[str, jax.Array]) -> Coords:
    return at._replace(feats={n: value for n, value in at.feats.items() if n not in features})


__all__ = ["attend_cached", "prepare"]
