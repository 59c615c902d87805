"""A trained vector per relative distance, added to the key, and one added to the value."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.distance import relative_positions
from flax_pos.functional.fields import check_flag, check_integer, check_number
from flax_pos.scheme import Scheme, register


@register("shaw")
@dataclass(frozen=True, kw_only=True)
class Shaw(Scheme):
    """`q_i . (k_j + a[clip(j - i)])`, one table per layer, shared by heads; with `values` a second
    table is added to the values that the weights sum up.

    Distances are clipped because the caller says so by `max_distance`; no T x S x H array is
    built: queries meet the first table, and weights are summed per row of the second.
    """

    max_distance: int = 16
    """Distances beyond it share the last vector of their side."""
    stddev: float = 0.02
    values: bool = False
    """Whether values have a table too. The paper has it; later work mostly leaves it out."""

    paper = "Shaw et al. 2018, arXiv:1803.02155"
    formula = "s = q_i.(k_j + a[r]) / sqrt(H), r = clip(j - i, -K, K); with values v_j + b[r]"
    toy = {"max_distance": 4, "values": True}

    def __post_init__(self):
        check_integer("max_distance", self.max_distance)
        check_number("stddev", self.stddev, at_least=0)
        check_flag("values", self.values)

    @property
    def uses(self):
        return super().uses if self.values else super().uses - {"mix"}

    def init_layer(self, key, dims):
        names = ("table", "values") if self.values else ("table",)
        shape = (2 * self.max_distance + 1, dims.head_dim)
        draw = lambda key: self.stddev * jax.random.normal(key, shape, jnp.float32)
        return dict(zip(names, map(draw, jax.random.split(key, len(names))), strict=True))

    def scores(self, params, pair, carry):
        content, carry = super().scores(params, pair, carry)
        table = params["table"].astype(jnp.float32)
        at_rows = jnp.einsum("...tnh,rh->...ntr", pair.q.astype(jnp.float32), table)
        row = self._row(pair.q_at, pair.k_at)
        return content + pair.scale * jnp.take_along_axis(at_rows, row, -1), carry

    def mix(self, params, weights, v, q_at, k_at):
        out = super().mix(params, weights, v, q_at, k_at)
        if not self.values:
            return out
        table = params["values"].astype(jnp.float32)
        if table.shape[-1] != v.shape[-1]:
            raise ValueError(
                f"values=True adds vectors as wide as keys ({table.shape[-1]}) to values, "
                f"which are {v.shape[-1]} wide"
            )
        take = lambda of_rows: jnp.take_along_axis(of_rows, self._row(q_at, k_at), -1)
        blank = jnp.zeros_like(weights[..., :1])
        _, pull = jax.vjp(take, jnp.broadcast_to(blank, (*weights.shape[:-1], table.shape[0])))
        (of_rows,) = pull(weights)
        return out + jnp.einsum("...ntr,rh->...nth", of_rows, table)

    def _row(self, q_at, k_at):
        """`*B 1 T S`: which vector stands between two tokens."""
        distance = relative_positions(q_at.pos, k_at.pos)
        row = jnp.clip(distance, -self.max_distance, self.max_distance) + self.max_distance
        return jnp.floor(row).astype(jnp.int32)[..., None, :, :]
