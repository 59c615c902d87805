"""Schemes as plain data: numbers, strings, lists and dicts, as JSON and TOML hold them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from flax_pos.scheme.base import Scheme
from flax_pos.scheme.registry import get_scheme


def to_dict(scheme: Scheme) -> dict[str, Any]:
    """`{"name": ..., field: value, ...}` out of numbers, strings, booleans, None, lists and dicts,
    as JSON and TOML hold them (nested schemes become nested dicts)."""
    if not scheme.name:
        raise ValueError(
            f"{type(scheme).__name__} is not registered, so it has no name to be read back by: "
            'decorate it with @register("some_name")'
        )
    fields = {f.name: _plain(getattr(scheme, f.name)) for f in dataclasses.fields(scheme)}
    return {"name": scheme.name, **fields}


def _plain(value):
    if isinstance(value, Scheme):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "to_plain"):  # settings objects of floor 1, such as RopeSpec
        return value.to_plain()
    return value


def from_dict(spec: Mapping[str, Any]) -> Scheme:
    """The inverse of `to_dict`.

    Raises:
      TypeError: `spec` is no mapping.
      ValueError: no `name`, an unknown scheme, or an unknown field; the message names it and
        lists what is known.
    """
    if not isinstance(spec, Mapping):
        raise TypeError(f"a scheme must be a table such as {{'name': 'rope'}}, got {spec!r}")
    fields = dict(spec)
    if "name" not in fields:
        raise ValueError(f"a scheme needs the key 'name', got keys {sorted(fields)}")
    cls = get_scheme(fields.pop("name"))
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(fields.keys() - known.keys())
    if unknown:
        raise ValueError(
            f"scheme {cls.name!r} has no field {unknown[0]!r}; fields: {sorted(known)}"
        )
    return cls(**{name: _rich(value, known[name].type) for name, value in fields.items()})


def _rich(value, annotation):
    for kind in (annotation, *get_args(annotation)):  # also the members of `Settings | None`
        if isinstance(value, Mapping) and hasattr(kind, "from_plain"):
            return kind.from_plain(value)
    if isinstance(value, Mapping) and "name" in value:
        return from_dict(value)
    if isinstance(value, list | tuple):
        return tuple(_rich(v, None) for v in value)
    return value


__all__ = ["from_dict", "to_dict"]
