"""One transformer block: attention and MLP, each behind a norm, each added to the stream."""

import functools

import jax
from flax import nnx
from jaxtyping import Array, Float

from flax_pos.attention.cache import KVCache
from flax_pos.attention.place import LayerPositions
from flax_pos.nnx.attention import Attention
from flax_pos.nnx.config import ModelConfig
from flax_pos.nnx.layers import linear, norm

ACTIVATIONS = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
}


class MLP(nnx.Module):
    """down(act(up x)), or gated: down(act(gate x) * up x) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width, hidden, bias = config.width, config.hidden_width, config.mlp_bias
        gated = config.mlp == "gated"
        self.gate = nnx.data(
            linear(config, width, hidden, ("embed", "mlp"), bias=bias, rngs=rngs) if gated else None
        )
        self.up = linear(config, width, hidden, ("embed", "mlp"), bias=bias, rngs=rngs)
        self.down = linear(
            config, hidden, width, ("mlp", "embed"), bias=bias, residual=True, rngs=rngs
        )
        self.activation = config.activation

    def __call__(self, x: Float[Array, "*B T D"]) -> Float[Array, "*B T D"]:
        act = ACTIVATIONS[self.activation]
        hidden = act(self.up(x)) if self.gate is None else act(self.gate(x)) * self.up(x)
        return self.down(hidden)


class Block(nnx.Module):
    """Pre-norm block: x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.attention_norm = norm(config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.mlp_norm = norm(config, rngs=rngs)
        self.mlp = MLP(config, rngs=rngs)

    def __call__(
        self, x: Float[Array, "*B T D"], here: LayerPositions, cache: KVCache | None = None
    ) -> tuple[Float[Array, "*B T D"], KVCache | None]:
        """The stream after this block, and the cache with these tokens added."""
        out, cache = self.attention(self.attention_norm(x), here, cache)
        x = x + out
        return x + self.mlp(self.mlp_norm(x)), cache


__all__ = ["MLP", "Block"]
