"""One attention layer around a scheme, in every form that the checks compare."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.attention import (
    KVCache,
    attend,
    attend_cached,
    init_cache,
    last,
    place_keys,
    prepare,
)
from flax_pos.scheme import Scheme
from flax_pos.types import Coords, Dims, Params

DIMS = Dims(width=16, heads=4, kv_heads=2, head_dim=8, layers=2, max_len=64)
BATCH, LENGTH = 2, 13
RAGGED = {"block_q": 5, "block_k": 4}
"""Blocks that do not divide `LENGTH`."""


class Inputs(NamedTuple):
    """What a layer works on; all arrays."""

    params: Params
    weights: dict[str, jax.Array]
    x: jax.Array
    index: jax.Array
    ids: jax.Array


def new_inputs(
    scheme: Scheme,
    *,
    seed: int = 0,
    batch: int = BATCH,
    length: int = LENGTH,
    dims: Dims = DIMS,
    dtype=jnp.float32,
) -> Inputs:
    """Random activations and weights, and parameters near their start."""
    # Drawn by NumPy: `jax.random` compiles a program for every shape.
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)
    heads = {"q": dims.heads, "k": dims.kv_heads, "v": dims.kv_heads}
    weights = {
        name: normal(dims.width, n, dims.head_dim) * jnp.asarray(dims.width**-0.5, dtype)
        for name, n in heads.items()
    }
    params = scheme.layer_params(scheme.init(jax.random.key(seed), dims), 1)
    # As after some training: a table that starts at zero would hide what it does.
    moved = lambda a: a + jnp.asarray(0.1 * rng.normal(size=a.shape), a.dtype)
    return Inputs(
        params=jax.tree.map(moved, params),
        weights=weights,
        x=normal(batch, length, dims.width),
        index=jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length)),
        ids=jnp.asarray(rng.integers(0, 10, (batch, length)), jnp.int32),
    )


make_inputs = functools.lru_cache(new_inputs)
"""`new_inputs`, made once for all checks; not for use while something is traced."""


def project(x: jax.Array, weights: dict[str, jax.Array]) -> list[jax.Array]:
    return [jnp.einsum("...td,dnh->...tnh", x, weights[name]) for name in "qkv"]


def place(scheme: Scheme, inputs: Inputs, length, key=None, prev=None) -> jax.Array:
    """Positions of all tokens; padding is put at 0."""
    index = jnp.maximum(inputs.index, 0)
    return scheme.positions(index, length=length, key=key, ids=inputs.ids, prev=prev)


def forward(
    scheme: Scheme,
    inputs: Inputs,
    *,
    dims: Dims = DIMS,
    pos: jax.Array | None = None,
    shift: Any = 0,
    length: Any = None,
    key: jax.Array | None = None,
    segment: jax.Array | None = None,
    repeat_heads: bool = False,
    **options,
) -> jax.Array:
    """Output of the layer, `*B T N H`.

    Args:
      pos: where tokens are; None: what the scheme says. shift: added to it.
      length: total length; None: the number of tokens.
      repeat_heads: gives attention one key and value per query head.
      **options: of `attend`.
    """
    length = inputs.x.shape[-2] if length is None else length
    pos = place(scheme, inputs, length, key) if pos is None else pos
    pos = pos + jnp.asarray(shift, pos.dtype)
    x = scheme.embed(inputs.params, inputs.x, pos)
    q, k, v = project(x, inputs.weights)
    features = scheme.features(pos, dims._replace(length=length))
    at = Coords(inputs.index, pos, {}, segment)
    q, k, at = prepare(scheme, inputs.params, x, q, k, at, features)
    k_at = at
    if repeat_heads:
        # What `coords` gives each key head has heads first after the tokens, as k has.
        copies = q.shape[-2] // k.shape[-2]
        of_heads = lambda a: a.ndim > 2 and a.shape[2] == dims.kv_heads
        repeat = lambda a: jnp.repeat(a, copies, 2) if of_heads(a) else a
        k, v, k_at = jax.tree.map(repeat, (k, v, at))
    options = {"implementation": "dense", **options}
    return attend(scheme, inputs.params, q, k, v, at, k_at, **options)


def value_and_gradients(scheme: Scheme, inputs: Inputs, **options):
    """Output, and the gradients of a sum of squares to parameters, weights and activations."""

    def loss(floats):
        params, weights, x = floats
        own = inputs._replace(params=params, weights=weights, x=x)
        out = forward(scheme, own, **options)
        return jnp.sum(out * out), out

    floats = (inputs.params, inputs.weights, inputs.x)
    gradients, out = jax.grad(loss, has_aux=True)(floats)
    return out, gradients


dense = jax.jit(value_and_gradients, static_argnames="scheme")
"""Compiled once for all checks: everything but the scheme is an array, positions too."""


def decode(
    scheme: Scheme, inputs: Inputs, pieces: tuple[int, ...], *, size: int, step: Callable
) -> list[jax.Array]:
    """Outputs of consecutive calls of `step` (`decode_step`, compiled) with `pieces` tokens each,
    through a cache of `size` slots."""
    cache = init_cache(scheme, DIMS, inputs.x.shape[0], size)
    start, outputs = 0, []
    for count in pieces:
        stop = start + count
        part = lambda a, cut=slice(start, stop): a[:, cut]
        piece = inputs._replace(x=part(inputs.x), index=part(inputs.index), ids=part(inputs.ids))
        out, cache = step(scheme, piece, cache, jnp.int32(stop))
        outputs.append(out)
        start = stop
    return outputs


def decode_step(scheme: Scheme, inputs: Inputs, cache: KVCache, length, **options):
    """One call: the layer's output for the new tokens, and the cache with them; `options` are
    `on_full` and `window` of `attend_cached`."""
    dims = DIMS._replace(length=length)
    pos = place(scheme, inputs, length, prev=last(cache))
    x = scheme.embed(inputs.params, inputs.x, pos)
    q, k, v = project(x, inputs.weights)
    at = Coords(inputs.index, pos)
    key_place = place_keys(scheme, cache, at, dims, **options) if scheme.depends_on_length else None
    tokens = (x, q, k, v, at, scheme.features(pos, dims))
    return attend_cached(scheme, inputs.params, *tokens, cache, key_place=key_place, **options)


# Comparing -------------------------------------------------------------------------------------


def assert_close(got, wanted, what: str, *, tolerance: float = 2e-5) -> None:
    """Every leaf equal to within `tolerance` of the largest number in it (or of 1)."""
    got, wanted = (jax.tree_util.tree_leaves_with_path(tree) for tree in (got, wanted))
    assert [path for path, _ in got] == [path for path, _ in wanted], f"{what}: other structure"
    for (path, a), (_, b) in zip(got, wanted, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        where = what + jax.tree_util.keystr(path)
        assert a.shape == b.shape, f"{where}: shape {a.shape}, wanted {b.shape}"
        assert np.isfinite(a).all(), f"{where}: not finite"
        error = np.abs(a - b).max(initial=0) / max(1.0, np.abs(b).max(initial=0))
        assert error <= tolerance, f"{where}: off by {error:.2g}"


def differ(a: jax.Array, b: jax.Array, *, tolerance: float = 1e-6) -> bool:
    """Whether two outputs differ by more than rounding."""
    return bool(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max() > tolerance)
