"""Frozen dataclasses to TOML and back. Strict: an unknown key or a wrong type is an error."""

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from flax_pos.lab.errors import UserError, suggest

T = TypeVar("T")


def dumps(settings: Any) -> str:
    """TOML text of a dataclass whose fields are scalars, tuples, dicts and dataclasses.

    Fields that are None are left out: TOML has no null, and None is their default.
    """
    return "\n".join(_lines(settings, ())) + "\n"


def _lines(settings: Any, path: tuple[str, ...]) -> list[str]:
    here, below = [], []
    name = getattr(settings, "name", None)
    if path and isinstance(name, str):  # registered things carry their name beside their fields
        here.append(f"name = {_value(name)}")
    items = (
        settings.items()
        if isinstance(settings, Mapping)
        else ((f.name, getattr(settings, f.name)) for f in dataclasses.fields(settings))
    )
    for key, value in items:
        if dataclasses.is_dataclass(value) or isinstance(value, Mapping):
            table = _lines(value, (*path, key))
            if table:
                below += ["", f"[{'.'.join(map(_key, (*path, key)))}]", *table]
        elif value is not None:
            here.append(f"{_key(key)} = {_value(value)}")
    return here + below


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "_").isidentifier()
    return key if bare else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, tuple | list):
        return f"[{', '.join(_value(v) for v in value)}]"
    raise TypeError(f"no TOML form for {value!r}")


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
      UserError: the file is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no config file {str(path)!r}") from None
    except OSError as error:
        raise UserError(f"cannot read config file {str(path)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}") from None


def update(settings: T, table: Mapping[str, Any], where: str = "") -> T:
    """`settings` with the values of `table`, nested tables going into nested dataclasses.

    Raises:
      UserError: an unknown key or a value of the wrong type; the message names the key with its
        table and what would be right.
    """
    hints = typing.get_type_hints(type(settings))
    known = [f.name for f in dataclasses.fields(settings) if f.init]  # type: ignore[arg-type]
    changes = {}
    for key, value in table.items():
        if key not in known:
            raise UserError(f"unknown config key {where + key!r}{suggest(key, known)}")
        current = getattr(settings, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise UserError(f"config key {where + key!r} is a table, got {value!r}")
            changes[key] = update(current, value, f"{where}{key}.")
        else:
            changes[key] = _convert(value, hints[key], where + key)
    try:
        return dataclasses.replace(settings, **changes)  # type: ignore[type-var]
    except (TypeError, ValueError) as error:
        prefix = "" if isinstance(error, UserError) or not where else f"in [{where[:-1]}]: "
        raise UserError(f"{prefix}{error}") from None


def _convert(value: Any, hint: Any, key: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in args:
            try:
                return _convert(value, option, key)
            except UserError:
                continue
        raise UserError(f"config key {key!r} must be {_name(hint)}, got {value!r}")
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(v, args[0], key) for v in value)
    if origin is dict and isinstance(value, Mapping):
        return {k: _convert(v, args[1], f"{key}.{k}") for k, v in value.items()}
    if origin is typing.Literal and value in args:
        return value
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint in (int, bool, str) and type(value) is hint:
        return value
    raise UserError(f"config key {key!r} must be {_name(hint)}, got {value!r}")


def _name(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_name(a) for a in args if a is not type(None))
    if origin is tuple:
        return f"a list of {_name(args[0])}"
    if origin is dict:
        return f"a table of {_name(args[1])}"
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(a) for a in args)
    return {int: "an integer", float: "a number", bool: "true or false", str: "a string"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )
