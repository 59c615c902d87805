"""RoPE whose pairs also fade with distance, the fast ones fastest."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from flax_pos.functional.angles import cos_sin_at
from flax_pos.functional.fields import check_number
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.rotation import Layout, check_layout, rotate_with_tables
from flax_pos.functional.shapes import beside
from flax_pos.scheme import Scheme, register


@register("xpos")
@dataclass(frozen=True, kw_only=True)
class XPos(Scheme):
    """Pair m of the product of q_i and k_j is multiplied by `zeta_m ** ((i - j) / scale_base)`.

    q carries `zeta ** (i / scale_base)` and k its inverse, both from position 0, so keys can be
    cached for good. float32 and bfloat16 hold these powers up to about position 70 scale_base
    (36 000); beyond that they overflow and the result is NaN.
    """

    theta: float = 10000.0
    gamma: float = 0.4
    """Fading of the fastest pair: `zeta_0 = gamma / (1 + gamma)`."""
    scale_base: float = 512.0
    """Distance at which pair m has faded to zeta_m."""
    layout: Layout = "half"

    paper = "Sun et al. 2022, arXiv:2212.10554"
    formula = "(R_i q_i z^(i/B)).(R_j k_j z^(-j/B)), z_m = (2m/H + gamma) / (1 + gamma)"
    causal_only = True

    def __post_init__(self):
        check_theta(self.theta)
        check_number("gamma", self.gamma, above=0)
        check_number("scale_base", self.scale_base, above=0)
        check_layout(self.layout)

    def features(self, pos, dims):
        cos, sin = cos_sin_at(pos, ladder(self.theta, dims.head_dim))
        pairs = dims.head_dim // 2
        log_zeta = jnp.log(jnp.asarray(np.arange(pairs) / pairs, jnp.float32) + self.gamma)
        log_zeta -= jnp.log1p(jnp.asarray(self.gamma, jnp.float32))
        power = pos.astype(jnp.float32)[..., None] / self.scale_base
        power = power * beside(log_zeta, power)
        return {"xpos_cos": cos, "xpos_sin": sin, "xpos_power": power}

    def rotate(self, params, x, at, side):
        power = at.feats["xpos_power"]
        grow = jnp.exp(power if side == "q" else -power)
        cos, sin = grow * at.feats["xpos_cos"], grow * at.feats["xpos_sin"]
        return rotate_with_tables(x, cos, sin, layout=self.layout)
