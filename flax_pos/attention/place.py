"""The part of a forward pass that happens once: which token is where, for all layers.

Pure functions over plain parameter dicts; the NNX and Linen modules are thin shells around them.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_pos.attention.cache import (
    KeyPlace,
    KVCache,
    OnFull,
    check_room,
    last,
    place_keys,
)
from flax_pos.attention.dispatch import attend
from flax_pos.attention.layer import attend_cached, prepare
from flax_pos.functional.positions import (
    check_positions,
    positions_from_mask,
    positions_from_segments,
)
from flax_pos.scheme import LayerPlan, Scheme, contract, merge, plan_layers
from flax_pos.types import Coords, Dims, Params


class LayerPositions(NamedTuple):
    """What one layer needs to know about positions in one forward."""

    scheme: Scheme
    params: Params
    """The layer's parameters, shared and own merged."""
    at: Coords
    """index, pos and segment of the tokens; no features."""
    features: dict[str, jax.Array]
    """The result of `scheme.features`, shared by all layers of that scheme."""
    contiguous: bool = False
    """Known to have neither padding nor segments."""
    key_place: KeyPlace | None = None
    """Where cached keys are at this length, for schemes that depend on it."""
    on_full: OnFull = "error"
    """What happens when a cache is full, as `place` was told."""

    def attend(
        self,
        x: jax.Array,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        cache: KVCache | None = None,
        *,
        causal: bool = True,
        **options,
    ) -> tuple[jax.Array, KVCache | None]:
        """The layer's attention, with or without a cache.

        Args:
          x: the layer's input `*B T D`, after its norm.
          q: `*B T N H`. k: `*B T K H`. v: `*B T K Hv`. All as projected, not yet rotated.
          cache: this layer's keys and values of earlier tokens.
          causal: must be True with a cache.
          options: more options of `flax_pos.attend`. (What to do when the cache is full, `place`
            is told.)

        Returns:
          `*B T N Hv`, and the cache with these tokens in it (None without one).
        """
        tokens = (self.scheme, self.params, x, q, k)
        if cache is None:
            q, k, at = prepare(*tokens, self.at, self.features)
            options = {"contiguous": self.contiguous, **options}
            out = attend(self.scheme, self.params, q, k, v, at, at, causal=causal, **options)
            return out, None
        if not causal:
            raise ValueError(
                "causal=False has no meaning with a cache: what comes after is not there"
            )
        return attend_cached(
            *tokens, v, self.at, self.features, cache,
            key_place=self.key_place, on_full=self.on_full, **options,
        )  # fmt: skip


class Placement(NamedTuple):
    """Where the tokens of one forward are, for every layer."""

    plan: LayerPlan
    params: Params
    """As from `init_positions`."""
    at: tuple[Coords, ...]
    """One for each of `plan.parts`, as the next two."""
    features: tuple[dict[str, jax.Array], ...]
    key_places: tuple[KeyPlace | None, ...]
    contiguous: bool
    on_full: OnFull

    def layer(self, layer: int) -> LayerPositions:
        """The view of one layer, by its number."""
        part, row = self.plan.part_of[layer], rank_in_part(self.plan, layer)
        return self.part(part, jax.tree.map(lambda a: a[row], self.params[str(part)]["layers"]))

    def part(self, part: int, layer_params: Params) -> LayerPositions:
        """The view of a layer that uses `plan.parts[part]` with its own parameters given."""
        return LayerPositions(
            self.plan.parts[part],
            merge(self.params[str(part)]["model"], layer_params),
            self.at[part],
            self.features[part],
            self.contiguous,
            self.key_places[part],
            self.on_full,
        )


# Parameters ------------------------------------------------------------------------------------


def init_positions(plan: LayerPlan, key: jax.Array, dims: Dims) -> Params:
    """Parameters of all distinct schemes of a model.

    Returns:
      `{"0": {"model": ..., "layers": ...}, ...}`: one entry for each of `plan.parts`, each as
      `Scheme.init` gives it, with the leaves of `layers` stacked over the layers of that part.
    """
    keys = [key] if len(plan.parts) == 1 else list(jax.random.split(key, len(plan.parts)))
    return {
        str(i): _init_part(part, keys[i], dims, plan.part_of.count(i))
        for i, part in enumerate(plan.parts)
    }


def _init_part(part: Scheme, key: jax.Array, dims: Dims, count: int) -> Params:
    model_key, layer_key = jax.random.split(key)
    checked = lambda hook, key: contract.check_params(part, hook, getattr(part, hook)(key, dims))
    return {
        "model": checked("init_model", model_key),
        "layers": jax.vmap(lambda k: checked("init_layer", k))(jax.random.split(layer_key, count)),
    }


def rank_in_part(plan: LayerPlan, layer: int) -> int:
    """How many layers before `layer` use the same scheme: its row in the stacked parameters."""
    return plan.part_of[:layer].count(plan.part_of[layer])


def resolve(
    own: Scheme, params: Params, dims: Dims, override: Scheme | None = None
) -> tuple[LayerPlan, Params]:
    """The schemes by layer and their parameters, of a model's own scheme or of another one.

    Args:
      own: the scheme that the model was built with. params: as `init_positions` made them for it.
      override: takes the place of `own`. A scheme without parameters takes none; any other needs
        layers whose parameters have the very structure and shapes that it would create itself.

    Raises:
      ValueError: `override` needs parameters that are not there.
    """
    plan = plan_layers(own, dims.layers)
    if override is None or override is own:
        return plan, params
    wanted = plan_layers(override, dims.layers)
    return wanted, {
        str(i): _adopt_part(plan, params, part, wanted.part_of, i, dims)
        for i, part in enumerate(wanted.parts)
    }


def _adopt_part(plan, params, part: Scheme, part_of, number: int, dims: Dims) -> Params:
    layers = [layer for layer, own in enumerate(part_of) if own == number]
    init = lambda key: _init_part(part, key, dims, len(layers))
    needed = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    if not jax.tree.leaves(needed):
        return needed
    found, owners = {}, {plan.part_of[layer] for layer in layers}
    if len(owners) == 1:
        owner = owners.pop()
        found = params[str(owner)]
        if len(layers) != plan.part_of.count(owner):
            rows = jnp.array([rank_in_part(plan, layer) for layer in layers])
            own = jax.tree.map(lambda a: a[rows], found["layers"])
            found = {**found, "layers": own}
    if _shapes(found) != _shapes(needed):
        raise ValueError(
            f"{contract.named(part)} needs the parameters "
            f"{_shapes(needed)}, but the model has {_shapes(found)}; "
            "build a model with this scheme instead of overriding its own"
        )
    return found


def _shapes(params: Params) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="."): a.shape for path, a in leaves}


# Order and places ------------------------------------------------------------------------------


def order(
    shape: tuple[int, ...],
    *,
    mask: jax.Array | None = None,
    segments: jax.Array | None = None,
    start: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Order of the tokens in their sequence, from what is padding and what is packed.

    Args:
      shape: `*B T`.
      mask: bool `*B T`, False on padding, wherever it is.
      segments: int32 `*B T`, the packed document of each token, 0 on padding.
      start: int32 `*B`, tokens already in the cache.

    Returns:
      index (int32 `*B T`, -1 on padding; it restarts in each segment) and segment (or None).

    Raises:
      ValueError: a shape differs from `shape`, or `segments` and `start` are both given.
      TypeError: a wrong dtype.
    """
    check_per_token("mask", mask, shape)
    check_per_token("segments", segments, shape)
    if mask is not None and mask.dtype != jnp.bool_:
        raise TypeError(f"mask has dtype {mask.dtype}; it must be bool, True for real tokens")
    if segments is not None:
        if start is not None:
            raise ValueError(
                "segments are for packed rows without a cache; decode one document a row"
            )
        segments = check_positions(segments, "segments")
        if mask is not None:
            segments = jnp.where(mask, segments, 0)
        return positions_from_segments(segments), segments
    if mask is not None:
        index = positions_from_mask(mask)
    else:
        index = jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32), shape)
    if start is not None:
        index = jnp.where(index >= 0, index + start[..., None], -1)
    return index, None


def check_per_token(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless `value` is None or has the shape `*B T` of the ids."""
    if value is not None and value.shape != shape:
        raise ValueError(
            f"{name} has shape {value.shape}, but the ids have {shape}; give one value per token"
        )


def place(
    plan: LayerPlan,
    params: Params,
    dims: Dims,
    x: jax.Array,
    *,
    positions: jax.Array | None = None,
    mask: jax.Array | None = None,
    segments: jax.Array | None = None,
    caches: Sequence[KVCache] | None = None,
    on_full: OnFull = "error",
    length: Any = None,
    key: jax.Array | None = None,
    ids: jax.Array | None = None,
) -> tuple[jax.Array, Placement]:
    """Everything that schemes do once per forward: positions, embedding, features.

    Args:
      plan: the model's schemes by layer.
      params: as from `init_positions`.
      dims: sizes of the model.
      x: token embeddings `*B T D`.
      positions: int `*B T`: where the tokens are, if that is not their order; schemes that move
        positions move these. The order that masks use still comes from `mask` or `segments`.
      mask, segments: as in `order`.
      caches: when the tokens continue cached ones: those of the first layers, in order, as many
        as it takes to meet every scheme; before these tokens.
      on_full: what happens when a cache is full, "error" or "roll", as for `attend_cached`.
      length: total length of the sequence (int or traced int32 scalar); None: largest position
        + 1.
      key: training noise for positions; None means evaluation.
      ids: token ids, for schemes that read structure.

    Returns:
      x with positions added, and the placement that layers read.

    Raises:
      ValueError, TypeError: as `order`; and for sequences longer than `dims.max_len` under a
        scheme that ends there, where the length is known before any computation.
    """
    shape = x.shape[:-1]
    if positions is not None:
        check_per_token("positions", positions, shape)
        positions = check_positions(positions)
    contiguous = mask is None and segments is None and caches is None
    plain = contiguous and positions is None
    if plain:
        check_reach(plan, shape[-1], dims.max_len)
    start = None if caches is None else caches[0].length
    if start is not None and start.shape != shape[:-1]:
        raise ValueError(f"the cache is for rows {start.shape}, but the ids have {shape[:-1]}")
    index, segment = order(shape, mask=mask, segments=segments, start=start)
    if caches is not None:
        check_room(caches[0], index, on_full)
    index += jnp.zeros_like(x[..., 0], jnp.int32)  # lies on devices as the tokens do
    # Padding is put at 0, where it does no harm: nothing sees it.
    base = jnp.where(index >= 0, index if positions is None else positions, 0)
    if length is None:
        # Only where it matters, so that other schemes keep a static length.
        traced = not plain and any(part.depends_on_length for part in plan.parts)
        length = jnp.max(base) + 1 if traced else shape[-1]
    dims = dims._replace(length=length)
    at, features, key_places = [], [], []
    for i, part in enumerate(plan.parts):
        cache = None if caches is None else caches[plan.part_of.index(i)]
        prev = None if cache is None else last(cache)
        find = functools.partial(part.positions, length=length, key=key, prev=prev)
        if contiguous or ids is None or "positions" not in part.uses:
            pos = find(base, ids=ids)
        else:
            pos = _without_padding(find, index, base, ids)
        contract.check_positions(part, pos, shape)
        with_positions = part.embed(params[str(i)]["model"], x, pos)
        contract.check_array(part, "embed", with_positions, "*B T D", x.shape, dtype=x.dtype)
        x = with_positions
        at.append(Coords(index, pos, {}, segment))
        features.append(part.features(pos, dims))
        contract.check_leaves(part, "features", features[-1], shape)
        if cache is None or not part.depends_on_length:
            key_places.append(None)
        else:
            key_places.append(place_keys(part, cache, at[-1], dims, on_full=on_full, key=key))
    once = tuple(at), tuple(features), tuple(key_places)
    return x, Placement(plan, params, *once, contiguous, on_full)


def _without_padding(find, index: jax.Array, base: jax.Array, ids: jax.Array) -> jax.Array:
    """`find(base, ids=ids)` as if padding were not there: structure goes on across it."""
    real_first = jnp.argsort(index < 0, -1, stable=True)
    take = lambda a, order: jnp.take_along_axis(a, order, -1)
    pos = find(take(base, real_first), ids=take(ids, real_first))
    return take(pos, jnp.argsort(real_first, -1))


def check_reach(plan: LayerPlan, length: int, max_len: int) -> None:
    """Raises ValueError if a scheme is not defined for `length` tokens."""
    for part in plan.parts:
        if length > max_len and not part.unbounded:
            raise ValueError(
                f"{length} tokens, but {contract.named(part)} has positions "
                f"0 .. {max_len - 1} only (max_len={max_len}); shorten the input, raise max_len "
                "before training, or use a scheme without a limit"
            )


__all__ = [
    "LayerPositions",
    "Placement",
    "check_per_token",
    "check_reach",
    "init_positions",
    "order",
    "place",
    "rank_in_part",
    "resolve",
]
