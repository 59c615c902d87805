"""Attention that knows position schemes only through their hooks."""

from flax_pos.attention.dense import attend_dense
from flax_pos.attention.layer import prepare

attend = attend_dense

__all__ = ["attend", "attend_dense", "prepare"]
