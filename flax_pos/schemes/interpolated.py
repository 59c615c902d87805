"""Position interpolation: a longer text squeezed into the positions trained on."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.fields import check_number
from flax_pos.scheme import Scheme, Wrapper, register
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.two_level import refuse_two_levels


@register("interpolated")
@dataclass(frozen=True, kw_only=True)
class Interpolated(Wrapper):
    """Positions divided by `factor`: tokens are placed at real numbers, for any inner scheme
    that can do that. (For RoPE the scaling law `linear` is the same by way of frequencies.)"""

    inner: Scheme = Rope()  # noqa: RUF009 - frozen
    factor: float = 4.0
    """Length to come over length trained on."""

    paper = "Chen et al. 2023, arXiv:2306.15595"
    formula = "pos = i / s"

    def __post_init__(self):
        super().__post_init__()
        refuse_two_levels(self)
        check_number("factor", self.factor, above=0)

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        pos = self.inner.positions(index, length=length, key=key, ids=ids, prev=prev)
        return pos.astype(jnp.float32) / jnp.asarray(self.factor, jnp.float32)
