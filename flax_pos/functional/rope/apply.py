"""Rotary position embedding as functions of positions."""

import dataclasses

import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from flax_pos.functional.positions import check_positions
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.phase import exact_cos_sin
from flax_pos.functional.rope.rotation import (
    Layout,
    align,
    check_rotary_dim,
    head_dim_of,
    rotate_with_tables,
)
from flax_pos.functional.rope.scaling import Default
from flax_pos.functional.rope.spec import RopeSpec, checked_seq_len


def apply_rope(x, positions, theta=10000.0, *, layout: Layout = "half", rotary_dim=None):
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864, equation 34).

    The pair i of every head is turned by `positions * theta ** (-2 i / rotary_dim)` radians.

    Args:
      x: `*B T N H` queries or keys, any floating dtype.
      positions: integers `*B T` (leading batch axes may be left out or 1, T may not), of 32 bits
        or more. Any int32 value, negative ones included, is exact.
      theta: base of the frequencies; a positive number, or a traced scalar.
      layout: which channels form a pair, see `Layout`.
      rotary_dim: number R of leading channels to rotate, even; the rest pass through bit for bit.
        None rotates all H.

    Returns:
      The rotated `x`, same shape and dtype. Angles are exact to 3e-7 rad at any position, cos and
      sin are float32, the result is rounded once.

    Raises:
      TypeError: `positions` are not integers, or `x` is not floating.
      ValueError: shapes do not fit, `rotary_dim` is odd or above H, an unknown layout.

    Examples:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from flax_pos.functional.rope import apply_rope
      >>> x = jnp.array([[[1.0, 2.0, 3.0, 4.0]]])  # one token, one head of width 4
      >>> print(np.asarray(apply_rope(x, jnp.array([5]))[0, 0], np.float64).round(4))
      [ 3.1604  1.7976 -0.1079  4.095 ]
      >>> print(np.asarray(apply_rope(x, jnp.array([5]), layout="interleaved")[0, 0]).round(4))
      [ 2.2015 -0.3916  2.7963  4.1449]
    """
    theta = check_theta(theta)
    head_dim = head_dim_of(x)
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    check_rotary_dim(rotary_dim, head_dim)
    at = align(check_positions(positions)[..., None], x, "positions")
    cos, sin = exact_cos_sin(at, ladder(theta, rotary_dim), _table_dtype(x))
    return rotate_with_tables(x, cos, sin, layout=layout)


def rotate(
    x: Float[Array, "*B T N H"],
    positions: Int[Array, "*P"],
    spec: RopeSpec,
    *,
    seq_len=None,
    inv_freq=None,
    inverse: bool = False,
) -> Float[Array, "*B T N H"]:
    """Turns the pairs of channels of `x` as `spec` says.

    Args:
      x: `*B T N H` queries or keys, any floating dtype.
      positions: integers `*B T` (leading batch axes may be left out or 1). With `spec.axes` of A
        axes also `A *B T`; `*B T` then means the same position on every axis (text).
      spec: what to do; `spec.softmax_scale_multiplier` is left to the caller.
      seq_len: total length, an int or a traced scalar, for laws that depend on it (dynamic NTK,
        LongRoPE). None: largest position of the whole batch + 1. Where keys are cached rotated,
        pass one fixed value for the whole generation.
      inv_freq: frequencies to use instead of the spec's: learned ones, differentiable.
      inverse: undo the rotation (and its factor on cos and sin).

    Returns:
      Shape and dtype of `x`.

    Raises:
      TypeError: `positions` are not integers of 32 bits or more, or `x` is not floating.
      ValueError: shapes do not fit each other or the spec.

    Examples:
      >>> from flax_pos.functional.rope import Linear
      >>> spec = RopeSpec(scaling=Linear(factor=2.0))
      >>> x = jnp.ones((1, 3, 1, 4))
      >>> slow = rotate(x, jnp.array([[0, 2, 4]]), spec)
      >>> bool((slow == apply_rope(x, jnp.array([[0, 1, 2]]))).all())
      True
    """
    head_dim = head_dim_of(x)
    at = check_positions(positions)
    if spec.axes is None:
        at = align(at[..., None], x, "positions")[..., 0]
    elif at.ndim < x.ndim - 1:
        at = align(at[..., None], x, "positions")[..., 0]
        at = jnp.broadcast_to(at, (spec.axes.count, *at.shape))
    elif at.shape != (spec.axes.count, *x.shape[:-2]):
        raise ValueError(
            f"positions must be `*B T` or `A *B T`, {(spec.axes.count, *x.shape[:-2])}, "
            f"got {at.shape}"
        )
    cos, sin = _tables(at, spec, seq_len, head_dim, inv_freq, _table_dtype(x))
    if spec.cast_early:
        cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
    if inverse:
        factor = spec.scaling.cos_sin_factor(_length(at, spec, seq_len))
        cos, sin = (t / jnp.asarray(factor, t.dtype) ** 2 for t in (cos, sin))
    return rotate_with_tables(x, cos, sin, inverse=inverse, **_channels(spec))


def rope_tables(
    positions: Int[Array, "*P"],
    spec: RopeSpec,
    *,
    head_dim: int | None = None,
    seq_len=None,
    inv_freq=None,
) -> tuple[Float[Array, "*BT F"], Float[Array, "*BT F"]]:
    """float32 cos and sin `*B T F` of every pair, times the spec's factor on them.

    They depend on positions only: make them once per forward and give them to
    `rotate_with_tables` in every layer, for q and for k.

    Args:
      positions: integers `*B T`; `A *B T` where the spec has A axes.
      spec, seq_len, inv_freq: as in `rotate`.
      head_dim: where the spec has none.
    """
    at = check_positions(positions, axes=spec.axes.count if spec.axes else None)
    return _tables(at, spec, seq_len, head_dim, inv_freq, jnp.float32)


def rotate_tables(x, cos, sin, spec: RopeSpec):
    """`rotate` with tables made by `rope_tables` from the same spec."""
    if spec.cast_early:
        cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
    return rotate_with_tables(x, cos, sin, **_channels(spec))


def rotate_by_delta(
    x: Float[Array, "*B T N H"],
    delta: Int[Array, "*P"],
    spec: RopeSpec,
    *,
    seq_len=None,
    inv_freq=None,
) -> Float[Array, "*B T N H"]:
    """Moves keys that `rotate` has turned from position p to p + delta: cache shifts.

    Args:
      x: `*B T N H`, rotated (in the layout that `rotate` writes).
      delta: integers of any sign, as the positions of `rotate`.
      spec, inv_freq: those that `x` was rotated by.
      seq_len: the length that `x` was rotated with, where the spec depends on it.

    Raises:
      ValueError: the spec depends on the length and `seq_len` is not given.
    """
    if spec.depends_on_length and seq_len is None:
        raise ValueError(
            f"{spec.scaling.rope_type} frequencies depend on the length; give the seq_len that "
            "x was rotated with"
        )
    plain = dataclasses.replace(
        spec, layout="interleaved" if spec.layout == "interleaved" else "half"
    )
    frequencies = inv_freq
    if frequencies is None:
        frequencies = plain.frequencies(seq_len, head_dim=head_dim_of(x))[0]
    return rotate(x, delta, dataclasses.replace(plain, scaling=Default()), inv_freq=frequencies)


def _tables(at, spec, seq_len, head_dim, inv_freq, dtype):
    return spec.tables(at, _length(at, spec, seq_len), head_dim, inv_freq, dtype)


def _length(at, spec, seq_len):
    """`seq_len`, or where the spec needs it and it is not given, the largest position + 1."""
    if seq_len is not None or not spec.depends_on_length:
        return checked_seq_len(seq_len)
    if isinstance(at, Tracer):
        return jnp.max(at) + 1
    return max(int(jnp.max(at)) + 1, 1)


def _channels(spec: RopeSpec) -> dict:
    """Where the pairs are: keyword arguments of `rotate_with_tables`."""
    return {
        "layout": spec.layout,
        "trailing": spec.rotary_slice == "trailing",
        "blocks": spec.axes.count if spec.axes and spec.axes.blocks else 1,
    }


def _table_dtype(x):
    """float32 for every `x` but float64."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32
