"""Rotary position embeddings (Su et al. 2021) and all that configs make of them."""

from flax_pos.functional.rope.apply import (
    apply_rope,
    rope_tables,
    rotate,
    rotate_by_delta,
    rotate_tables,
)
from flax_pos.functional.rope.axes import Axes
from flax_pos.functional.rope.rotation import LAYOUTS, Layout, rotate_with_tables
from flax_pos.functional.rope.scaling import (
    SCALINGS,
    Default,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    NTKAware,
    Proportional,
    Scaling,
    Yarn,
    ntk_by_parts,
)
from flax_pos.functional.rope.spec import RopeSpec

__all__ = [
    "LAYOUTS",
    "SCALINGS",
    "Axes",
    "Default",
    "DynamicNTK",
    "Layout",
    "Linear",
    "Llama3",
    "LongRope",
    "NTKAware",
    "Proportional",
    "RopeSpec",
    "Scaling",
    "Yarn",
    "apply_rope",
    "ntk_by_parts",
    "rope_tables",
    "rotate",
    "rotate_by_delta",
    "rotate_tables",
    "rotate_with_tables",
]
