"""Token embeddings and position encodings for JAX and Flax, and the lab that compares them."""

from flax_pos.attention import attend, prepare
from flax_pos.checks import (
    PositionCheckError,
    check_cache_equivalence,
    check_left_padding,
    check_packing,
    check_position_sensitivity,
    check_relative,
)
from flax_pos.functional.distance import (
    alibi_bias,
    alibi_slopes,
    log_buckets,
    query_temperature,
    t5_buckets,
)
from flax_pos.functional.embedding import (
    embed,
    init_embedding,
    nearest_tokens,
    soft_cap,
    unembed,
)
from flax_pos.functional.lookup import lookup
from flax_pos.functional.loss import linear_cross_entropy
from flax_pos.functional.positions import positions_from_mask, positions_from_segments
from flax_pos.functional.rope import (
    RopeSpec,
    apply_rope,
    mrope_positions,
    permute_layout,
    rope_layers,
    rope_tables,
    rotate,
    rotate_by_delta,
)
from flax_pos.functional.sinusoid import sinusoidal
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
    "PositionCheckError",
    "RopeSpec",
    "Scheme",
    "Wrapper",
    "alibi_bias",
    "alibi_slopes",
    "apply_rope",
    "attend",
    "check_cache_equivalence",
    "check_left_padding",
    "check_packing",
    "check_position_sensitivity",
    "check_relative",
    "embed",
    "from_dict",
    "get_scheme",
    "init_embedding",
    "linear_cross_entropy",
    "list_schemes",
    "log_buckets",
    "lookup",
    "mrope_positions",
    "nearest_tokens",
    "permute_layout",
    "positions_from_mask",
    "positions_from_segments",
    "prepare",
    "query_temperature",
    "register",
    "rope_layers",
    "rope_tables",
    "rotate",
    "rotate_by_delta",
    "sinusoidal",
    "soft_cap",
    "t5_buckets",
    "to_dict",
    "unembed",
]
