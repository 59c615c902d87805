"""Checks of a scheme as data: its settings and its parameters."""

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.scheme import Scheme, from_dict, merge, to_dict
from flax_pos.testing.harness import (
    DIMS,
    assert_close,
    differ,
    forward,
    make_inputs,
    value_and_gradients,
)


def check_round_trip(scheme: Scheme) -> None:
    """`to_dict` gives what JSON can hold and `from_dict` reads it back to an equal scheme."""
    back = from_dict(json.loads(json.dumps(to_dict(scheme))))
    assert back == scheme, f"comes back as {back}"
    assert hash(back) == hash(scheme), "an equal scheme has another hash"


def check_described(scheme: Scheme) -> None:
    """The class says in words and in a formula what it does."""
    assert scheme.formula, "formula is empty"
    assert type(scheme).__doc__, "the class has no docstring"


def check_parameters(scheme: Scheme) -> None:
    """`init` is a function of key and sizes alone, gives float32 leaves, works under `vmap`."""
    key = jax.random.key(0)
    params = scheme.init(key, DIMS)
    again = scheme.init(key, DIMS)
    merge(params["model"], params["layers"])
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        where = jax.tree_util.keystr(path)
        assert leaf.dtype == jnp.float32, f"{where} is {leaf.dtype}, wanted float32"
        assert np.isfinite(np.asarray(leaf)).all(), f"{where} is not finite"
    jax.tree.map(np.testing.assert_array_equal, params, again)
    stacked = jax.vmap(lambda k: scheme.init(k, DIMS))(jax.random.split(key, 3))
    shapes = lambda tree, skip: jax.tree.map(lambda a: a.shape[skip:], tree)
    assert shapes(stacked, 1) == shapes(params, 0), "shapes change under vmap"


def check_fields(scheme: Scheme) -> None:
    """Every setting matters: some other legal value changes the parameters or the output."""
    probes = list(_probes(scheme))
    own = functools.cache(lambda i: _outputs(scheme, probes[i]))
    for field in dataclasses.fields(scheme):
        others = list(_alternatives(scheme, field))
        assert others, f"no other legal value found for field {field.name!r}"
        changed = (
            _changed(_outputs(other, probe), own(i))
            for other in others
            for i, probe in enumerate(probes)
        )
        trains = (_changed(_gradients(other), _gradients(scheme)) for other in others)
        assert any(changed) or any(trains), f"field {field.name!r} changes nothing"


def check_swept_fields(scheme: Scheme) -> None:
    """A number among the settings may be traced: `vmap` over it equals a loop. One that decides
    shapes cannot be; the scheme says so by a TypeError or ValueError of its own."""
    inputs = make_inputs(scheme)
    own = {f.name: getattr(scheme, f.name) for f in dataclasses.fields(scheme)}
    own = {name: value for name, value in own.items() if type(value) is float and value != 0}
    run = lambda values: forward(dataclasses.replace(scheme, **values), inputs)
    for name in list(own):
        try:
            jax.eval_shape(lambda v, name=name: run({name: v}), jnp.float32(own[name]))
        except jax.errors.ConcretizationTypeError as error:
            raise AssertionError(f"field {name!r} cannot be traced: {error}") from error
        except (TypeError, ValueError):  # the scheme itself says that it cannot be
            del own[name]
    if not own:
        return
    changed = (
        own | {name: 0.75 * own[name]} for name in own if _replaced(scheme, name, 0.75 * own[name])
    )
    settings = [own, *changed]
    stacked = {name: jnp.asarray([s[name] for s in settings], jnp.float32) for name in own}
    at_once = jax.jit(jax.vmap(run))(stacked)
    for got, values in zip(at_once, settings, strict=True):
        assert_close(got, run(values), f"{values} in a vmap", tolerance=1e-4)


# Other values of a field --------------------------------------------------------------------


def _alternatives(scheme: Scheme, field: dataclasses.Field) -> Iterator[Scheme]:
    hints = typing.get_type_hints(type(scheme))
    for value in _values(getattr(scheme, field.name), hints.get(field.name)):
        other = _replaced(scheme, field.name, value)
        if other is not None and other != scheme:
            yield other


def _replaced(scheme: Scheme, name: str, value: Any) -> Scheme | None:
    try:
        return dataclasses.replace(scheme, **{name: value})
    except (TypeError, ValueError):
        return None


def _values(value: Any, hint: Any) -> Iterator[Any]:
    """Values near `value` and of its type; most settings can bear one of them."""
    if typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for option in typing.get_args(hint):
            yield from _values(value, option)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 2 * value, value // 2, 4)
    elif isinstance(value, float):
        yield from (value * 0.5, value * 1.7, value + 1.0, value - 1.0, value + 0.25)
    elif value is None:
        yield from (0.5, 2.0, 4, 16)
        if dataclasses.is_dataclass(hint):
            yield from _of_class(hint)
    elif isinstance(value, Scheme):
        yield _Doubled()
        for field in dataclasses.fields(value):
            yield from _alternatives(value, field)
    elif isinstance(value, tuple) and value:
        yield from (value[:-1], value[::-1], value + value[:1])
        for i, item in enumerate(value):
            yield from ((*value[:i], other, *value[i + 1 :]) for other in _values(item, None))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _replacements(value, field.name)


def _of_class(cls: Any) -> Iterator[Any]:
    try:
        default = cls()
    except TypeError:  # it has no default
        return
    yield default
    for field in dataclasses.fields(default):
        yield from _replacements(default, field.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Doubled(Scheme):
    """Unlike any scheme that somebody would write."""

    def rotate(self, params, x, at, side):
        return x + x if side == "q" else x


def _replacements(value: Any, name: str) -> Iterator[Any]:
    for other in _values(getattr(value, name), typing.get_type_hints(type(value)).get(name)):
        try:
            yield dataclasses.replace(value, **{name: other})
        except (TypeError, ValueError):
            continue


def _probes(scheme: Scheme) -> Iterator[dict[str, Any]]:
    """Circumstances under which settings may show: near and far, short and long, training."""
    yield {}
    yield {"stride": 4}
    yield {"key": jax.random.key(5)}
    if scheme.unbounded:
        yield {"stride": 97}
        yield {"stride": 3001, "length": 2**20}


def _outputs(scheme: Scheme, probe: dict[str, Any]):
    """Parameters and outputs, or None where these settings cannot be run like that."""
    stride, options = probe.get("stride", 1), {k: v for k, v in probe.items() if k != "stride"}
    try:
        inputs = make_inputs(scheme)
        spread = inputs._replace(index=inputs.index * stride)
        out = forward(scheme, spread, **options)
        free = None
        if not scheme.causal_only:
            free = forward(scheme, spread, causal=False, **options)
        return inputs.params, out, free
    except (TypeError, ValueError):
        return None


def _gradients(scheme: Scheme):
    try:
        return value_and_gradients(scheme, make_inputs(scheme))
    except (TypeError, ValueError):
        return None


def _changed(got, wanted) -> bool:
    if got is None or wanted is None:
        return False
    if jax.tree.structure(got) != jax.tree.structure(wanted):
        return True
    pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True))
    return any(a.shape != b.shape or differ(a, b) for a, b in pairs)


__all__ = [
    "check_described",
    "check_fields",
    "check_parameters",
    "check_round_trip",
    "check_swept_fields",
]
