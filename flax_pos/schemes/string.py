"""STRING: far distances are shifted down onto those that training has seen often."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.angles import logits_at
from flax_pos.functional.distance import relative_positions
from flax_pos.functional.fields import check_integer
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.rotation import Layout, check_layout
from flax_pos.scheme import Scheme, register


@register("string")
@dataclass(frozen=True, kw_only=True)
class ShiftedRope(Scheme):
    """RoPE with distance `i - j - shift + near` from `shift` on, exact before it. Distances near
    the training length are rare in training; this reads them as shorter ones, within it too.

    Not the learned rotations that share the name (arXiv:2502.02562): see `learnable_rope`.
    """

    shift: int = 1365
    """S: distances below it are exact. A third of the length trained on, here of 4096."""
    near: int = 128
    """W: what a distance of S is read as."""
    theta: float = 10000.0
    layout: Layout = "half"

    paper = "An et al. 2024, arXiv:2410.18745"
    formula = "q_i.R_r k_j / sqrt(H), r = i - j if i - j < S else i - j - S + W"
    causal_only = True
    toy = {"shift": 8, "near": 3}

    def __post_init__(self):
        check_integer("shift", self.shift)
        check_integer("near", self.near)
        if self.near > self.shift:
            raise ValueError(f"near must be at most shift={self.shift}, got {self.near}")
        check_theta(self.theta)
        check_layout(self.layout)

    def scores(self, params, pair, carry):
        inv_freq = ladder(self.theta, pair.q.shape[-1])
        q_pos, k_pos = pair.q_at.pos, pair.k_at.pos
        exact = logits_at(pair, q_pos, k_pos, inv_freq, layout=self.layout)
        far = logits_at(pair, q_pos - (self.shift - self.near), k_pos, inv_freq, layout=self.layout)
        distance = -relative_positions(q_pos, k_pos)[..., None, :, :]
        logits = jnp.where(distance < self.shift, exact, far)
        return super().scores(params, pair._replace(logits=logits), carry)
