"""Flax Linen twins of the position modules: the same pure functions, so the same numbers.

Parameters are plain dicts under `params`, of the shapes that the NNX modules hold.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flax_pos.attention.place import Placement, init_positions, place, resolve
from flax_pos.functional.embedding import embed, init_embedding, unembed
from flax_pos.functional.lookup import OutOfRange
from flax_pos.functional.rope import RopeSpec, rotate
from flax_pos.scheme import Scheme, plan_layers
from flax_pos.types import Dims


class Embed(nn.Module):
    """Token ids to vectors, and back to logits with `attend`; see `flax_pos.nnx.Embed`.

    >>> layer = Embed(vocab_size=5, width=3)
    >>> variables = layer.init(jax.random.key(0), jnp.array([[1, 4]]))
    >>> variables["params"]["embedding"].shape
    (5, 3)
    """

    vocab_size: int
    width: int
    rows: int | None = None
    tied: bool = True
    head_bias: bool = False
    scale: float | None = None
    round_scale: bool = False
    stddev: float = 0.02
    dtype: Any = None
    param_dtype: Any = jnp.float32
    out_of_range: OutOfRange = "nan"

    def setup(self):
        def make(key, name):
            return init_embedding(
                key,
                self.rows or self.vocab_size,
                self.width,
                tied=self.tied,
                stddev=self.stddev,
                dtype=self.param_dtype,
                head_bias=self.head_bias,
            )[name]

        names = {"embedding": True, "head": not self.tied, "head_bias": self.head_bias}
        self.table = {name: self.param(name, make, name) for name, own in names.items() if own}

    def __call__(self, ids: Int[Array, "*B T"]) -> Float[Array, "*B T D"]:
        """Vectors of `ids` in `dtype`."""
        return embed(
            self.table,
            ids,
            scale=self.scale,
            round_scale=self.round_scale,
            dtype=self.dtype,
            vocab_size=self.vocab_size,
            out_of_range=self.out_of_range,
        )

    def attend(
        self, h: Float[Array, "*B T D"], *, scale: float = 1.0, softcap: float | None = None
    ) -> Float[Array, "*B T V"]:
        """float32 logits of hidden vectors `h`."""
        options = {"scale": scale, "softcap": softcap, "vocab_size": self.vocab_size}
        return unembed(self.table, h, **options)


class Rope(nn.Module):
    """Rotates q and k by their positions; see `flax_pos.nnx.Rope`. It has no parameters."""

    spec: RopeSpec = RopeSpec()

    def __call__(
        self, x: Float[Array, "*B T N H"], positions: Int[Array, "*B T"], *, seq_len=None
    ) -> Float[Array, "*B T N H"]:
        """`x` (q or k) rotated."""
        return rotate(x, positions, self.spec, seq_len=seq_len)


class PositionEncoding(nn.Module):
    """A scheme and its parameters for all layers of a model; see `flax_pos.nnx.PositionEncoding`.

    The parameters are one dict, `params/position`.
    """

    scheme: Scheme
    dims: Dims

    @nn.compact
    def __call__(
        self, x: Float[Array, "*B T D"], *, scheme: Scheme | None = None, **where
    ) -> tuple[Float[Array, "*B T D"], Placement]:
        """x with positions added, and the placement whose `layer(number)` each layer reads."""
        own = plan_layers(self.scheme, self.dims.layers)
        params = self.param("position", lambda key: init_positions(own, key, self.dims))
        plan, params = resolve(self.scheme, params, self.dims, scheme)
        return place(plan, params, self.dims, x, **where)


__all__ = ["Embed", "PositionEncoding", "Rope"]
