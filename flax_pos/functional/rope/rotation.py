"""Rotating pairs of channels by an angle."""

from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flax_pos.functional.rope.turn import turn

Layout = Literal["half", "interleaved", "interleaved_in_half_out"]
"""Which channels form a pair, of R rotated ones.

`half`: i and i + R/2 (Llama, GPT-NeoX, Gemma, Qwen). `interleaved`: 2i and 2i + 1 (GPT-J, GLM,
Cohere, the RoPE paper). `interleaved_in_half_out`: pairs are read as interleaved and written as
half (DeepSeek-V3); scores equal those of `interleaved`.
"""
LAYOUTS = get_args(Layout)


def rotate_with_tables(
    x: Float[Array, "*B T N H"],
    cos: Float[Array, "*BT F"],
    sin: Float[Array, "*BT F"],
    *,
    layout: Layout = "half",
    trailing: bool = False,
    blocks: int = 1,
    inverse: bool = False,
) -> Float[Array, "*B T N H"]:
    """Turns pair i of every head of `x` by the angle whose cosine and sine are given.

    Args:
      x: `*B T N H`.
      cos, sin: `*B T F` (leading axes may be left out or 1), as `rope_tables` makes them: 2F
        channels are rotated, the others pass through bit for bit. Products are formed in the
        wider of the dtypes of `x` and the tables, so that float32 tables round a 16-bit `x` once.
      layout: see `Layout`.
      trailing: rotate the last 2F channels instead of the first.
      blocks: number of equal blocks of channels that the pairs stay inside of.
      inverse: turn back what the same call without it has turned.

    Returns:
      Shape and dtype of `x`.
    """
    check_layout(layout)
    width = 2 * cos.shape[-1]
    head_dim = head_dim_of(x)
    if cos.shape != sin.shape or width > head_dim:
        raise ValueError(
            f"cos and sin must be `*B T F` with 2 F at most the head width {head_dim}, got "
            f"shapes {cos.shape} and {sin.shape}"
        )
    cos, sin = (align(t, x, name) for t, name in ((cos, "cos"), (sin, "sin")))
    start = head_dim - width if trailing else 0
    return turn(x, cos, sin, layout=layout, start=start, blocks=blocks, inverse=inverse)


def align(table, x, name: str):
    """`table` (`*B T F`) with as many axes as `x` less its heads; only batch axes broadcast."""
    shape, want = table.shape[:-1], x.shape[:-2]
    missing = len(want) - len(shape)
    fits = (
        missing >= 0
        and len(shape) > 0
        and shape[-1] == want[-1]
        and all(s in (1, w) for s, w in zip(shape[:-1], want[missing:-1], strict=True))
    )
    if not fits:
        raise ValueError(
            f"{name} must have the axes *B T of x, {want} (batch axes may be 1 or left out), got "
            f"{shape}; x is `*B T N H` with shape {x.shape}"
        )
    return table.reshape(*[1] * missing, *table.shape)


def head_dim_of(x) -> int:
    """H of `*B T N H`."""
    if x.ndim < 3:
        raise ValueError(f"x must be `*B T N H`, at least three axes, got shape {x.shape}")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x must be floating, got {x.dtype}")
    return x.shape[-1]


def check_layout(layout) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")


def check_rotary_dim(rotary_dim, head_dim: int) -> None:
    if isinstance(rotary_dim, bool) or not isinstance(rotary_dim, int | np.integer):
        raise TypeError(f"rotary_dim must be an integer, got {rotary_dim!r}")
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ValueError(
            f"rotary_dim must be even and between 2 and the head width {head_dim}, got {rotary_dim}"
        )
