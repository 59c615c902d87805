"""Rotary position embeddings."""

from flax_pos.functional.rope.rotation import LAYOUTS, Layout, apply_rope, rotate_with_tables

__all__ = ["LAYOUTS", "Layout", "apply_rope", "rotate_with_tables"]
