"""Checks of settings: every fault is a `ValueError` that names the setting and its value."""

import math

import numpy as np

LARGEST = 1e12
"""Factors above it are mistakes, and might overflow."""


def as_number(value, name: str) -> float:
    """`value` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return value


def number(owner, name: str, *, at_least=None, above=None, at_most=None) -> None:
    """Replaces the field `name` of a frozen dataclass by a checked float."""
    label = f"{getattr(owner, 'rope_type', type(owner).__name__)}: {name}"
    value = as_number(getattr(owner, name), label)
    if at_least is not None and value < at_least:
        raise ValueError(f"{label} must be at least {at_least}, got {value}")
    if above is not None and value <= above:
        raise ValueError(f"{label} must be above {above}, got {value}")
    if at_most is not None and value > at_most:
        raise ValueError(f"{label} must be at most {at_most}, got {value}")
    object.__setattr__(owner, name, value)


def as_length(value, name: str) -> int:
    """`value` as a whole number of tokens or channels."""
    checked = as_number(value, name)
    if checked != int(checked) or checked < 1 or checked > 2**31:
        raise ValueError(f"{name} must be a whole number from 1 to 2**31, got {value!r}")
    return int(checked)


def length(owner, name: str, *, at_least: int = 1) -> None:
    """Replaces the field `name` of a frozen dataclass by a checked whole number."""
    label = f"{owner.rope_type}: {name}"
    value = as_length(getattr(owner, name), label)
    if value < at_least:
        raise ValueError(f"{label} must be at least {at_least}, got {value}")
    object.__setattr__(owner, name, value)


def flag(owner, name: str) -> None:
    if not isinstance(getattr(owner, name), bool):
        raise ValueError(f"{name} must be true or false, got {getattr(owner, name)!r}")
