"""Which query may see which key: from `index` and `segment`, never from slots."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flax_pos.types import Coords

_FAR = jnp.iinfo(jnp.int32).max


class Reach(NamedTuple):
    """How far queries see, beyond the rule that padding and other segments are never seen."""

    causal: bool = True
    """Only keys with index <= the query's."""
    window: int | None = None
    """Only keys nearer than this: the query itself and window - 1 keys before it (without a
    causal mask, as many after it)."""
    chunk: int | None = None
    """Only keys with the same index // chunk."""

    def allowed(self, q_at: Coords, k_at: Coords) -> jax.Array:
        """bool `*B 1 T S`."""
        q, k = q_at.index[..., :, None], k_at.index[..., None, :]
        ok = (q >= 0) & (k >= 0)
        if self.causal:
            ok &= k <= q
        if self.window is not None:
            ok &= jnp.abs(q - k) < self.window
        if self.chunk is not None:
            ok &= q // self.chunk == k // self.chunk
        if q_at.segment is not None and k_at.segment is not None:
            ok &= q_at.segment[..., :, None] == k_at.segment[..., None, :]
        return ok[..., None, :, :]

    def visible(self, q_at: Coords, k_at: Coords, block_q: int, block_k: int) -> jax.Array:
        """bool `T/block_q S/block_k`: whether any query of a block, in any row of the batch, may
        see any key of a block. Judged by the extremes of index and segment, so it may say yes
        where `allowed` says no for every pair, never the other way."""
        real_q, real_k = q_at.index >= 0, k_at.index >= 0
        q_low, q_high = _extremes(q_at.index, real_q, block_q, -1)
        k_low, k_high = _extremes(k_at.index, real_k, block_k, -2)
        ok = (q_high >= 0) & (k_high >= 0)
        if self.causal:
            ok &= k_low <= q_high
        if self.window is not None:
            ok &= (q_low - k_high < self.window) & (k_low - q_high < self.window)
        if self.chunk is not None:
            ok &= (k_low // self.chunk <= q_high // self.chunk) & (
                q_low // self.chunk <= k_high // self.chunk
            )
        if q_at.segment is not None and k_at.segment is not None:
            q_low, q_high = _extremes(q_at.segment, real_q, block_q, -1)
            k_low, k_high = _extremes(k_at.segment, real_k, block_k, -2)
            ok &= (k_low <= q_high) & (q_low <= k_high)
        return ok.any(tuple(range(ok.ndim - 2)))


def _extremes(value: jax.Array, real: jax.Array, block: int, axis: int):
    """Lowest and highest value of each block over real tokens, with a unit axis put in at `axis`;
    a block without any has an empty range."""
    blocks = lambda x: x.reshape(*x.shape[:-1], -1, block)
    low = blocks(jnp.where(real, value, _FAR)).min(-1)
    high = blocks(jnp.where(real, value, -1)).max(-1)
    return jnp.expand_dims(low, axis), jnp.expand_dims(high, axis)


__all__ = ["Reach"]
