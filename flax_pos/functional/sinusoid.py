"""The fixed sine and cosine table of the original Transformer, at any position."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from flax_pos.functional.angles import cos_sin_at
from flax_pos.functional.fields import check_number
from flax_pos.functional.rope.frequencies import powers_of_traced

SinusoidLayout = Literal["interleaved", "half", "half_cos_first"]
SinusoidDenominator = Literal["half", "half_minus_one"]


def check_sinusoid(layout: str, denominator: str, theta) -> None:
    """Raises ValueError where a setting of `sinusoidal` makes no sense."""
    if layout not in get_args(SinusoidLayout):
        raise ValueError(f"layout must be one of {get_args(SinusoidLayout)}, got {layout!r}")
    if denominator not in get_args(SinusoidDenominator):
        raise ValueError(
            f"denominator must be one of {get_args(SinusoidDenominator)}, got {denominator!r}"
        )
    check_number("theta", theta, above=0)


def sinusoidal(
    positions: Num[Array, "*B T"],
    width: int,
    *,
    layout: SinusoidLayout = "interleaved",
    theta: float | Array = 10000.0,
    denominator: SinusoidDenominator = "half",
) -> Float[Array, "*B T D"]:
    """Sines and cosines of `position * theta ** (-i / n)` (Vaswani et al. 2017, section 3.5).

    Args:
      positions: integers of at least 32 bits, or float32 where tokens are placed at real numbers;
        the phase of a whole position is exact however far it is.
      width: D, also odd: the last channel is then a sine (`"half"`) or zero (`"half_minus_one"`).
      layout: `"interleaved"`: sin, cos, sin, cos, ... (the paper, DistilBERT). `"half"`: all
        sines, then all cosines (tensor2tensor, Marian, Whisper). `"half_cos_first"`: cosines
        first (MusicGen).
      theta: base of the geometric progression of wavelengths.
      denominator: n. `"half"`: D / 2, the paper's. `"half_minus_one"`: D // 2 - 1, so that the
        slowest frequency is exactly 1 / theta (tensor2tensor, fairseq, Whisper).

    Returns:
      float32.

    Raises:
      TypeError: integers of 8 or 16 bits, or 16-bit floats; a width that is no integer.
      ValueError: an unknown layout or denominator, or a width that is too small.

    >>> [round(float(v), 6) for v in sinusoidal(jnp.array([2]), 5)[0]]
    [0.909297, -0.416147, 0.050217, 0.998738, 0.001262]
    """
    check_sinusoid(layout, denominator, theta)
    if isinstance(width, bool) or not isinstance(width, int | np.integer):
        raise TypeError(f"width must be an integer, got {width!r}")
    if width < 1 or (denominator == "half_minus_one" and width < 4):
        least = 1 if denominator == "half" else 4
        raise ValueError(
            f"width must be at least {least} with denominator {denominator!r}, got {width}"
        )
    paper = denominator == "half"
    sines = -(-width // 2) if paper else width // 2
    cosines = width // 2
    exponents = -np.arange(sines) / (width / 2 if paper else width // 2 - 1)
    if isinstance(theta, jax.Array):
        inv_freq = powers_of_traced(theta, exponents)
    else:
        inv_freq = np.float64(theta) ** exponents
    cos, sin = cos_sin_at(positions, inv_freq)
    cos = cos[..., :cosines]
    if layout == "interleaved":
        pairs = jnp.stack([sin[..., :cosines], cos], axis=-1)
        table = pairs.reshape(*pairs.shape[:-2], 2 * cosines)
        table = jnp.concatenate([table, sin[..., cosines:]], axis=-1)
    else:
        table = jnp.concatenate([sin, cos] if layout == "half" else [cos, sin], axis=-1)
    if table.shape[-1] < width:
        table = jnp.concatenate([table, jnp.zeros_like(table[..., :1])], axis=-1)
    return table
