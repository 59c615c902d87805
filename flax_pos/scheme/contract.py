"""What hooks must return, checked while a program is traced, so that it costs nothing when it runs.

Without this a result of the wrong shape would broadcast: a bias that lacks its axis of heads trains
on in silence wherever there are as many rows as heads.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from flax_pos.functional.positions import holds_positions
from flax_pos.scheme.base import Scheme
from flax_pos.types import Coords, Params


class HookError(ValueError):
    """A hook returned what the engine cannot use: the message names scheme, hook and shape."""


def check_params(scheme: Scheme, hook: str, params: Any) -> Any:
    """`params` as they are; raises HookError unless they are a dict, nested or not, of floating
    arrays, which is what training can change."""
    if not isinstance(params, dict):
        raise HookError(
            f"{named(scheme)}: its hook {hook} must return a dict of parameters; "
            f"got {type(params).__name__}"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise HookError(
                f"{named(scheme)}: its hook {hook} must return floating parameters; "
                f"{name!r} is {dtype}"
            )
    return params


@contextlib.contextmanager
def params_of(scheme: Scheme, params: Params) -> Iterator[None]:
    """Around hooks: says what they are given where one misses a parameter or a feature."""
    try:
        yield
    except KeyError as error:
        if "init_model" not in scheme.uses and "init_layer" not in scheme.uses:
            raise  # the scheme's own mistake, told with its place
        raise HookError(
            f"{named(scheme)} misses {error}; its params have {sorted(params)}. They must be those "
            "of one layer, scheme.layer_params(scheme.init(key, dims), layer), out of init_model "
            "and init_layer; what tokens carry comes from `prepare`"
        ) from error


def check_positions(scheme: Scheme, pos: Any, shape: tuple[int, ...]) -> None:
    """Raises HookError unless the hook `positions` returned `*B T` numbers of at least 32 bits."""
    _check_shape(scheme, "positions", pos, "*B T", shape)
    if not holds_positions(pos.dtype):
        raise HookError(
            f"{named(scheme)}: its hook positions must return int32, or float32 for tokens placed "
            f"at real numbers; got {pos.dtype}"
        )


def check_array(
    scheme: Scheme,
    hook: str,
    value: Any,
    axes: str,
    shape: tuple[int | None, ...],
    *,
    dtype: Any = None,
    stretch: bool = False,
) -> None:
    """Raises HookError unless a hook returned an array of this shape.

    Args:
      axes: the names of its axes. shape: their sizes, None where any will do.
      dtype: what it must be; None: a float of at least 32 bits.
      stretch: axes of length 1 will do too.

    Raises:
      HookError: another shape or dtype, or no array at all.
    """
    _check_shape(scheme, hook, value, axes, shape, stretch)
    wide = jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize >= 4
    if not (wide if dtype is None else value.dtype == dtype):
        raise HookError(
            f"{named(scheme)}: its hook {hook} must return {dtype or 'float32'}; got {value.dtype}"
        )


def check_leaves(
    scheme: Scheme, hook: str, feats: Any, shape: tuple[int, ...], part: str = ""
) -> None:
    """Raises HookError unless a hook returned a dict of arrays `*B T ...`; `shape` is `*B T`."""
    if not isinstance(feats, dict):
        raise HookError(
            f"{named(scheme)}: its hook {hook} must return {part}a dict of arrays; "
            f"got {type(feats).__name__}"
        )
    for name, tree in feats.items():
        for leaf in jax.tree.leaves(tree):
            found = jnp.shape(leaf)
            head = found[: len(shape)]
            if not _fits(head, shape, True) or head[-1] != shape[-1]:
                raise HookError(
                    f"{named(scheme)}: its hook {hook} must return {part}arrays that begin with "
                    f"*B T = {shape}; {name!r} has shape {found}"
                )


def check_coords(scheme: Scheme, at: Any, shape: tuple[int, ...]) -> None:
    """Raises HookError unless the hook `coords` returned Coords whose feats are `*B T ...`."""
    if not isinstance(at, Coords):
        raise HookError(
            f"{named(scheme)}: its hook coords must return Coords, such as "
            f"at._replace(feats={{**at.feats, ...}}); got {type(at).__name__}"
        )
    check_leaves(scheme, "coords", at.feats, shape, "Coords whose feats are ")


def check_scores(scheme: Scheme, value: Any, shape: tuple[int, ...]) -> None:
    """Raises HookError unless the hook `scores` returned scores `*B N T S` and a carry."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise HookError(
            f"{named(scheme)}: its hook scores must return two things, the scores and the carry; "
            f"got {type(value).__name__}"
        )
    check_array(scheme, "scores", value[0], "*B N T S", shape)


def _check_shape(scheme, hook, value, axes, shape, stretch=False) -> None:
    found = getattr(value, "shape", None)
    if found is None or not _fits(found, shape, stretch):
        sizes = ", ".join("any" if b is None else str(b) for b in shape)
        ones = " (or 1 where it does not differ)" if stretch else ""
        got = f"shape {found}" if found is not None else type(value).__name__
        raise HookError(
            f"{named(scheme)}: its hook {hook} must return {axes} = ({sizes}){ones}; got {got}"
        )


def _fits(found: tuple, shape: tuple, stretch: bool) -> bool:
    return len(found) == len(shape) and all(
        b is None or a == b or (stretch and a == 1) for a, b in zip(found, shape, strict=True)
    )


def named(scheme: Scheme) -> str:
    """How messages call a scheme."""
    return f"scheme {scheme.name or type(scheme).__name__!r}"


__all__ = [
    "HookError",
    "check_array",
    "check_coords",
    "check_leaves",
    "check_params",
    "check_positions",
    "check_scores",
    "named",
    "params_of",
]
