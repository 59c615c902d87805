"""The TPU kernel, run by the interpreter, against the form for XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import integers, normal

from flax_pos.functional.rope import RopeSpec, rope_tables, rotate_with_tables
from flax_pos.functional.rope.pallas import cost, fits, turn

PLAIN = {"layout": "half", "start": 0, "blocks": 1, "inverse": False}


def arrays(shape, dtype="float32", tables=None):
    x = normal(shape, dtype=dtype)
    at = integers(tables or shape[:-2], 2**20, 1)
    return x, *rope_tables(at, RopeSpec(), head_dim=shape[-1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "tables"),
    [
        ((2, 16, 3, 128), None),
        ((2, 16, 3, 128), (1, 16)),
        ((2, 2, 24, 1, 256), None),
        ((2, 2, 24, 1, 256), (2, 1, 24)),
        ((40, 2, 128), None),
    ],
)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("heads_first", [False, True])
def test_equals_the_plain_form(shape, tables, dtype, inverse, heads_first):
    x, cos, sin = arrays(shape, dtype, tables)
    assert fits(x, cos, **PLAIN)
    got = turn(x, cos, sin, inverse=inverse, heads_first=heads_first, interpret=True)
    want = rotate_with_tables(x, cos, sin, inverse=inverse)
    assert got.dtype == x.dtype
    tolerance = 1e-6 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(
        got.astype(jnp.float32), want.astype(jnp.float32), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize(
    ("shape", "dtype", "settings"),
    [
        ((1, 16, 2, 64), "float32", {}),  # half a vector register
        ((1, 16, 2, 192), "float32", {}),
        ((1, 12, 2, 128), "float32", {}),  # no whole block of tokens
        ((1, 1, 2, 128), "float32", {}),
        ((0, 16, 2, 128), "float32", {}),
        ((1, 16, 2, 128), "float16", {}),
        ((1, 16, 2, 128), "float32", {"layout": "interleaved"}),
        ((1, 16, 2, 128), "float32", {"start": 2}),
        ((1, 16, 2, 128), "float32", {"blocks": 2}),
    ],
)
def test_other_cases_are_left_to_xla(shape, dtype, settings):
    x, table = jnp.zeros(shape, dtype), jnp.zeros((*shape[:-2], shape[-1] // 2))
    assert not fits(x, table, **{**PLAIN, **settings})


def test_partial_heads_are_left_to_xla():
    assert not fits(jnp.zeros((1, 16, 2, 128)), jnp.zeros((1, 16, 32)), **PLAIN)


@pytest.mark.parametrize("tables", [None, (1, 32)])
@pytest.mark.parametrize("heads_first", [False, True])
def test_the_stated_cost_is_what_the_blocks_move(tables, heads_first):
    """Every block of the grid reads and writes `x` once and reads both tables."""
    x, cos, sin = arrays((3, 32, 2, 128), "bfloat16", tables)
    kernel = lambda *a: turn(*a, inverse=False, heads_first=heads_first)
    jaxpr = jax.make_jaxpr(kernel)(x, cos, sin)
    (call,) = [e for e in jaxpr.eqns if e.primitive.name == "pallas_call"]
    grid = call.params["grid_mapping"]
    steps = np.prod(grid.grid)
    sizes = [
        np.prod([getattr(n, "block_size", n) for n in block.block_shape])
        * block.array_aval.dtype.itemsize
        for block in grid.block_mappings
    ]
    moved = sum(int(size) * int(steps) for size in sizes)
    stated = call.params["cost_estimate"].bytes_accessed
    assert stated == cost(x.size, 2, 3 * 32 * 128).bytes_accessed
    assert stated == moved
