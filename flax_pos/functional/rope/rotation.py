"""Rotating pairs of channels by an angle."""

from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.phase import exact_cos_sin

Layout = Literal["half", "interleaved", "interleaved_in_half_out"]
"""Which channels form a pair, of R rotated ones.

`half`: i and i + R/2 (Llama, GPT-NeoX, Gemma, Qwen). `interleaved`: 2i and 2i + 1 (GPT-J, GLM,
Cohere, the RoPE paper). `interleaved_in_half_out`: pairs are read as interleaved and written as
half (DeepSeek-V3); scores equal those of `interleaved`.
"""
LAYOUTS = get_args(Layout)


def apply_rope(x, positions, theta=10000.0, *, layout: Layout = "half", rotary_dim=None):
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864, equation 34).

    The pair i of every head is turned by `positions * theta ** (-2 i / rotary_dim)` radians.

    Args:
      x: `*B T N H` queries or keys, any floating dtype.
      positions: integers `*B T` (leading batch axes may be left out or 1, T may not), of 32 bits
        or more. Any int32 value, negative ones included, is exact.
      theta: base of the frequencies; a positive number, or a traced scalar.
      layout: which channels form a pair, see `Layout`.
      rotary_dim: number R of leading channels to rotate, even; the rest pass through bit for bit.
        None rotates all H.

    Returns:
      The rotated `x`, same shape and dtype. Angles are exact to 3e-7 rad at any position, cos and
      sin are float32, the result is rounded once.

    Raises:
      TypeError: `positions` are not integers, or `x` is not floating.
      ValueError: shapes do not fit, `rotary_dim` is odd or above H, an unknown layout.

    Examples:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from flax_pos.functional.rope import apply_rope
      >>> x = jnp.array([[[1.0, 2.0, 3.0, 4.0]]])  # one token, one head of width 4
      >>> print(np.asarray(apply_rope(x, jnp.array([5]))[0, 0], np.float64).round(4))
      [ 3.1604  1.7976 -0.1079  4.095 ]
      >>> print(np.asarray(apply_rope(x, jnp.array([5]), layout="interleaved")[0, 0]).round(4))
      [ 2.2015 -0.3916  2.7963  4.1449]
    """
    check_theta(theta)
    head_dim = head_dim_of(x)
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    check_rotary_dim(rotary_dim, head_dim)
    positions = align_positions(positions, x)
    cos, sin = exact_cos_sin(positions, ladder(theta, rotary_dim), table_dtype(x))
    return rotate_with_tables(x, cos, sin, layout=layout)


def rotate_with_tables(
    x: Float[Array, "*B T N H"],
    cos: Float[Array, "*BT F"],
    sin: Float[Array, "*BT F"],
    *,
    layout: Layout = "half",
) -> Float[Array, "*B T N H"]:
    """Turns pair i of every head of `x` by the angle whose cosine and sine are given.

    Args:
      x: `*B T N H`.
      cos, sin: `*B T F` (leading axes may be left out or 1), as `rope_tables` makes them; the
        first 2F channels are rotated. Products are formed in the wider of the dtypes of `x` and
        the tables, so float32 tables round a 16-bit `x` once.
      layout: see `Layout`.

    Returns:
      Shape and dtype of `x`.
    """
    check_layout(layout)
    width = 2 * cos.shape[-1]
    if cos.shape != sin.shape or width > head_dim_of(x):
        raise ValueError(
            f"cos and sin must be `*B T F` with 2 F at most the head width {x.shape[-1]}, got "
            f"shapes {cos.shape} and {sin.shape}"
        )
    cos, sin = (_align(t, x, name)[..., None, :] for t, name in ((cos, "cos"), (sin, "sin")))
    dtype = x.dtype if x.dtype == cos.dtype else max(x.dtype, cos.dtype, key=_bytes)
    head, rest = x[..., :width], x[..., width:]
    a, b = split_pairs(head.astype(dtype), layout)
    cos, sin = cos.astype(dtype), sin.astype(dtype)
    axis = -1 if layout == "interleaved" else -2
    out = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis)
    out = out.reshape(head.shape).astype(x.dtype)
    return jnp.concatenate([out, rest], -1) if rest.shape[-1] else out


def split_pairs(x, layout: Layout):
    """First and second members of all pairs, each `... F`."""
    if layout == "half":
        return jnp.split(x, 2, -1)
    return x[..., ::2], x[..., 1::2]


def table_dtype(x):
    """float32 for every `x` but float64."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def align_positions(positions, x):
    """int32 positions with as many axes as `*B T` of `x`."""
    positions = jnp.asarray(positions)
    if not jnp.issubdtype(positions.dtype, jnp.integer) or positions.dtype.itemsize < 4:
        raise TypeError(
            f"positions must be integers of 32 bits or more, got {positions.dtype}; float and "
            "16-bit positions cannot tell neighbouring tokens of a long sequence apart"
        )
    return _align(positions[..., None].astype(jnp.int32), x, "positions")[..., 0]


def _align(table, x, name: str):
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


def _bytes(dtype) -> int:
    return dtype.itemsize


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
