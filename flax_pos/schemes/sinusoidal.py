"""The fixed sinusoidal table of the original Transformer, added to the token embeddings."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.fields import check_number
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
    """`x + amplitude * PE[pos]`.

    The paper adds PE to sqrt(D) times the embeddings; without that factor PE drowns them. Here
    the whole sum is divided by sqrt(D) instead, so that embeddings keep the scale that they have
    under every other scheme: PE has amplitude 1 / sqrt(D). In a model that scales its embeddings
    itself (`embed_scale`), set `amplitude=1.0`.
    """

    layout: SinusoidLayout = "interleaved"
    theta: float = 10000.0
    denominator: SinusoidDenominator = "half"
    amplitude: float | None = None
    """Factor on PE; None: `D ** -0.5`."""

    paper = "Vaswani et al. 2017, arXiv:1706.03762"
    formula = (
        "x + PE / sqrt(D), PE[p, 2m] = sin(p theta^(-2m/D)), PE[p, 2m+1] = cos(p theta^(-2m/D))"
    )
    relative = False

    def __post_init__(self):
        check_sinusoid(self.layout, self.denominator, self.theta)
        if self.amplitude is not None:
            check_number("amplitude", self.amplitude, above=0)

    def embed(self, params, x, pos):
        table = sinusoidal(
            pos,
            x.shape[-1],
            layout=self.layout,
            theta=self.theta,
            denominator=self.denominator,
        )
        amplitude = x.shape[-1] ** -0.5 if self.amplitude is None else self.amplitude
        return (x.astype(jnp.float32) + amplitude * table).astype(x.dtype)
