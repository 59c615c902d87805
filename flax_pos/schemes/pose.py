"""Positions of a longer text, trained on short ones: one gap in the middle, at random."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.fields import check_at_most, check_integer
from flax_pos.scheme import Scheme, Wrapper, register
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.two_level import refuse_two_levels


@register("pose")
@dataclass(frozen=True, kw_only=True)
class PoSE(Wrapper):
    """In training, all tokens after a random point of the first half are moved on by a random
    number, so that positions stay below `target`. Without a key positions are as they come.

    One draw serves all rows of a forward; give rows keys of their own with `jax.vmap`.
    """

    inner: Scheme = Rope()  # noqa: RUF009 - frozen
    target: int = 16384
    """Length of the texts to come."""

    paper = "Zhu et al. 2024, arXiv:2309.10400"
    formula = "pos = i if i < c else i + u, c ~ U(1, L/2), u ~ U(0, target - L)"

    def __post_init__(self):
        super().__post_init__()
        refuse_two_levels(self)
        check_integer("target", self.target)

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        if key is None:
            return self.inner.positions(index, length=length, ids=ids, prev=prev)
        check_at_most("length", length, "target", self.target)
        cut_key, skip_key, rest = jax.random.split(key, 3)
        cut = jax.random.randint(cut_key, (), 1, (length + 1) // 2 + 1)
        skip = jax.random.randint(skip_key, (), 0, self.target - length + 1)
        index = index + jnp.where(index >= cut, skip, 0).astype(index.dtype)
        return self.inner.positions(index, length=length, key=rest, ids=ids, prev=prev)
