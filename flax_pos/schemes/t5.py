"""A trained bias per head and bucket of relative position, shared by all layers."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.distance import check_t5_buckets, relative_positions, t5_buckets
from flax_pos.functional.fields import check_flag, check_integer
from flax_pos.functional.lookup import rows_at
from flax_pos.scheme import Scheme, register


@register("t5")
@dataclass(frozen=True, kw_only=True)
class T5(Scheme):
    """`table[bucket(key - query), n]` on the logits. T5 itself also leaves out the scale
    1 / sqrt(H) of the logits; that is an argument of attention, not of the bias."""

    bidirectional: bool = False
    num_buckets: int = 32
    max_distance: int = 128

    paper = "Raffel et al. 2020, arXiv:1910.10683"
    formula = "b = W[n, bucket(j - i)]; single distances, then geometric up to max_distance"

    def __post_init__(self):
        check_flag("bidirectional", self.bidirectional)
        check_integer("num_buckets", self.num_buckets)
        check_integer("max_distance", self.max_distance)
        check_t5_buckets(self.bidirectional, self.num_buckets, self.max_distance)

    def init_model(self, key, dims):
        shape = (self.num_buckets, dims.heads)
        return {"table": dims.width**-0.5 * jax.random.normal(key, shape, jnp.float32)}

    def bias(self, params, q_at, k_at, heads):
        buckets = t5_buckets(
            relative_positions(q_at.pos, k_at.pos),
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        rows = rows_at(params["table"].astype(jnp.float32), buckets)
        return jnp.moveaxis(rows, -1, -3)
