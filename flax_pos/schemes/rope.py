"""Rotary position embedding."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.phase import exact_cos_sin
from flax_pos.functional.rope.rotation import Layout, check_layout, rotate_with_tables
from flax_pos.scheme import Scheme, register


@register("rope")
@dataclass(frozen=True, kw_only=True)
class Rope(Scheme):
    """Turns channel pair i of q and k by `position * theta ** (-2 i / R)` radians."""

    paper = "Su et al. 2021, arXiv:2104.09864"
    formula = "q_m . k_n = Re sum_i q_i conj(k_i) exp(1j (m - n) theta^(-2i/R))"

    theta: float = 10000.0
    """Base of the frequencies."""
    layout: Layout = "half"
    """Which channels form a pair, see `flax_pos.functional.rope.Layout`."""
    partial_rotary_factor: float = 1.0
    """Part of the head width that is rotated; the rest of the channels pass through."""

    def __post_init__(self):
        check_theta(self.theta)
        check_layout(self.layout)

    def features(self, pos, dims):
        width = int(dims.head_dim * self.partial_rotary_factor)
        cos, sin = exact_cos_sin(jnp.asarray(pos, jnp.int32), ladder(self.theta, width))
        return {"rope_cos": cos, "rope_sin": sin}

    def rotate(self, params, x, at, side):
        return rotate_with_tables(x, at.feats["rope_cos"], at.feats["rope_sin"], layout=self.layout)
