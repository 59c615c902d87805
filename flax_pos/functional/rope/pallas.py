"""The rotation as one TPU kernel: `x` is read and written once, the tables stay half as wide."""

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


def turn(x, cos, sin, *, inverse: bool, interpret: bool = False):
    """`x` (`*B T N H`) with channel i turned against i + H/2; tables `*B T F`, F = H/2."""
    *batch, length, heads, width = x.shape
    rows = 1
    for n in batch:
        rows *= n
    cos, sin = (_flat(t, batch) for t in (cos, sin))
    step = _tokens_per_block(length, heads * width * 4)
    shared = cos.shape[0] == 1  # one table for all rows

    of_x = pl.BlockSpec((1, step, heads, width), lambda b, t: (b, t, 0, 0))
    of_table = pl.BlockSpec((1, step, width // 2), lambda b, t: (0 if shared else b, t, 0))
    out = pl.pallas_call(
        lambda *refs: _kernel(*refs, sign=-1.0 if inverse else 1.0),
        grid=(rows, length // step),
        in_specs=[of_x, of_table, of_table],
        out_specs=of_x,
        out_shape=jax.ShapeDtypeStruct((rows, length, heads, width), x.dtype),
        cost_estimate=cost(x.size, x.dtype.itemsize, rows * length * width),
        interpret=interpret,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        name="rope_turn",
    )(x.reshape(rows, length, heads, width), cos, sin)
    return out.reshape(x.shape)


def cost(elements: int, itemsize: int, table_elements: int) -> pl.CostEstimate:
    """What the kernel moves: `x` in and out, and both tables once for every row of the batch."""
    return pl.CostEstimate(
        flops=3 * elements,
        transcendentals=0,
        bytes_accessed=2 * elements * itemsize + 4 * table_elements,
    )


def _kernel(x_ref, cos_ref, sin_ref, out_ref, *, sign: float):
    x = x_ref[0].astype(jnp.float32)
    cos, sin = cos_ref[0], sin_ref[0] * sign
    cos = jnp.concatenate([cos, cos], -1)[:, None, :]
    sin = jnp.concatenate([-sin, sin], -1)[:, None, :]
    other = pltpu.roll(x, x.shape[-1] // 2, x.ndim - 1)
    out_ref[0] = (x * cos + other * sin).astype(out_ref.dtype)


def _flat(table, batch):
    """`*B T F` as `R T F`, R = 1 where no batch axis is real."""
    if all(n == 1 for n in table.shape[:-2]):
        return table.reshape(1, *table.shape[-2:])
    table = jnp.broadcast_to(table, (*batch, *table.shape[-2:]))
    return table.reshape(-1, *table.shape[-2:])


def _tokens_per_block(length: int, bytes_per_token: int) -> int:
    """The largest divisor of `length` that is a multiple of 8 and fits the block size, or 8."""
    sizes = [n for n in range(8, length + 1, 8) if length % n == 0]
    return max((n for n in sizes if n * bytes_per_token <= _BLOCK_BYTES), default=8)
