"""Self-attention with any position scheme."""

from flax import nnx
from jaxtyping import Array, Float

from flax_pos.attention.cache import KVCache
from flax_pos.attention.place import LayerPositions
from flax_pos.nnx.config import ModelConfig
from flax_pos.nnx.layers import linear, rms_norm


class Attention(nnx.Module):
    """Grouped-query self-attention: projections, optional norms of q and k, and the scheme.

    It holds no scheme: which one applies, with what parameters, is said at each call, so that
    layers under `lax.scan` and schemes with traced settings work.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        dims = config.dims
        heads, kv_heads = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
        width, bias = config.width, config.qkv_bias
        self.q = linear(config, width, heads, ("embed", "heads"), bias=bias, rngs=rngs)
        self.k = linear(config, width, kv_heads, ("embed", "kv_heads"), bias=bias, rngs=rngs)
        self.v = linear(config, width, kv_heads, ("embed", "kv_heads"), bias=bias, rngs=rngs)
        self.out = linear(
            config, heads, width, ("heads", "embed"), bias=config.out_bias, residual=True, rngs=rngs
        )
        head_norm = lambda: rms_norm(config, dims.head_dim, rngs=rngs) if config.qk_norm else None
        self.q_norm = nnx.data(head_norm())
        self.k_norm = nnx.data(head_norm())
        self.head_dim = dims.head_dim
        options = {
            "scale": config.attn_scale,
            "softcap": config.attn_softcap,
            "implementation": config.attention,
        }
        self.options = tuple((name, value) for name, value in options.items() if value is not None)

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
        q, k, v = (p(x).reshape(*x.shape[:-1], -1, self.head_dim) for p in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        out, cache = here.attend(x, q, k, v, cache, causal=causal, **dict(self.options))
        return self.out(out.reshape(*x.shape[:-1], -1)), cache


__all__ = ["Attention"]
