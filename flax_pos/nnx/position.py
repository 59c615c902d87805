"""A position scheme with its parameters for all layers of a model."""

import jax
from flax import nnx

from flax_pos.attention.place import Placement, init_positions, place, resolve
from flax_pos.nnx.params import arrays
from flax_pos.scheme import Scheme, plan_layers
from flax_pos.types import Dims


class PositionEncoding(nnx.Module):
    """A scheme and its parameters for all layers; the maths stays in the scheme.

    In a model of your own, once per forward and then once per layer:

        x, placement = self.position(x, mask=mask)
        for number, layer in enumerate(self.layers):
            out, _ = placement.layer(number).attend(h, q, k, v)

    Args:
      scheme: any scheme, also one that differs by layer.
      dims: sizes of the model.
    """

    def __init__(self, scheme: Scheme, dims: Dims, *, rngs: nnx.Rngs):
        self.scheme = scheme
        self.dims = dims
        params = init_positions(plan_layers(scheme, dims.layers), rngs.params(), dims)
        self.params = nnx.data(jax.tree.map(nnx.Param, params))

    def __call__(
        self, x: jax.Array, *, scheme: Scheme | None = None, **where
    ) -> tuple[jax.Array, Placement]:
        """Positions of one forward.

        Args:
          x: token embeddings `*B T D`.
          scheme: another scheme for this call, with the same parameters.
          where: `positions`, `mask`, `segments`, `caches`, `length`, `key` and `ids`, as in
            `flax_pos.attention.place`.

        Returns:
          x with positions added, and the placement whose `layer(number)` each layer reads.
        """
        plan, params = resolve(self.scheme, arrays(self.params), self.dims, scheme)
        return place(plan, params, self.dims, x, **where)


__all__ = ["PositionEncoding"]
