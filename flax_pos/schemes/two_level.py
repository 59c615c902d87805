"""What schemes share that place a token twice: in a table of their own and for an inner scheme."""

import jax
import jax.numpy as jnp

from flax_pos.functional.lookup import lookup
from flax_pos.scheme import Scheme, Wrapper, merge


def needs_ids(scheme: Scheme, ids):
    """`ids`, which must be there."""
    if ids is None:
        raise ValueError(f"scheme {scheme.name!r} reads token ids; pass ids to positions")
    return ids


def refuse_two_levels(scheme: Wrapper) -> None:
    """Raises ValueError if a scheme that moves positions was put around one that holds two numbers
    in each and tells the start of a text by its plain positions."""
    inner = two_level_in(scheme.inner)
    if inner is not None:
        raise ValueError(
            f"{scheme.name!r} moves positions, and those of {inner.name!r} hold two numbers each: "
            f"put it inside, {type(inner).__name__}(inner={type(scheme).__name__}(...))"
        )


def two_level_in(scheme: Scheme) -> "TwoLevel | None":
    """The first two-level scheme that `scheme` is or holds."""
    if isinstance(scheme, TwoLevel):
        return scheme
    parts = getattr(scheme, "parts", ()) or (getattr(scheme, "inner", None),)
    found = (two_level_in(part) for part in parts if part is not None)
    return next((one for one in found if one is not None), None)


class TwoLevel(Wrapper):
    """`pos` holds two numbers in one: which row of a trained table is added to the embedding, and
    where the inner scheme sees the token, which must be a whole number. A negative `pos` is a
    token that cannot be placed; its lookup raises, or gives NaN where ids are traced.

    A subclass has the fields `rows` and `stddev` and the method `levels`.
    """

    rows: int
    stddev: float
    relative = False

    def _fits(self, plain, room: int):
        """Whether `plain * room`, with less than `room` added, is an int32."""
        return plain < (2**31 - 1) // room

    def levels(self, pos):
        """The row of the table and the inner scheme's position of each `pos` that is not
        negative."""
        raise NotImplementedError

    @property
    def uses(self):
        return self.inner.uses | {"init_model", "positions", "embed"}

    def _plain(self, index, **given):
        """Where the inner scheme puts tokens."""
        pos = self.inner.positions(index, **given)
        if not jnp.issubdtype(pos.dtype, jnp.integer):
            raise ValueError(
                f"inner scheme {self.inner.name!r} puts tokens at real numbers, and "
                f"{self.name!r} keeps whole ones; for RoPE a scaling law of its spec does the same"
            )
        return pos

    def _inner(self, at):
        return at._replace(pos=self.levels(at.pos)[1])

    def init_model(self, key, dims):
        inner_key, own_key = jax.random.split(key)
        table = self.stddev * jax.random.normal(own_key, (self.rows, dims.width), jnp.float32)
        return merge(self.inner.init_model(inner_key, dims), {"rows": table})

    def embed(self, params, x, pos):
        row, inner_pos = self.levels(pos)
        row = jnp.where(pos < 0, pos, row)
        own = lookup(params["rows"], row, name="position", dtype=jnp.float32)
        return self.inner.embed(params, (x.astype(jnp.float32) + own).astype(x.dtype), inner_pos)

    def features(self, pos, dims):
        return self.inner.features(self.levels(pos)[1], dims)

    def coords(self, params, x, at, prev):
        prev = None if prev is None else self._inner(prev)
        return self.inner.coords(params, x, self._inner(at), prev)._replace(pos=at.pos)

    def rotate(self, params, x, at, side):
        return self.inner.rotate(params, x, self._inner(at), side)

    def bias(self, params, q_at, k_at, heads):
        return self.inner.bias(params, self._inner(q_at), self._inner(k_at), heads)

    def scores(self, params, pair, carry):
        pair = pair._replace(q_at=self._inner(pair.q_at), k_at=self._inner(pair.k_at))
        return self.inner.scores(params, pair, carry)

    def mix(self, params, weights, v, q_at, k_at):
        return self.inner.mix(params, weights, v, self._inner(q_at), self._inner(k_at))
