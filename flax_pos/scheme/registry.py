"""Schemes by name: the package's own, those of installed packages, and the user's."""

import dataclasses
import difflib
import importlib
import importlib.metadata
import pkgutil
from typing import Any, TypeVar

from flax_pos.scheme.base import Scheme

ENTRY_POINT_GROUP = "flax_pos.schemes"
_REGISTRY: dict[str, type[Scheme]] = {}
SchemeType = TypeVar("SchemeType", bound=type[Scheme])


def register(name: str):
    """Class decorator: enters a concrete scheme under `name`.

    Raises:
      ValueError: the name is taken by another class.
      TypeError: the class is not a frozen dataclass derived from `Scheme`, or needs arguments.
    """

    def add(cls: SchemeType) -> SchemeType:
        if not (isinstance(cls, type) and issubclass(cls, Scheme)):
            raise TypeError(f"register({name!r}) is for subclasses of Scheme, got {cls!r}")
        # `dataclass` on the class itself, not inherited: otherwise its fields are not fields.
        params = vars(cls).get("__dataclass_params__")
        if params is None or not params.frozen:
            raise TypeError(
                f"{cls.__name__}: put @dataclass(frozen=True, kw_only=True) under @register"
            )
        required = [
            f.name
            for f in dataclasses.fields(cls)
            if f.init
            and f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING
        ]
        if required:
            raise TypeError(
                f"{cls.__name__}: fields {required} need defaults, so that {name!r} works alone"
            )
        taken = _REGISTRY.get(name)
        if taken is not None and (taken.__module__, taken.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise ValueError(
                f"scheme {name!r} is already registered by {taken.__module__}.{taken.__qualname__}"
            )
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return add


def _load_all() -> None:
    package = importlib.import_module("flax_pos.schemes")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        entry.load()


def list_schemes() -> tuple[str, ...]:
    """Names of all registered schemes, sorted: the package's own, those of installed packages
    (entry point group `flax_pos.schemes`) and those registered in this process."""
    _load_all()
    return tuple(sorted(_REGISTRY))


def get_scheme(name: str) -> type[Scheme]:
    """The scheme class registered under `name`.

    Raises:
      ValueError: no such scheme; the message lists those that exist.
    """
    if name not in _REGISTRY:
        _load_all()
    if name not in _REGISTRY:
        close = difflib.get_close_matches(str(name), _REGISTRY, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(
            f"unknown scheme {name!r}; {hint}registered: {', '.join(sorted(_REGISTRY))}"
        )
    return _REGISTRY[name]


def check_scheme(scheme: Any, name: str = "scheme") -> None:
    """Raises TypeError unless `scheme` is an instance of `Scheme`: neither a name nor a class."""
    if isinstance(scheme, Scheme):
        return
    example, got = "rope", repr(scheme)
    if isinstance(scheme, str):
        example = get_scheme(scheme).name
    elif isinstance(scheme, type) and issubclass(scheme, Scheme):
        example, got = scheme.name or example, f"the class {scheme.__name__}"
    raise TypeError(
        f"{name} must be an instance of a scheme, such as get_scheme({example!r})(); got {got}"
    )


__all__ = ["check_scheme", "get_scheme", "list_schemes", "register"]
