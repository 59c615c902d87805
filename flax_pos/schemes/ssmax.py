"""Scalable softmax: logits grow with the logarithm of the number of keys, so that attention does
not flatten as the text grows."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.fields import check_number
from flax_pos.functional.shapes import beside
from flax_pos.scheme import Scheme, register


@register("ssmax")
@dataclass(frozen=True, kw_only=True)
class SSMax(Scheme):
    """Queries at position i are multiplied by `s_n log(i + 1)`, s trained per head and layer."""

    s_init: float = 0.43
    """Initial s: what the paper's fits come out at, about 1 / log 10."""

    paper = "Nakanishi 2025, arXiv:2501.19399"
    formula = "logits x s_n log(n), n = i + 1 keys"
    relative = False
    causal_only = True

    def __post_init__(self):
        check_number("s_init", self.s_init)

    def init_layer(self, key, dims):
        return {"s": jnp.full((dims.heads,), self.s_init, jnp.float32)}

    def features(self, pos, dims):
        return {"log_keys": jnp.log1p(jnp.maximum(pos, 0).astype(jnp.float32))}

    def rotate(self, params, x, at, side):
        if side == "k":
            return x
        factor = at.feats["log_keys"][..., None]
        factor = factor * beside(params["s"], factor)
        return (x.astype(jnp.float32) * factor[..., None]).astype(x.dtype)
