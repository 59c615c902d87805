"""Queries and keys of unit root mean square, without weights (Llama 4's layers with RoPE)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.fields import check_number
from flax_pos.scheme import Scheme, register


@register("qk_norm")
@dataclass(frozen=True, kw_only=True)
class QKNorm(Scheme):
    """`x / sqrt(mean(x ** 2) + eps)` over each head of q and of k. Rotations keep the norm, so
    before or after them is the same; in a stack it can be had in some layers only."""

    eps: float = 1e-5

    paper = "Henry et al. 2020, arXiv:2010.04245"
    formula = "q / rms(q), k / rms(k)"

    def __post_init__(self):
        check_number("eps", self.eps, above=0)

    def rotate(self, params, x, at, side):
        wide = x.astype(jnp.float32)
        norm = jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + self.eps)
        return (wide * norm).astype(x.dtype)
