"""Checks of the settings of schemes: each names the setting, its value and what would be right."""

import math
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def check_number(name: str, value, *, above=None, at_least=None, below=None, at_most=None) -> None:
    """Raises unless `value` is a finite number within the bounds; traced values, as a sweep puts
    in place of a float, pass.

    Raises:
      TypeError: not a number. ValueError: not finite, or out of bounds.
    """
    check_scalar(name, value)
    if isinstance(value, Tracer):
        return
    bounds = {
        "above": (above, lambda bound: value > bound),
        "at least": (at_least, lambda bound: value >= bound),
        "below": (below, lambda bound: value < bound),
        "at most": (at_most, lambda bound: value <= bound),
    }
    set_bounds = [(words, bound, ok) for words, (bound, ok) in bounds.items() if bound is not None]
    if not math.isfinite(value) or not all(ok(bound) for _, bound, ok in set_bounds):
        wanted = " and ".join(f"{words} {bound}" for words, bound, _ in set_bounds) or "finite"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def check_scalar(name: str, value) -> None:
    """Raises TypeError unless `value` is one real number: of Python, NumPy or JAX, or traced."""
    if isinstance(value, jax.Array | np.ndarray):
        real = value.ndim == 0 and not jnp.issubdtype(value.dtype, jnp.bool_)
        if real and not jnp.issubdtype(value.dtype, jnp.complexfloating):
            return
        raise TypeError(f"{name} must be one number, got shape {value.shape} {value.dtype}")
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")


def check_integer(name: str, value, *, at_least: int = 1) -> None:
    """Raises unless `value` is a whole number of at least `at_least`.

    Raises:
      TypeError: not an int. ValueError: too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        hint = "; settings are plain data: int(...)" if isinstance(value, np.integer) else ""
        raise TypeError(f"{name} must be a whole number, got {value!r}{hint}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")


def check_flag(name: str, value) -> None:
    """Raises TypeError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_at_most(name: str, value, setting: str, bound: int) -> None:
    """Raises ValueError if `value`, known already, exceeds the setting that bounds it; a traced
    value and an open length of an exported program pass."""
    known = isinstance(value, int | np.integer | jax.Array) and not isinstance(value, Tracer)
    if known and value > bound:
        raise ValueError(f"{name} {value} exceeds {setting}={bound}; make {setting} larger")


def check_ids(name: str, value) -> None:
    """Raises unless `value` is a tuple of at least one token id.

    Raises:
      TypeError: not a tuple of ints. ValueError: empty, or a negative id.
    """
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a tuple of token ids, got {value!r}")
    if not value:
        raise ValueError(f"{name} must hold at least one token id")
    for i, token in enumerate(value):
        check_integer(f"{name}[{i}]", token, at_least=0)


__all__ = [
    "check_at_most",
    "check_flag",
    "check_ids",
    "check_integer",
    "check_number",
    "check_scalar",
]
