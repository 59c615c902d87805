"""A small call of `attend`, to be changed in one thing."""

import jax.numpy as jnp
from draws import normal

from flax_pos import Coords, attend, get_scheme

NONE = get_scheme("none")()
ALIBI = get_scheme("alibi")()


def arrays(batch=(2,), length=9, heads=4, kv_heads=2, width=8, value=8, dtype=jnp.float32):
    shapes = (heads, width), (kv_heads, width), (kv_heads, value)
    return [normal((*batch, length, *shape), n, dtype) for n, shape in enumerate(shapes)]


def coords(batch=(2,), length=9, pad=0):
    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32) - pad, (*batch, length)).clip(-1)
    return Coords(index, jnp.maximum(index, 0))


def call(scheme=NONE, xs=None, at=None, **options):
    at = coords() if at is None else at
    return attend(scheme, {}, *(arrays() if xs is None else xs), at, at, **options)
