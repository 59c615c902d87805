"""Rotary embedding for attention of your own."""

from dataclasses import replace

from flax import nnx
from jaxtyping import Array, Float, Int

from flax_pos.functional.rope import RopeSpec, rotate


class Rope(nnx.Module):
    """Rotates q and k by their positions; it has no parameters.

    Args:
      spec: which rotation; the plain one by default.
      fields: fields of `RopeSpec` to change, such as `theta` or `layout`.

    >>> import jax.numpy as jnp
    >>> rope = Rope(theta=500000.0)
    >>> rope(jnp.ones((1, 3, 2, 8)), jnp.array([[0, 1, 2]])).shape
    (1, 3, 2, 8)
    """

    def __init__(self, spec: RopeSpec | None = None, **fields):
        self.spec = replace(RopeSpec() if spec is None else spec, **fields)

    def __call__(
        self, x: Float[Array, "*B T N H"], positions: Int[Array, "*B T"], *, seq_len=None
    ) -> Float[Array, "*B T N H"]:
        """`x` (q or k) rotated; see `flax_pos.functional.rope.rotate`."""
        return rotate(x, positions, self.spec, seq_len=seq_len)


__all__ = ["Rope"]
