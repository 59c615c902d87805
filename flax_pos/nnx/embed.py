"""Token embeddings and the head, which may be one matrix."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from flax_pos.functional.embedding import embed, init_embedding, unembed
from flax_pos.functional.lookup import OutOfRange
from flax_pos.nnx.params import named


class Embed(nnx.Module):
    """Token ids to vectors, and back to logits with `attend`.

    A tied head has no parameter of its own: `attend` reads the embedding, and its gradient is the
    sum of both uses.

    Args:
      vocab_size: V.
      width: D.
      tied: whether `attend` uses the embedding; otherwise a `head` (D x V) of its own.
      scale: factor on the embedding vectors; None for none.
      stddev: of the initial values.
      dtype: of the vectors given out; None: that of the parameters.
      param_dtype: of the parameters.
      out_of_range: what a bad id does, as in `flax_pos.embed`.

    >>> layer = Embed(5, 3, rngs=nnx.Rngs(0))
    >>> layer(jnp.array([[1, 4]])).shape
    (1, 2, 3)
    """

    def __init__(
        self,
        vocab_size: int,
        width: int,
        *,
        tied: bool = True,
        scale: float | None = None,
        stddev: float = 0.02,
        dtype=None,
        param_dtype=jnp.float32,
        out_of_range: OutOfRange = "nan",
        rngs: nnx.Rngs,
    ):
        params = init_embedding(
            rngs.params(), vocab_size, width, tied=tied, stddev=stddev, dtype=param_dtype
        )
        self.embedding = named(params["embedding"], "vocab", "embed")
        self.head = nnx.data(None if tied else named(params["head"], "embed", "vocab"))
        self.scale = scale
        self.dtype = dtype
        self.out_of_range: OutOfRange = out_of_range

    def params(self) -> dict[str, jax.Array]:
        """What the pure functions take: `{"embedding": V x D[, "head": D x V]}`."""
        head = {} if self.head is None else {"head": self.head[...]}
        return {"embedding": self.embedding[...], **head}

    def __call__(self, ids: Int[Array, "*B T"]) -> Float[Array, "*B T D"]:
        """Vectors of `ids` in `dtype`."""
        return embed(
            self.params(), ids, scale=self.scale, dtype=self.dtype, out_of_range=self.out_of_range
        )

    def attend(
        self, h: Float[Array, "*B T D"], *, softcap: float | None = None
    ) -> Float[Array, "*B T V"]:
        """float32 logits of hidden vectors `h`."""
        return unembed(self.params(), h, softcap=softcap)


__all__ = ["Embed"]
