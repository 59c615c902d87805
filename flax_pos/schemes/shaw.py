"""A trained vector per relative distance, added to the key."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.distance import relative_positions
from flax_pos.functional.fields import check_integer, check_number
from flax_pos.scheme import Scheme, register


@register("shaw")
@dataclass(frozen=True, kw_only=True)
class Shaw(Scheme):
    """`q_i . (k_j + a[clip(j - i)])`, one table per layer, shared by heads. The paper's second
    table, for values, is left out as in most later work: the hooks do not touch values.

    Distances are clipped because the caller says so by `max_distance`; no T x S x H array is
    built, queries meet the table first.
    """

    max_distance: int = 16
    """Distances beyond it share the last vector of their side."""
    stddev: float = 0.02

    paper = "Shaw et al. 2018, arXiv:1803.02155"
    formula = "s = q_i.(k_j + a[clip(j - i, -K, K)]) / sqrt(H)"
    toy = {"max_distance": 4}

    def __post_init__(self):
        check_integer("max_distance", self.max_distance)
        check_number("stddev", self.stddev, at_least=0)

    def init_layer(self, key, dims):
        shape = (2 * self.max_distance + 1, dims.head_dim)
        return {"table": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def scores(self, params, pair, carry):
        content, carry = super().scores(params, pair, carry)
        table = params["table"].astype(jnp.float32)
        at_rows = jnp.einsum("...tnh,rh->...ntr", pair.q.astype(jnp.float32), table)
        distance = relative_positions(pair.q_at.pos, pair.k_at.pos)
        row = jnp.clip(distance, -self.max_distance, self.max_distance) + self.max_distance
        row = jnp.floor(row).astype(jnp.int32)[..., None, :, :]
        return content + pair.scale * jnp.take_along_axis(at_rows, row, -1), carry
