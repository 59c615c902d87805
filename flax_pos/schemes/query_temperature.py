"""Queries that grow with the logarithm of their position, block by block (Llama 4)."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.distance import query_temperature
from flax_pos.functional.fields import check_integer, check_number
from flax_pos.scheme import Scheme, register


@register("query_temperature")
@dataclass(frozen=True, kw_only=True)
class QueryTemperature(Scheme):
    """`q (1 + scale log(1 + floor((i + offset) / length)))`: Llama 4's layers without positions.
    Ministral 3 has length 16384 and offset 0."""

    scale: float = 0.1
    length: int = 8192
    offset: int = 1

    paper = "Meta 2025, Llama 4; Nakanishi 2025, arXiv:2501.19399"
    formula = "q_i (1 + s log(1 + floor((i + o) / L)))"
    relative = False
    toy = {"length": 8}

    def __post_init__(self):
        check_number("scale", self.scale)
        check_integer("length", self.length)
        check_integer("offset", self.offset, at_least=0)

    def features(self, pos, dims):
        factor = query_temperature(pos, scale=self.scale, length=self.length, offset=self.offset)
        return {"temperature": factor}

    def rotate(self, params, x, at, side):
        if side == "k":
            return x
        factor = at.feats["temperature"][..., None, None]
        return (x.astype(jnp.float32) * factor).astype(x.dtype)
