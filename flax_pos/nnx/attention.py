"""Self-attention with any position scheme."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_pos.attention.cache import KVCache
from flax_pos.attention.place import LayerPositions
from flax_pos.nnx.config import ModelConfig
from flax_pos.nnx.layers import Norm, linear
from flax_pos.nnx.params import named


class Attention(nnx.Module):
    """Grouped-query self-attention: projections, optional norms of q and k, and the scheme.

    It holds no scheme: which one applies, with what parameters, is said at each call, so that
    layers under `lax.scan` and schemes with traced settings work.

    With `kv_rank` keys and values come out of one narrow vector per token (multi-head latent
    attention, DeepSeek-V2, arXiv:2405.04434, section 2.1); the last `shared_key_dim` channels of
    each key are the same in all heads.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        dims, width = config.dims, config.width
        heads, kv_heads = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
        make = lambda fan_in, fan_out, *names, bias=False: linear(
            config, fan_in, fan_out, names, bias=bias, rngs=rngs
        )
        bias = config.qkv_bias
        if config.q_rank is None:
            self.q = make(width, heads, "embed", "heads", bias=bias)
        else:
            self.q_down = make(width, config.q_rank, "embed", None, bias=bias)
            self.q_down_norm = Norm(config, config.q_rank)
            self.q_up = make(config.q_rank, heads, None, "heads")
        if config.kv_rank is None:
            self.k = make(width, kv_heads, "embed", "kv_heads", bias=bias)
            self.v = make(width, dims.kv_heads * config.v_dim, "embed", "kv_heads", bias=bias)
        else:
            shared = config.shared_key_dim or 0
            own = dims.heads * (dims.head_dim - shared + config.v_dim)
            self.kv_down = make(width, config.kv_rank + shared, "embed", None, bias=bias)
            self.kv_down_norm = Norm(config, config.kv_rank)
            self.kv_up = make(config.kv_rank, own, None, "heads")
        self.out = linear(
            config,
            dims.heads * config.v_dim,
            width,
            ("heads", "embed"),
            bias=config.out_bias,
            residual=True,
            rngs=rngs,
        )
        sinks = None
        if config.attn_sinks:
            sinks = named(jnp.zeros(dims.heads, jnp.dtype(config.param_dtype)), "heads")
        self.sinks = nnx.data(sinks)
        shapes = {
            "none": (),
            "head": ((dims.head_dim,), (dims.head_dim,)),
            "heads": ((dims.heads, dims.head_dim), (dims.kv_heads, dims.head_dim)),
            "projection": ((heads,), (kv_heads,)),
        }[config.qk_norm]
        q_norm, k_norm = [Norm(config, *shape, bias=False) for shape in shapes] or (None, None)
        self.q_norm, self.k_norm = nnx.data(q_norm), nnx.data(k_norm)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        here: LayerPositions,
        cache: KVCache | None = None,
        *,
        causal: bool = True,
    ) -> tuple[Float[Array, "*B T D"], KVCache | None]:
        """Attention output, and the cache with these tokens added.

        Args:
          x: the layer's input after its norm.
          here: the layer's scheme, parameters and where the tokens are.
          cache: keys and values of earlier tokens; None for a whole sequence.
          causal: False lets tokens see what comes after them.
        """
        config = self.config
        out, cache = here.attend(
            x,
            *self.project(x),
            cache,
            causal=causal,
            scale=config.attn_scale,
            softcap=config.attn_softcap,
            sinks=None if self.sinks is None else self.sinks[...],
            implementation=config.attention,
        )
        return self.out(out.reshape(*x.shape[:-1], out.shape[-2] * out.shape[-1])), cache

    def project(self, x: Float[Array, "*B T D"]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """q `*B T N H`, k `*B T K H` and v `*B T K Hv`, before positions."""
        config, dims = self.config, self.config.dims
        latent = config.kv_rank is not None
        q = self.q(x) if config.q_rank is None else self.q_up(self.q_down_norm(self.q_down(x)))
        k, v = self._latent(x) if latent else (self.k(x), self.v(x))
        if config.qkv_clip is not None:
            q, k, v = (jnp.clip(a, -config.qkv_clip, config.qkv_clip) for a in (q, k, v))
        if config.qk_norm == "projection":
            q, k = self._normed(q, k)
        # No -1: of a sequence without tokens it cannot be told.
        width = lambda a, heads: math.prod(a.shape[x.ndim - 1 :]) // heads
        split = lambda a, heads: a.reshape(*x.shape[:-1], heads, width(a, heads))
        q, k, v = split(q, dims.heads), split(k, dims.kv_heads), split(v, dims.kv_heads)
        if config.qk_norm != "projection":
            q, k = self._normed(q, k)
        return q, k, v

    def _normed(self, q, k):
        q_norm, k_norm = self.q_norm, self.k_norm
        return (q, k) if q_norm is None or k_norm is None else (q_norm(q), k_norm(k))

    def _latent(self, x) -> tuple[jax.Array, jax.Array]:
        config, dims = self.config, self.config.dims
        down = self.kv_down(x)
        narrow, shared = down[..., : config.kv_rank], down[..., config.kv_rank :]
        up = self.kv_up(self.kv_down_norm(narrow)).reshape(*x.shape[:-1], dims.heads, -1)
        own = dims.head_dim - shared.shape[-1]
        shared = jnp.broadcast_to(shared[..., None, :], (*up.shape[:-1], shared.shape[-1]))
        k = jnp.concatenate([up[..., :own], shared], axis=-1)
        return k, up[..., own:]


__all__ = ["Attention"]
