"""One transformer block: attention and MLP, with norms, each added to the residual stream."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_pos.attention.cache import KVCache
from flax_pos.attention.place import LayerPositions
from flax_pos.nnx.attention import Attention
from flax_pos.nnx.config import ModelConfig
from flax_pos.nnx.layers import Norm, linear

ACTIVATIONS = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(jnp.asarray(1.702, x.dtype) * x),
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
}


class MLP(nnx.Module):
    """down(act(up x)), or gated: down(act(gate x) * up x) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width, hidden, bias = config.width, config.hidden_width, config.mlp_bias
        make = lambda: linear(config, width, hidden, ("embed", "mlp"), bias=bias, rngs=rngs)
        self.gate = nnx.data(make() if config.mlp == "gated" else None)
        self.up = make()
        self.down = linear(
            config, hidden, width, ("mlp", "embed"), bias=bias, residual=True, rngs=rngs
        )
        self.activation = config.activation
        self.clip, self.offset = config.mlp_clip, config.mlp_offset

    def __call__(self, x: Float[Array, "*B T D"]) -> Float[Array, "*B T D"]:
        act = ACTIVATIONS[self.activation]
        up = self.up(x)
        if self.gate is None:
            return self.down(act(up))
        gate = self.gate(x)
        if self.clip is not None:
            gate, up = jnp.minimum(gate, self.clip), jnp.clip(up, -self.clip, self.clip)
        return self.down(act(gate) * (up + self.offset if self.offset else up))


class Block(nnx.Module):
    """Attention and MLP; where their norms are and whether they run side by side is the config's
    to say (`norm_at`, `residual`)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        norm = lambda wanted: nnx.data(Norm(config, config.width) if wanted else None)
        before = config.norm_at in ("input", "both")
        after = config.norm_at in ("output", "both")
        of_sum = config.norm_at == "sum"
        self.attention_norm = norm(before or of_sum)
        self.attention = Attention(config, rngs=rngs)
        self.attention_out_norm = norm(after)
        self.mlp_norm = norm((before or of_sum) and config.residual != "parallel_one_norm")
        self.mlp = MLP(config, rngs=rngs)
        self.mlp_out_norm = norm(after)
        self.parallel = config.residual != "sequential"
        self.norm_of_sum = of_sum

    def __call__(
        self, x: Float[Array, "*B T D"], here: LayerPositions, cache: KVCache | None = None
    ) -> tuple[Float[Array, "*B T D"], KVCache | None]:
        """The stream after this block, and the cache with these tokens added."""
        if self.norm_of_sum:
            out, cache = self.attention(x, here, cache)
            x = _apply(self.attention_norm, x + out)
            return _apply(self.mlp_norm, x + self.mlp(x)), cache
        h = _apply(self.attention_norm, x)
        out, cache = self.attention(h, here, cache)
        if self.parallel:
            h = h if self.mlp_norm is None else self.mlp_norm(x)
            return x + out + self.mlp(h), cache
        x = x + _apply(self.attention_out_norm, out)
        out = self.mlp(_apply(self.mlp_norm, x))
        return x + _apply(self.mlp_out_norm, out), cache


def _apply(norm: Norm | None, x):
    return x if norm is None else norm(x)


__all__ = ["MLP", "Block"]
