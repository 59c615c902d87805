"""Self-Extend: exact positions nearby, positions in groups further away."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.angles import logits_at
from flax_pos.functional.distance import relative_positions
from flax_pos.functional.fields import check_integer
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.rotation import Layout, check_layout
from flax_pos.scheme import Scheme, register


@register("self_extend")
@dataclass(frozen=True, kw_only=True)
class SelfExtend(Scheme):
    """RoPE with distance `i // G - j // G + w - w // G` beyond w. A model trained on L tokens
    reads about `(L - w) G + w`; its authors advise to stay within half to two thirds of that."""

    near: int = 1024
    """w: distances below it are exact."""
    group: int = 8
    """G: tokens that share a position beyond it."""
    theta: float = 10000.0
    layout: Layout = "half"

    paper = "Jin et al. 2024, arXiv:2401.01325"
    formula = "q_i.R_r k_j / sqrt(H), r = i - j if i - j < w else i // G - j // G + w - w // G"
    relative = False
    causal_only = True
    toy = {"near": 6, "group": 4}

    def __post_init__(self):
        check_integer("near", self.near)
        check_integer("group", self.group)
        check_theta(self.theta)
        check_layout(self.layout)

    def scores(self, params, pair, carry):
        inv_freq = ladder(self.theta, pair.q.shape[-1])
        q_pos, k_pos = pair.q_at.pos, pair.k_at.pos
        exact = logits_at(pair, q_pos, k_pos, inv_freq, layout=self.layout)
        group = lambda pos: jnp.floor_divide(pos, self.group)
        ahead = group(q_pos) + (self.near - self.near // self.group)
        far = logits_at(pair, ahead, group(k_pos), inv_freq, layout=self.layout)
        distance = -relative_positions(q_pos, k_pos)[..., None, :, :]
        logits = jnp.where(distance < self.near, exact, far)
        return super().scores(params, pair._replace(logits=logits), carry)
