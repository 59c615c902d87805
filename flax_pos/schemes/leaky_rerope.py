"""Leaky rectified RoPE: distances beyond a window grow more slowly."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.angles import logits_at
from flax_pos.functional.distance import relative_positions
from flax_pos.functional.fields import check_integer
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.rotation import Layout, check_layout
from flax_pos.scheme import Scheme, register


@register("leaky_rerope")
@dataclass(frozen=True, kw_only=True)
class LeakyReRope(Scheme):
    """RoPE with distance `near + (i - j - near) / slowdown` beyond `near`, exact before it."""

    near: int = 512
    """Distances below it are exact."""
    slowdown: int = 16
    """Tokens per step of distance beyond it."""
    theta: float = 10000.0
    layout: Layout = "half"

    paper = "Su 2023, kexue.fm/archives/9708"
    formula = "q_i.R_r k_j / sqrt(H), r = i - j if i - j < w else w + (i - j - w) / k"
    causal_only = True
    toy = {"near": 6, "slowdown": 4}

    def __post_init__(self):
        check_integer("near", self.near)
        check_integer("slowdown", self.slowdown)
        check_theta(self.theta)
        check_layout(self.layout)

    def scores(self, params, pair, carry):
        inv_freq = ladder(self.theta, pair.q.shape[-1])
        q_pos, k_pos = pair.q_at.pos, pair.k_at.pos
        exact = logits_at(pair, q_pos, k_pos, inv_freq, layout=self.layout)
        # Frequencies are divided instead of positions, which stay whole.
        ahead = q_pos + self.near * (self.slowdown - 1)
        far = logits_at(pair, ahead, k_pos, inv_freq / self.slowdown, layout=self.layout)
        distance = -relative_positions(q_pos, k_pos)[..., None, :, :]
        logits = jnp.where(distance < self.near, exact, far)
        return super().scores(params, pair._replace(logits=logits), carry)
