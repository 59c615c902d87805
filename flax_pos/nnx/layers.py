"""Norms and products as the block uses them: flax's own, with the model's dtypes and names."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_pos.nnx.config import ModelConfig
from flax_pos.nnx.params import axes


class RMSNorm(nnx.RMSNorm):
    """Flax's RMSNorm, computed in float32; the result has the dtype of x."""

    def __call__(self, x: Float[Array, "*A D"]) -> Float[Array, "*A D"]:
        return super().__call__(x.astype(jnp.float32)).astype(x.dtype)


class LayerNorm(nnx.LayerNorm):
    """Flax's LayerNorm, computed in float32; the result has the dtype of x."""

    def __call__(self, x: Float[Array, "*A D"]) -> Float[Array, "*A D"]:
        return super().__call__(x.astype(jnp.float32)).astype(x.dtype)


def norm(config: ModelConfig, *, rngs: nnx.Rngs) -> RMSNorm | LayerNorm:
    """The model's norm over its width."""
    if config.norm == "rms":
        return rms_norm(config, config.width, rngs=rngs)
    return LayerNorm(
        config.width,
        use_bias=config.norm_bias,
        bias_metadata=axes(None),
        **_norm_options(config),
        rngs=rngs,
    )


def rms_norm(config: ModelConfig, features: int, *, rngs: nnx.Rngs) -> RMSNorm:
    """RMSNorm over `features` channels, whatever the model's norm is."""
    return RMSNorm(features, **_norm_options(config), rngs=rngs)


def _norm_options(config: ModelConfig) -> dict[str, Any]:
    return {
        "epsilon": config.norm_eps,
        "dtype": jnp.float32,
        "param_dtype": jnp.dtype(config.param_dtype),
        "use_fast_variance": False,
        "scale_metadata": axes(None),
    }


def linear(
    config: ModelConfig,
    fan_in: int,
    fan_out: int,
    names: tuple[str, str],
    *,
    bias: bool,
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
        kernel_metadata=axes(*names),
        bias_metadata=axes(names[1]),
        rngs=rngs,
    )


__all__ = ["LayerNorm", "RMSNorm", "linear", "norm", "rms_norm"]
