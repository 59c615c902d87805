"""The ladder of frequencies that every RoPE variant starts from."""

import math
from decimal import Decimal, localcontext

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def ladder(theta, dim: int, count: int | None = None):
    """`theta ** (-2 i / dim)` for i = 0 .. count - 1 (Su et al. 2021, equation 15).

    Args:
      theta: base; a number, or a traced scalar.
      dim: the width that the exponents are spread over, even.
      count: number of frequencies; None means `dim / 2`.

    Returns:
      Radians per token: NumPy float64, each the double nearest to the real number; or, for a
      traced `theta`, a traced float32 array.
    """
    count = dim // 2 if count is None else count
    if isinstance(theta, Tracer):
        exponents = np.arange(0, 2 * count, 2) / dim
        return theta.astype(jnp.float32) ** jnp.asarray(-exponents, jnp.float32)
    # Powers of one high-precision ratio, as integers: correctly rounded and cheaper than `count`
    # calls of a high-precision power.
    with localcontext() as context:
        context.prec = 60
        ratio = Decimal(float(theta)) ** (Decimal(-2) / Decimal(dim))
        one = 1 << 192
        step = int(ratio * one)
    out, power = [], one
    for _ in range(count):
        out.append(power / one)
        power = power * step >> 192
    return np.array(out, np.float64)


def check_theta(theta) -> None:
    """Raises ValueError unless `theta` is a positive finite number (traced values pass)."""
    if isinstance(theta, Tracer):
        if theta.shape != ():
            raise ValueError(f"theta must be a scalar, got shape {theta.shape}")
        return
    if np.ndim(theta) != 0 or isinstance(theta, bool | str | None):
        raise TypeError(f"theta must be a number, got {theta!r}")
    if not (math.isfinite(theta) and theta > 0):
        raise ValueError(f"theta must be positive and finite, got {theta!r}")


__all__ = ["check_theta", "ladder"]
