"""Stick-breaking attention: from the nearest key back, each takes its part of what is left."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.decay import suffix_sums
from flax_pos.scheme import Scheme, register

NOTHING = -1e30
"""Logarithm of a weight that is zero."""


@register("stick_breaking")
@dataclass(frozen=True, kw_only=True)
class StickBreaking(Scheme):
    """The weight of a key is the sigmoid of its logit times what the keys after it left over.

    There is no softmax, a query does not see itself, and what all keys leave over is dropped (the
    first token's output is zero). Recent keys come first, so no positions are needed.
    """

    paper = "Tan et al. 2024, arXiv:2410.17980"
    formula = "A_ij = sigmoid(z_ij) prod_{j < t < i} (1 - sigmoid(z_it)), z = q.k / sqrt(H), j < i"
    causal_only = True
    normalized = False

    def scores(self, params, pair, carry):
        logits, _ = super().scores(params, pair, None)
        q, k = pair.q_at.index[..., :, None], pair.k_at.index[..., None, :]
        seen = pair.mask & (k < q)[..., None, :, :]
        log_left = jnp.where(seen, jax.nn.log_sigmoid(-logits), 0.0)
        total, new_carry = suffix_sums(log_left, carry)
        log_weight = jax.nn.log_sigmoid(logits) + (total - log_left)
        return jnp.where(seen, log_weight, NOTHING), new_carry
