"""Token embeddings and position encodings for JAX and Flax, and the lab that compares them."""

from flax_pos.attention import attend
from flax_pos.scheme import (
    Scheme,
    Wrapper,
    from_dict,
    get_scheme,
    list_schemes,
    register,
    to_dict,
)
from flax_pos.types import Coords, Dims, Pair, Params

__all__ = [
    "Coords",
    "Dims",
    "Pair",
    "Params",
    "Scheme",
    "Wrapper",
    "attend",
    "from_dict",
    "get_scheme",
    "list_schemes",
    "register",
    "to_dict",
]
