"""The fixed sinusoidal table of the original Transformer, added to the token embeddings."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.sinusoid import (
    SinusoidDenominator,
    SinusoidLayout,
    check_sinusoid,
    sinusoidal,
)
from flax_pos.scheme import Scheme, register


@register("sinusoidal")
@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Scheme):
    """`amplitude * PE[pos]` on top of the token embeddings.

    The paper adds PE (RMS 0.71) to embeddings that it scales by sqrt(D) to RMS 1. Models today
    start with embeddings of RMS 0.02 and no scale, which a PE of amplitude 1 would drown.
    """

    layout: SinusoidLayout = "interleaved"
    theta: float = 10000.0
    denominator: SinusoidDenominator = "half"
    amplitude: float = 1.0

    paper = "Vaswani et al. 2017, arXiv:1706.03762"
    formula = "x + a PE, PE[p, 2m] = sin(p theta^(-2m/D)), PE[p, 2m+1] = cos(p theta^(-2m/D))"
    relative = False

    def __post_init__(self):
        check_sinusoid(self.layout, self.denominator, self.theta)

    def embed(self, params, x, pos):
        table = sinusoidal(
            pos,
            x.shape[-1],
            layout=self.layout,
            theta=self.theta,
            denominator=self.denominator,
        )
        return (x.astype(jnp.float32) + self.amplitude * table).astype(x.dtype)
