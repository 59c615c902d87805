"""Rectified RoPE: distances beyond a window all look the same."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.angles import logits_at
from flax_pos.functional.distance import relative_positions
from flax_pos.functional.fields import check_integer
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.rotation import Layout, check_layout
from flax_pos.scheme import Scheme, register


@register("rerope")
@dataclass(frozen=True, kw_only=True)
class ReRope(Scheme):
    """RoPE with distance `min(i - j, near)`: a model trained with RoPE reads any length.

    Its author scales logits by `log_n` too: `Stack(parts=(LogN(), ReRope()))`.
    """

    near: int = 512
    """Distances below it are exact."""
    theta: float = 10000.0
    layout: Layout = "half"

    paper = "Su 2023, kexue.fm/archives/9708"
    formula = "q_i.R_r k_j / sqrt(H), r = min(i - j, w)"
    causal_only = True
    toy = {"near": 6}

    def __post_init__(self):
        check_integer("near", self.near)
        check_theta(self.theta)
        check_layout(self.layout)

    def scores(self, params, pair, carry):
        inv_freq = ladder(self.theta, pair.q.shape[-1])
        q_pos, k_pos = pair.q_at.pos, pair.k_at.pos
        exact = logits_at(pair, q_pos, k_pos, inv_freq, layout=self.layout)
        fixed, zeros = jnp.full_like(q_pos, self.near), jnp.zeros_like(k_pos)
        far = logits_at(pair, fixed, zeros, inv_freq, layout=self.layout)
        distance = -relative_positions(q_pos, k_pos)[..., None, :, :]
        logits = jnp.where(distance < self.near, exact, far)
        return super().scores(params, pair._replace(logits=logits), carry)
