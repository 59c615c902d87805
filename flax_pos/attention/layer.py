"""The token-local half of an attention layer."""

import jax

from flax_pos.scheme import Scheme
from flax_pos.types import Coords, Params


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
    at = scheme.coords(params, x, at._replace(feats={**at.feats, **features}), prev)
    q = scheme.rotate(params, q, at, "q")
    k = scheme.rotate(params, k, at, "k")
    kept = {name: value for name, value in at.feats.items() if name not in features}
    return q, k, at._replace(feats=kept)
