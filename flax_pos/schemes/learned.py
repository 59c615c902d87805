"""A trained vector per position, added to the token embeddings."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.fields import check_integer, check_number
from flax_pos.functional.lookup import lookup
from flax_pos.functional.positions import check_positions
from flax_pos.scheme import Scheme, register


@register("learned")
@dataclass(frozen=True, kw_only=True)
class Learned(Scheme):
    """`table[pos]` on top of the token embeddings. Undefined past the table: a concrete position
    raises, a traced one gives NaN; never the last row again."""

    stddev: float = 0.02
    """Of the initial table; GPT-2's."""
    offset: int = 0
    """Rows before that of position 0 (OPT and BART: 2); the table has max_len + offset rows."""

    paper = "Gehring et al. 2017, arXiv:1705.03122"
    formula = "x + W[p], W trained, p < n_ctx"
    relative = False
    unbounded = False

    def __post_init__(self):
        check_integer("offset", self.offset, at_least=0)
        check_number("stddev", self.stddev, at_least=0)

    def init_model(self, key, dims):
        shape = (dims.max_len + self.offset, dims.width)
        return {"table": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def embed(self, params, x, pos):
        table = params["table"][self.offset :]
        pos = check_positions(pos)
        rows = lookup(table, pos, padding_index=-1, name="position", dtype=jnp.float32)
        return (x.astype(jnp.float32) + rows).astype(x.dtype)
