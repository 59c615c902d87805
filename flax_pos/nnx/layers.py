"""Norms and products as the block uses them, with the model's dtypes and axis names."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_pos.functional.dot import token_dot_general
from flax_pos.functional.norm import layer_norm, rms_norm
from flax_pos.nnx.config import ModelConfig
from flax_pos.nnx.params import axes, named


class Norm(nnx.Module):
    """RMSNorm or LayerNorm over the last axis, as the config says; the dtype of x is kept.

    Args:
      shape: of the scale: `D`, or `N D` for one scale per head.
      bias: whether a LayerNorm has a bias; None: as the config says.
    """

    def __init__(self, config: ModelConfig, *shape: int, bias: bool | None = None):
        dtype, names = jnp.dtype(config.param_dtype), (None,) * len(shape)
        self.scale = named(jnp.full(shape, 1 - config.norm_offset, dtype), *names)
        biased = config.norm == "layer" and (config.norm_bias if bias is None else bias)
        self.bias = nnx.data(named(jnp.zeros(shape, dtype), *names) if biased else None)
        self.rms = config.norm == "rms"
        self.eps = config.norm_eps
        self.offset = config.norm_offset

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        scale = self.scale[...]
        if self.offset:
            scale = scale.astype(jnp.float32) + self.offset
        if self.rms:
            return rms_norm(x, scale, eps=self.eps)
        bias = None if self.bias is None else self.bias[...]
        return layer_norm(x, scale, bias, eps=self.eps)


def linear(
    config: ModelConfig,
    fan_in: int,
    fan_out: int,
    names: tuple[str | None, str | None],
    *,
    bias: bool = False,
    residual: bool = False,
    rngs: nnx.Rngs,
) -> nnx.Linear:
    """A product in the model's dtype.

    Args:
      names: logical axis names of the kernel.
      residual: whether it writes to the residual stream (then it starts smaller).
    """
    std = config.residual_std if residual else config.init_std
    return nnx.Linear(
        fan_in,
        fan_out,
        use_bias=bias,
        dtype=config.compute_dtype,
        param_dtype=jnp.dtype(config.param_dtype),
        kernel_init=nnx.initializers.normal(std),
        dot_general=token_dot_general,
        kernel_metadata=axes(*names),
        bias_metadata=axes(names[1]),
        rngs=rngs,
    )


__all__ = ["Norm", "linear"]
