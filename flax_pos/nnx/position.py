"""A position scheme with its parameters for all layers of a model."""

import jax
from flax import nnx

from flax_pos.attention.place import Placement, adopt_params, init_positions, place
from flax_pos.nnx.params import arrays
from flax_pos.scheme import LayerPlan, Scheme, plan_layers
from flax_pos.types import Dims, Params


class PositionEncoding(nnx.Module):
    """A scheme and its parameters for all layers; the maths stays in the scheme.

    In a model of your own, once per forward and then once per layer:

        x, placement = self.position(x, mask=mask)
        for number, layer in enumerate(self.layers):
            here = placement.layer(number)
            q, k, at = here.prepare(h, q, k)
            out = attend(here.scheme, here.params, q, k, v, at, at)

    Args:
      scheme: any scheme, also one that differs by layer.
      dims: sizes of the model.
    """

    def __init__(self, scheme: Scheme, dims: Dims, *, rngs: nnx.Rngs):
        self.scheme = scheme
        self.dims = dims
        params = init_positions(plan_layers(scheme, dims.layers), rngs.params(), dims)
        self.params = nnx.data(jax.tree.map(nnx.Param, params))

    def resolve(self, scheme: Scheme | None = None) -> tuple[LayerPlan, Params]:
        """The schemes by layer and their parameters, of the own scheme or of another one.

        Raises:
          ValueError: `scheme` needs parameters that this module does not have.
        """
        plan, params = plan_layers(self.scheme, self.dims.layers), arrays(self.params)
        if scheme is None or scheme is self.scheme:
            return plan, params
        wanted = plan_layers(scheme, self.dims.layers)
        return wanted, adopt_params(plan, params, wanted, self.dims)

    def __call__(
        self, x: jax.Array, *, scheme: Scheme | None = None, **where
    ) -> tuple[jax.Array, Placement]:
        """Positions of one forward.

        Args:
          x: token embeddings `*B T D`.
          scheme: another scheme for this call, with the same parameters.
          where: `positions`, `mask`, `segments`, `start`, `length`, `key` and `ids`, as in
            `flax_pos.attention.place`.

        Returns:
          x with positions added, and the placement whose `layer(number)` each layer reads.
        """
        plan, params = self.resolve(scheme)
        return place(plan, params, self.dims, x, **where)


__all__ = ["PositionEncoding"]
