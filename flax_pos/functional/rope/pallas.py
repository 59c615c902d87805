"""The rotation as one TPU kernel: `x` is read and written once, the tables stay half as wide."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
_BLOCK_BYTES = 1 << 20


def fits(x, cos, *, layout: str, start: int, blocks: int, inverse: bool) -> bool:
    """Whether the kernel does this case: whole heads of full vector registers, in halves."""
    return (
        layout == "half"
        and start == 0
        and blocks == 1
        and x.ndim >= 3
        and x.shape[-1] == 2 * cos.shape[-1]
        and x.shape[-1] % LANES == 0
        and x.shape[-3] % 8 == 0
        and x.dtype in (jnp.float32, jnp.bfloat16)
        and cos.dtype == jnp.float32
        and x.size > 0
    )


def turn(x, cos, sin, *, inverse: bool, heads_first: bool, interpret: bool = False):
    """`x` (`*B T N H`) with channel i turned against i + H/2; tables `*B T F`, F = H/2.

    Args:
      heads_first: hold `x` as `*B N T H` while it is turned. A kernel fixes the order in memory
        of what it reads and writes: attention wants heads first, and a projection can write them
        so, while an argument of a program lies as it is and would have to be copied.
    """
    *batch, length, heads, width = x.shape
    rows = math.prod(batch)
    cos, sin = (_flat(t, batch) for t in (cos, sin))
    shared = cos.shape[0] == 1  # one table for all rows
    x = x.reshape(rows, length, heads, width)
    if heads_first:
        x = x.swapaxes(1, 2)
        together = _divisor(heads, _BLOCK_BYTES // (8 * width * 4))
        step = _divisor(length, _BLOCK_BYTES // (together * width * 4), of=8)
        grid = (rows, length // step, heads // together)
        of_x = pl.BlockSpec((1, together, step, width), lambda b, t, n: (b, n, t, 0))
        of_table = pl.BlockSpec((1, step, width // 2), lambda b, t, n: (0 if shared else b, t, 0))
    else:
        step = _divisor(length, _BLOCK_BYTES // (heads * width * 4), of=8)
        grid = (rows, length // step)
        of_x = pl.BlockSpec((1, step, heads, width), lambda b, t: (b, t, 0, 0))
        of_table = pl.BlockSpec((1, step, width // 2), lambda b, t: (0 if shared else b, t, 0))
    out = pl.pallas_call(
        partial(_kernel, sign=-1.0 if inverse else 1.0, heads_axis=0 if heads_first else 1),
        grid=grid,
        in_specs=[of_x, of_table, of_table],
        out_specs=of_x,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        cost_estimate=cost(x.size, x.dtype.itemsize, rows * length * width),
        interpret=interpret,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * len(grid)),
        name="rope_turn",
    )(x, cos, sin)
    out = out.swapaxes(1, 2) if heads_first else out
    return out.reshape(*batch, length, heads, width)


def cost(elements: int, itemsize: int, table_elements: int) -> pl.CostEstimate:
    """What the kernel moves: `x` in and out, and both tables once for every row of the batch."""
    return pl.CostEstimate(
        flops=3 * elements,
        transcendentals=0,
        bytes_accessed=2 * elements * itemsize + 4 * table_elements,
    )


def _kernel(x_ref, cos_ref, sin_ref, out_ref, *, sign: float, heads_axis: int):
    x = x_ref[0].astype(jnp.float32)
    cos, sin = cos_ref[0], sin_ref[0] * sign
    cos = jnp.expand_dims(jnp.concatenate([cos, cos], -1), heads_axis)
    sin = jnp.expand_dims(jnp.concatenate([-sin, sin], -1), heads_axis)
    other = pltpu.roll(x, x.shape[-1] // 2, x.ndim - 1)
    out_ref[0] = (x * cos + other * sin).astype(out_ref.dtype)


def _flat(table, batch):
    """`*B T F` as `R T F`, R = 1 where no batch axis is real."""
    if all(n == 1 for n in table.shape[:-2]):
        return table.reshape(1, *table.shape[-2:])
    table = jnp.broadcast_to(table, (*batch, *table.shape[-2:]))
    return table.reshape(-1, *table.shape[-2:])


def _divisor(length: int, most: int, *, of: int = 1) -> int:
    """The largest multiple of `of` that divides `length` and is at most `most`, or `of`."""
    sizes = range(of, length + 1, of)
    return max((n for n in sizes if length % n == 0 and n <= most), default=of)
