"""Rotary position embeddings (Su et al. 2021) and all that configs make of them."""

from flax_pos.functional.rope.apply import (
    apply_rope,
    rope_tables,
    rotate,
    rotate_by_delta,
    rotate_tables,
)
from flax_pos.functional.rope.axes import Axes
from flax_pos.functional.rope.grids import Grid, grid_positions, grid_segments, mrope_positions
from flax_pos.functional.rope.hf_layers import RopeLayer, Temperature, rope_layers
from flax_pos.functional.rope.layout import permute_layout
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
    "Grid",
    "Layout",
    "Linear",
    "Llama3",
    "LongRope",
    "NTKAware",
    "Proportional",
    "RopeLayer",
    "RopeSpec",
    "Scaling",
    "Temperature",
    "Yarn",
    "apply_rope",
    "grid_positions",
    "grid_segments",
    "mrope_positions",
    "ntk_by_parts",
    "permute_layout",
    "rope_layers",
    "rope_tables",
    "rotate",
    "rotate_by_delta",
    "rotate_tables",
    "rotate_with_tables",
]
