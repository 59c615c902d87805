"""Contextual positions: a key's position is the number of counted tokens from it to the query."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.decay import suffix_sums
from flax_pos.functional.fields import check_integer, check_number
from flax_pos.scheme import Scheme, register


@register("cope")
@dataclass(frozen=True, kw_only=True)
class Cope(Scheme):
    """Each query counts the keys from it back to a key, each by a gate on their logit, and adds
    q . e[count] with e read between its rows. One table per layer, shared by heads."""

    max_pos: int = 64
    """Rows of e; larger counts read the last. The paper's tasks use the context length + 1."""
    stddev: float = 0.0
    """Of the initial table; the paper starts from zeros."""

    paper = "Golovneva et al. 2024, arXiv:2405.18719"
    formula = "s = q_i.k_j + q_i.e[p_ij], p_ij = min(sum_{t = j..i} sigmoid(q_i.k_t), p_max - 1)"
    causal_only = True
    toy = {"max_pos": 8}

    def __post_init__(self):
        check_integer("max_pos", self.max_pos, at_least=2)
        check_number("stddev", self.stddev, at_least=0)

    def init_layer(self, key, dims):
        shape = (dims.head_dim, self.max_pos)
        return {"table": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def scores(self, params, pair, carry):
        content, _ = super().scores(params, pair, None)
        gates = jnp.where(pair.mask, jax.nn.sigmoid(pair.logits), 0.0)
        count, carry = suffix_sums(gates, carry)
        count = jnp.minimum(count, self.max_pos - 1)
        table = params["table"].astype(jnp.float32)
        at_rows = jnp.einsum("...tnh,hp->...ntp", pair.q.astype(jnp.float32), table)
        low = jax.lax.stop_gradient(jnp.floor(count)).astype(jnp.int32)
        high = jnp.minimum(low + 1, self.max_pos - 1)
        below, above = (jnp.take_along_axis(at_rows, i, -1) for i in (low, high))
        return content + below + (count - low.astype(jnp.float32)) * (above - below), carry
