"""Attention that knows position schemes only through their hooks."""

from flax_pos.attention.cache import (
    KeyPlace,
    KVCache,
    append,
    extend,
    init_cache,
    last,
    place_keys,
    ring_window,
)
from flax_pos.attention.dispatch import Implementation, attend
from flax_pos.attention.layer import attend_cached, prepare
from flax_pos.attention.mask import Reach

__all__ = [
    "Implementation",
    "KVCache",
    "KeyPlace",
    "Reach",
    "append",
    "attend",
    "attend_cached",
    "extend",
    "init_cache",
    "last",
    "place_keys",
    "prepare",
    "ring_window",
]
