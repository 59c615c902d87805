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
      rows: rows of the embedding where it has surplus ones, which are never read; None: V.
      tied: whether `attend` uses the embedding; otherwise a `head` (D x V) of its own.
      head_bias: whether logits have a bias.
      scale: factor on the embedding vectors; None for none.
      round_scale: round the factor to `dtype` first, as Gemma does.
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
        rows: int | None = None,
        tied: bool = True,
        head_bias: bool = False,
        scale: float | None = None,
        round_scale: bool = False,
        stddev: float = 0.02,
        dtype=None,
        param_dtype=jnp.float32,
        out_of_range: OutOfRange = "nan",
        rngs: nnx.Rngs,
    ):
        params = init_embedding(
            rngs.params(),
            rows or vocab_size,
            width,
            tied=tied,
            stddev=stddev,
            dtype=param_dtype,
            head_bias=head_bias,
        )
        self.embedding = named(params["embedding"], "vocab", "embed")
        self.head = nnx.data(None if tied else named(params["head"], "embed", "vocab"))
        self.head_bias = nnx.data(named(params["head_bias"], "vocab") if head_bias else None)
        self.vocab_size = vocab_size
        self.scale = scale
        self.round_scale = round_scale
        self.dtype = dtype
        self.out_of_range: OutOfRange = out_of_range

    def params(self) -> dict[str, jax.Array]:
        """What the pure functions take: `{"embedding": V x D, ...}`."""
        own = {"embedding": self.embedding, "head": self.head, "head_bias": self.head_bias}
        return {name: variable[...] for name, variable in own.items() if variable is not None}

    def __call__(self, ids: Int[Array, "*B T"]) -> Float[Array, "*B T D"]:
        """Vectors of `ids` in `dtype`."""
        return embed(
            self.params(),
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
        """float32 logits of hidden vectors `h`.

        Args:
          scale: factor on the logits.
          softcap: c in c tanh(logits / c), which comes last.
        """
        options = {"scale": scale, "softcap": softcap, "vocab_size": self.vocab_size}
        return unembed(self.params(), h, **options)


__all__ = ["Embed"]
