"""Which layers of a model use which scheme."""

import dataclasses
from typing import Any, NamedTuple

import jax

from flax_pos.scheme.base import Scheme
from flax_pos.scheme.registry import check_scheme


class LayerPlan(NamedTuple):
    """How a model's layers use schemes: the distinct ones, and which layer uses which."""

    parts: tuple[Scheme, ...]
    """Distinct schemes in order of first use."""
    part_of: tuple[int, ...]
    """For each layer the index into `parts`."""
    period: int
    """Smallest number of layers after which the pattern repeats (it divides the layer count)."""


def plan_layers(scheme: Scheme, layers: int) -> LayerPlan:
    """The layer plan of a model with `layers` layers.

    Raises:
      TypeError: `scheme` is the name or the class of one.
    """
    check_scheme(scheme)
    parts: list[Scheme] = []
    part_of = []
    for layer in range(layers):
        own = scheme.for_layer(layer)
        at = next((i for i, part in enumerate(parts) if _same(part, own)), None)
        if at is None:
            at = len(parts)
            parts.append(own)
        part_of.append(at)
    repeats = (
        p
        for p in range(1, layers + 1)
        if layers % p == 0 and all(part_of[i] == part_of[i % p] for i in range(layers))
    )
    return LayerPlan(tuple(parts), tuple(part_of), next(repeats))


def _same(a: Any, b: Any) -> bool:
    """Equality of settings, in which an array is equal to itself alone: a swept field holds a
    tracer, which has no truth value."""
    if a is b:
        return True
    if type(a) is not type(b) or isinstance(a, jax.Array):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if dataclasses.is_dataclass(a):
        fields = (field.name for field in dataclasses.fields(a))
        return all(_same(getattr(a, name), getattr(b, name)) for name in fields)
    return a == b


__all__ = ["LayerPlan", "plan_layers"]
