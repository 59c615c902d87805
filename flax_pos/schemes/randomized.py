"""Positions drawn in order from a much longer range, so that all of them are trained."""

from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from flax_pos.functional.fields import check_at_most, check_integer
from flax_pos.functional.lookup import rows_at
from flax_pos.scheme import Scheme, Wrapper, register
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.two_level import refuse_two_levels

Evaluation = Literal["random", "identity"]


@register("randomized")
@dataclass(frozen=True, kw_only=True)
class Randomized(Wrapper):
    """A sorted random subset of 0 .. range - 1 takes the place of 0 .. length - 1.

    One draw serves all rows of a forward; give rows keys of their own with `jax.vmap`. Without a
    key, as in evaluation, the draw is a fixed one. Tokens past the length, and past the range where
    a length known only at run time exceeds it, go on after the range.
    """

    inner: Scheme = Rope()  # noqa: RUF009 - frozen
    range: int = 2048
    """Length of the range, at least that of any text to come."""
    evaluation: Evaluation = "random"
    """Positions without a key: `"random"` ones as in training (the paper's way), or as they
    come."""

    paper = "Ruoss et al. 2023, arXiv:2305.16843"
    formula = "pos = sort(subset of T out of 0 .. range - 1, without replacement)"

    def __post_init__(self):
        super().__post_init__()
        refuse_two_levels(self)
        check_integer("range", self.range)
        if self.evaluation not in get_args(Evaluation):
            raise ValueError(
                f"evaluation must be one of {get_args(Evaluation)}, got {self.evaluation!r}"
            )

    @property
    def depends_on_length(self):
        return self.evaluation == "random" or self.inner.depends_on_length

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        own, rest = (None, None) if key is None else jax.random.split(key)
        if own is None and self.evaluation == "random":
            own = jax.random.key(0)
        if own is not None:
            index = self._draw(own, index, length)
        return self.inner.positions(index, length=length, key=rest, ids=ids, prev=prev)

    def _draw(self, key, index, length):
        check_at_most("length", length, "range", self.range)
        chosen = jax.random.permutation(key, self.range) < length
        places = jnp.argsort(~chosen)  # those that are chosen first, in order
        drawn = rows_at(places[:, None], jnp.clip(index, 0, self.range - 1))[..., 0]
        length = jnp.minimum(length, self.range)  # a longer one, traced, takes all of the range
        beyond = self.range + index - length
        drawn = jnp.where(index < length, drawn.astype(index.dtype), beyond.astype(index.dtype))
        return jnp.where(index < 0, index, drawn)
