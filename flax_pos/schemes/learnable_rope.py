"""RoPE whose frequencies are trained."""

from dataclasses import dataclass

from flax_pos.functional.rope import Layout, RopeSpec
from flax_pos.scheme import Scheme, register
from flax_pos.schemes.rope import Rope


@register("learnable_rope")
@dataclass(frozen=True, kw_only=True)
class LearnableRope(Scheme):
    """RoPE with one trained frequency per pair and layer: `rope` with a learnable spec.

    On a line, rotations by a learned skew matrix (LieRE, STRING, ComRoPE) are this: the basis in
    which their matrix is a sequence of plane rotations is absorbed by the projections of q and k.
    """

    theta: float = 10000.0
    """Frequencies start as `theta ** (-2 m / H)`."""
    layout: Layout = "half"

    paper = "Ostmeier et al. 2024, arXiv:2406.10322; Schenck et al. 2025, arXiv:2502.02562"
    formula = "q_i.R_{i-j} k_j / sqrt(H), R_r = rotations by r w_m, w_m trained"

    def __post_init__(self):
        self._rope  # noqa: B018 - checks the fields

    @property
    def _rope(self) -> Rope:
        return Rope(spec=RopeSpec(theta=self.theta, layout=self.layout, learnable=True))

    def init_layer(self, key, dims):
        return self._rope.init_layer(key, dims)

    def rotate(self, params, x, at, side):
        return self._rope.rotate(params, x, at, side)
