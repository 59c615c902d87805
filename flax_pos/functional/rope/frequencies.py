"""The ladder of frequencies that every RoPE variant starts from."""

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from flax_pos.functional.rope.settings import as_number


def ladder(theta, dim: int, count: int | None = None):
    """`theta ** (-2 i / dim)` for i = 0 .. count - 1 (Su et al. 2021, equation 15).

    Args:
      theta: base; a number, or a traced scalar.
      dim: the width that the exponents are spread over, even.
      count: number of frequencies; None means `dim / 2`.

    Returns:
      Radians per token: NumPy float64, each the double nearest to the real number; or, for a
      traced `theta`, a traced float32 array: NaN where it turns out to be no legal base.
    """
    count = dim // 2 if count is None else count
    if isinstance(theta, Tracer):
        exponents = np.arange(0, 2 * count, 2) / dim
        return powers_of_traced(theta, -exponents)
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


def powers_of_traced(theta, exponents):
    """`theta ** exponents` in float32; all NaN where `check_theta` would have refused `theta`."""
    theta = jnp.asarray(theta, jnp.float32)
    powers = theta ** jnp.asarray(exponents, jnp.float32)
    return jnp.where((theta > 0) & (theta <= 1e30), powers, jnp.nan)


def reference_ladder(theta, dim: int, count: int | None = None):
    """The ladder with each step rounded to float32, in the order of the reference: the exponent,
    the power, its reciprocal."""
    count = dim // 2 if count is None else count
    if isinstance(theta, Tracer):
        return ladder(theta, dim, count)
    exponents = np.arange(0, 2 * count, 2, dtype=np.float32) / np.float32(dim)
    return np.float32(1) / (np.float64(theta) ** exponents).astype(np.float32)


def check_theta(theta):
    """`theta` as a positive float; a traced scalar passes.

    Raises:
      ValueError: it is not a positive finite number.
    """
    if isinstance(theta, Tracer):
        if theta.shape != ():
            raise ValueError(f"theta must be a scalar, got shape {theta.shape}")
        return theta
    if np.ndim(theta) == 0 and isinstance(theta, jax.Array):
        theta = float(theta)
    theta = as_number(theta, "theta")
    if not 0 < theta <= 1e30:
        raise ValueError(f"theta must be positive and at most 1e30, got {theta}")
    return theta


__all__ = ["check_theta", "ladder", "powers_of_traced", "reference_ladder"]
