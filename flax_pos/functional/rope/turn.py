"""Turning pairs of channels: one linear primitive with a form for each platform.

A primitive, because the rotation is linear and its transpose is a rotation of the same form: the
backward pass then runs the same fast code and keeps nothing but the tables, in every combination
of grad, jvp, vmap, scan, remat and shard_map (a `custom_vjp` would forbid forward mode).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from flax_pos.functional.rope import pallas

turn_p = Primitive("rope_turn")
_SEARCH = 256
"""Operations that are looked at to find out where an operand comes from."""


def turn(x, cos, sin, **settings):
    """`x` (`*B T N H`) with its pairs turned by angles given as cos and sin, `*B T F` (every axis
    but F may be 1). Settings: see `_plain`."""
    return turn_p.bind(x, cos, sin, **settings)


def _plain(x, cos, sin, *, layout: str, start: int, blocks: int, inverse: bool):
    """The form for XLA. Halves are split and joined along an axis of length 2, which compilers
    write in one pass.

    Args:
      layout: see `flax_pos.functional.rope.Layout`.
      start: first rotated channel; 2F are rotated, in `blocks` blocks that pairs stay inside of.
      inverse: by the opposite angle, reading the layout that is otherwise written: the transpose.
    """
    width, head_dim = 2 * cos.shape[-1], x.shape[-1]
    dtype = max(x.dtype, cos.dtype, key=lambda d: d.itemsize)
    cos, sin = (
        t.astype(dtype)[..., None, :].reshape(*t.shape[:-1], 1, blocks, t.shape[-1] // blocks)
        for t in (cos, -sin if inverse else sin)
    )
    read, write = _axes_of_pairs(layout, inverse)

    part = x[..., start : start + width]
    shape = part.shape
    part = part.astype(dtype).reshape(*shape[:-1], blocks, *_split_shape(read, width // blocks))
    a, b = (t.squeeze(read) for t in jnp.split(part, 2, read))
    part = jnp.stack([a * cos - b * sin, b * cos + a * sin], write)
    part = part.reshape(shape).astype(x.dtype)
    if width == head_dim:
        return part
    return jnp.concatenate([x[..., :start], part, x[..., start + width :]], -1)


def _axes_of_pairs(layout: str, inverse: bool) -> tuple[int, int]:
    """Where the two members of a pair are, -2 for halves and -1 for neighbours: read, written."""
    read = -2 if layout == "half" else -1
    write = -1 if layout == "interleaved" else -2
    return (write, read) if inverse else (read, write)


def _split_shape(axis: int, width: int) -> tuple[int, int]:
    return (2, width // 2) if axis == -2 else (width // 2, 2)


def _lower(ctx, *args, **settings):
    """The Pallas kernel in a program for one TPU where it fits, else the form for XLA."""
    x, cos, _ = ctx.avals_in
    platforms = tuple(ctx.platforms or ctx.module_context.platforms)
    if platforms == ("tpu",) and pallas.fits(x, cos, **settings) and _runs_on_one_device(ctx):
        first = _made_by_a_product(args[0])
        form = partial(pallas.turn, inverse=settings["inverse"], heads_first=first)
    else:
        form = partial(_plain, **settings)
    return mlir.lower_fun(form, multiple_results=False)(ctx, *args)


def _runs_on_one_device(ctx) -> bool:
    """Whether this is one device's program: XLA cannot split a kernel between devices by itself
    (inside shard_map every device has its own)."""
    context: Any = ctx.module_context.axis_context
    if hasattr(context, "num_devices"):
        return context.num_devices == 1
    mesh, manual = getattr(context, "mesh", None), getattr(context, "manual_axes", ())
    return mesh is not None and set(manual) == set(mesh.axis_names)


def _made_by_a_product(value) -> bool:
    """Whether a value of the lowered program comes from a matrix product, which can write its
    result in any order; decides about speed only."""
    seen, waiting = set(), [value]
    while waiting and len(seen) < _SEARCH:
        producer = waiting.pop().owner
        if producer in seen or not hasattr(producer, "operands"):
            continue  # an argument
        if producer.name in ("stablehlo.dot_general", "func.call"):
            return True
        seen.add(producer)
        waiting.extend(producer.operands)
    return False


@turn_p.def_abstract_eval
def _abstract(x, cos, sin, **settings):
    varying = {}
    if hasattr(x, "vma"):  # the mesh axes that a value inside shard_map varies over
        varying = {"vma": x.vma | cos.vma | sin.vma}
    return ShapedArray(x.shape, x.dtype, sharding=x.sharding, **varying)


_eager = jax.jit(turn, static_argnames=("layout", "start", "blocks", "inverse"))
turn_p.def_impl(_eager)
# Not cached: the rule looks at where its operand comes from.
mlir.register_lowering(turn_p, _lower, cacheable=False)


def _jvp(primals, tangents, **settings):
    x, cos, sin = primals
    dx, dcos, dsin = tangents
    out = turn(x, cos, sin, **settings)
    terms = []
    if type(dx) is not ad.Zero:
        terms.append(turn(dx, cos, sin, **settings))
    if type(dcos) is not ad.Zero or type(dsin) is not ad.Zero:
        # Linear in the tables too, which do not reach the channels that pass through.
        dcos, dsin = ad.instantiate_zeros(dcos), ad.instantiate_zeros(dsin)
        start, width = settings["start"], 2 * cos.shape[-1]
        part = turn(x[..., start : start + width], dcos, dsin, **{**settings, "start": 0})
        around = (start, x.shape[-1] - start - width)
        terms.append(jnp.pad(part, [(0, 0)] * (x.ndim - 1) + [around]))
    return out, sum(terms[1:], terms[0])


def _transpose(ct, x, cos, sin, **settings):
    if type(ct) is ad.Zero:
        return [None if not ad.is_undefined_primal(v) else ad.Zero(v.aval) for v in (x, cos, sin)]
    if ad.is_undefined_primal(x):
        return [turn(ct, cos, sin, **{**settings, "inverse": not settings["inverse"]}), None, None]
    return [
        None,
        *(
            _onto_table(ct, x, t.aval, which, **settings) if ad.is_undefined_primal(t) else None
            for which, t in enumerate((cos, sin))
        ),
    ]


def _onto_table(ct, x, aval, which: int, **settings):
    """The cotangent of cos (`which` 0) or sin (1): what the table multiplies, times `ct`, summed
    over the two channels of each pair, over heads and over axes that the table is 1 along."""
    one, zero = (jnp.full(aval.shape, v, aval.dtype) for v in (1, 0))
    tables = (one, zero) if which == 0 else (zero, one)
    rotated = slice(settings["start"], settings["start"] + 2 * aval.shape[-1])
    multiplied = turn(x[..., rotated], *tables, **{**settings, "start": 0})
    product = ct[..., rotated].astype(aval.dtype) * multiplied.astype(aval.dtype)
    blocks = settings["blocks"]
    axis = _axes_of_pairs(settings["layout"], settings["inverse"])[1]
    pairs = _split_shape(axis, product.shape[-1] // blocks)
    product = product.reshape(*x.shape[:-1], blocks, *pairs)
    product = product.sum(axis).reshape(*x.shape[:-1], -1).sum(-2)
    spread = tuple(i for i, n in enumerate(aval.shape) if n != product.shape[i])
    product = product.sum(spread, keepdims=True) if spread else product
    if jax.typeof(product).sharding == aval.sharding:
        return product
    return jax.sharding.reshard(product, aval.sharding)


def _batch(args, dims, **settings):
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    x, *tables = (
        a[None] if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)
    )
    x = jnp.broadcast_to(x, (size, *x.shape[1:]))
    return turn(x, *tables, **settings), 0


ad.primitive_jvps[turn_p] = _jvp
ad.primitive_transposes[turn_p] = _transpose
batching.primitive_batchers[turn_p] = _batch
