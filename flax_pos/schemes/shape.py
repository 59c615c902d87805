"""Absolute positions made shift-invariant by a random offset in training (SHAPE)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.fields import check_integer
from flax_pos.scheme import Scheme, Wrapper, register
from flax_pos.schemes.sinusoidal import Sinusoidal
from flax_pos.schemes.two_level import refuse_two_levels


@register("shape")
@dataclass(frozen=True, kw_only=True)
class Shape(Wrapper):
    """All positions of a forward are moved by one random number in training, none in evaluation.

    One draw serves all rows of a forward; give rows keys of their own with `jax.vmap`.
    """

    inner: Scheme = Sinusoidal()  # noqa: RUF009 - frozen
    max_offset: int = 500

    paper = "Kiyono et al. 2021, arXiv:2109.05644"
    formula = "pos = i + k, k ~ U(0, K)"

    def __post_init__(self):
        super().__post_init__()
        refuse_two_levels(self)
        check_integer("max_offset", self.max_offset, at_least=0)

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        rest = None
        if key is not None:
            own, rest = jax.random.split(key)
            offset = jax.random.randint(own, (), 0, self.max_offset + 1).astype(index.dtype)
            index = jnp.where(index < 0, index, index + offset)
        return self.inner.positions(index, length=length, key=rest, ids=ids, prev=prev)
