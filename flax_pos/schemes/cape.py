"""Absolute positions augmented in training: shifted, jittered and stretched (CAPE)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.fields import check_number
from flax_pos.scheme import Scheme, Wrapper, register
from flax_pos.schemes.sinusoidal import Sinusoidal
from flax_pos.schemes.two_level import refuse_two_levels


@register("cape")
@dataclass(frozen=True, kw_only=True)
class Cape(Wrapper):
    """Tokens are placed at real numbers: one random shift and one random stretch for all tokens
    of a forward, and a random step aside for each; none of them without a key.

    The inner scheme must be able to place tokens at real numbers. The defaults are those for
    text (machine translation).
    """

    inner: Scheme = Sinusoidal()  # noqa: RUF009 - frozen
    max_shift: float = 5.0
    max_jitter: float = 0.5
    max_stretch: float = 1.03
    """Positions are multiplied by a number between its inverse and itself."""

    paper = "Likhomanenko et al. 2021, arXiv:2106.03143"
    formula = "pos = (i + D + e_i) s, D ~ U(-a, a), e_i ~ U(-b, b), log s ~ U(-log c, log c)"

    def __post_init__(self):
        super().__post_init__()
        refuse_two_levels(self)
        check_number("max_shift", self.max_shift, at_least=0)
        check_number("max_jitter", self.max_jitter, at_least=0)
        check_number("max_stretch", self.max_stretch, at_least=1)

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        if key is None:
            return self.inner.positions(index, length=length, ids=ids, prev=prev).astype(
                jnp.float32
            )
        shift_key, jitter_key, stretch_key, rest = jax.random.split(key, 4)
        pos = self.inner.positions(index, length=length, key=rest, ids=ids, prev=prev).astype(
            jnp.float32
        )
        uniform = lambda key: jax.random.uniform(key, (), jnp.float32, -1.0, 1.0)
        # Drawn from a key of its own for each index, so that it does not matter which tokens a
        # call is about.
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jitter_key, index.reshape(-1))
        jitter = self.max_jitter * jax.vmap(uniform)(keys).reshape(index.shape)
        stretch = jnp.exp(jnp.log(jnp.float32(self.max_stretch)) * uniform(stretch_key))
        return (pos + self.max_shift * uniform(shift_key) + jitter) * stretch
