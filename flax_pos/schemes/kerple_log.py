"""A penalty that grows with the logarithm of distance, with two trained numbers per head."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.curves import LEAST, distances, kerple_log
from flax_pos.functional.fields import check_number
from flax_pos.scheme import Scheme, register


@register("kerple_log")
@dataclass(frozen=True, kw_only=True)
class KerpleLog(Scheme):
    """`-p log(1 + a |i - j|)` on the logits; p and a are trained, shared by all layers and read as
    0.01 where they fall below it."""

    p_init: float = 2.0
    """p starts uniform between 0 and this."""
    a_init: float = 1.0
    """a starts uniform between 0 and this."""

    paper = "Chi et al. 2022, arXiv:2205.09921"
    formula = "b = -p_n log(1 + a_n |i - j|), p_n, a_n > 0 trained"

    def __post_init__(self):
        check_number("p_init", self.p_init, above=0)
        check_number("a_init", self.a_init, above=0)

    def init_model(self, key, dims):
        p, a = jax.random.uniform(key, (2, dims.heads), jnp.float32)
        return {"p": self.p_init * p, "a": self.a_init * a}

    def bias(self, params, q_at, k_at, heads):
        p, a = (jnp.maximum(params[name].astype(jnp.float32), LEAST) for name in "pa")
        return kerple_log(distances(q_at.pos, k_at.pos), p, a)
