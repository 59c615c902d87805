"""A scheme that nobody would use: what an architecture does when its positions say nothing."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.fields import check_number
from flax_pos.scheme import Scheme, Wrapper, register
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.two_level import refuse_two_levels


@register("shuffled")
@dataclass(frozen=True, kw_only=True)
class Shuffled(Wrapper):
    """`inner` with every token at a position drawn at random: anew at each training step, always
    the same in evaluation. What it scores, a scheme scores without any order but the mask's."""

    inner: Scheme = Rope()  # noqa: RUF009 - frozen
    span: int = 1024
    """Positions are uniform over 0 .. span - 1."""

    formula = "pos = a random number for each token"
    relative = False

    def __post_init__(self):
        super().__post_init__()
        refuse_two_levels(self)
        check_number("span", self.span, above=0)

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        key = jax.random.key(0) if key is None else key
        flat = jnp.maximum(index, 0).reshape(-1)
        draw = lambda i: jax.random.randint(jax.random.fold_in(key, i), (), 0, self.span, jnp.int32)
        return jax.vmap(draw)(flat).reshape(index.shape)
