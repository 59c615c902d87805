"""What the compiled program holds and how often it computes it."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal
from jax.extend.core import jaxprs_in_params

from flax_pos.functional.rope import (
    DynamicNTK,
    RopeSpec,
    Yarn,
    apply_rope,
    rope_tables,
    rotate,
    rotate_with_tables,
)
from flax_pos.functional.rope.frequencies import ladder
from flax_pos.functional.rope.phase import exact_cos_sin

SHAPE = (1, 512, 4, 64)
ARGS = (jax.ShapeDtypeStruct(SHAPE, jnp.float32), jax.ShapeDtypeStruct(SHAPE[:2], jnp.int32))


def count(jaxpr, name: str) -> int:
    """Occurrences of a primitive, inner jaxprs included."""
    total = 0
    for eqn in jaxpr.eqns:
        total += eqn.primitive.name == name
        for sub in jaxprs_in_params(eqn.params):
            total += count(sub, name)
    return total


def constants(jaxpr):
    """Sizes of all constants and literals, inner jaxprs included."""
    yield from (np.size(c) for c in getattr(jaxpr, "consts", ()))
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    for eqn in inner.eqns:
        yield from (np.size(v.val) for v in eqn.invars if hasattr(v, "val"))
        for value in eqn.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                yield from constants(value)


@pytest.mark.parametrize(
    "spec",
    [
        RopeSpec(),
        RopeSpec(scaling=Yarn(factor=4, original_max_position_embeddings=64)),
        RopeSpec(scaling=DynamicNTK(factor=2, original_max_position_embeddings=64)),
        RopeSpec(phase="float32"),
    ],
    ids=lambda s: f"{s.scaling.rope_type}-{s.phase}",
)
def test_no_table_is_a_constant(spec):
    """Only numbers per pair are known at compile time, even where positions are."""
    at = np.arange(SHAPE[1], dtype=np.int32)[None]
    traced = jax.make_jaxpr(lambda x: rotate(x, jnp.asarray(at), spec, seq_len=512))(ARGS[0])
    assert max(constants(traced)) <= max(SHAPE[1], 2 * SHAPE[-1])
    text = jax.jit(lambda x, p: rotate(x, p, spec, seq_len=512)).lower(*ARGS).as_text()
    assert len(text) < 40_000


def test_export_does_not_grow_with_the_length():
    sizes = []
    for length in (1024, 65536):
        args = (
            jax.ShapeDtypeStruct((1, length, 1, 128), jnp.float32),
            jax.ShapeDtypeStruct((1, length), jnp.int32),
        )
        exported = jax.export.export(jax.jit(apply_rope), platforms=("cpu", "tpu", "cuda"))(*args)
        sizes.append(len(exported.serialize()))
    assert max(sizes) < 64 * 1024
    assert abs(sizes[1] - sizes[0]) < 256


def test_exported_rotation_computes_the_same():
    exported = jax.export.export(jax.jit(apply_rope))(*ARGS)
    back = jax.export.deserialize(exported.serialize())
    x = normal(SHAPE)
    at = jnp.arange(512)[None] * 4099
    np.testing.assert_allclose(back.call(x, at), jax.jit(apply_rope)(x, at), atol=1e-6)


def test_compiling_a_long_context_takes_no_longer():
    """The program is the same size, and nothing in it is folded at compile time."""
    programs = []
    for length in (1024, 131072):
        x = jax.ShapeDtypeStruct((1, length, 1, 128), jnp.float32)
        at = jnp.arange(length)[None]
        compiled = jax.jit(lambda x, at=at: apply_rope(x, at)).lower(x).compile()
        programs.append(compiled.memory_analysis())
    # Tables are temporaries of the program, never part of it.
    assert programs[1].generated_code_size_in_bytes < 2**20
    assert programs[1].temp_size_in_bytes <= 3 * 131072 * 64 * 4 * 2


def test_tables_once_per_forward():
    """Twelve layers and q and k share one cosine; the scanned layer has none."""
    spec = RopeSpec()

    def forward(q, k, at):
        cos, sin = rope_tables(at, spec, head_dim=q.shape[-1])

        def layer(carry, _):
            q, k = carry
            return (rotate_with_tables(q, cos, sin), rotate_with_tables(k, cos, sin)), None

        return jax.lax.scan(layer, (q, k), length=12)[0]

    jaxpr = jax.make_jaxpr(forward)(ARGS[0], ARGS[0], ARGS[1]).jaxpr
    assert count(jaxpr, "cos") == 1
    (scan,) = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
    assert count(scan.params["jaxpr"].jaxpr, "cos") == 0
    # One token's tables have one row.
    one = jax.eval_shape(
        lambda at: rope_tables(at, spec, head_dim=64), jnp.zeros((3, 1), jnp.int32)
    )
    assert [t.shape for t in one] == [(3, 1, 32)] * 2


@pytest.mark.parametrize("size", [8, 4096])
def test_small_and_large_tables_are_equal(size):
    """Above a size they are computed in a loop of their own; the numbers are the same."""
    at = jnp.arange(8192, dtype=jnp.int32)[:, None] * 1009
    part = exact_cos_sin(at[:size], ladder(1e4, 64))
    whole = exact_cos_sin(at, ladder(1e4, 64))
    for a, b in zip(part, whole, strict=True):
        np.testing.assert_allclose(a, b[:size], atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_backward_keeps_nothing_of_x(dtype):
    """Residuals of the gradient are the tables, not the input."""
    x = jax.ShapeDtypeStruct((2, 64, 4, 32), dtype)
    at = jnp.arange(64)[None]
    _, residuals = jax.eval_shape(
        lambda x: (lambda f: (f[0], jax.tree.leaves(f[1])))(
            jax.vjp(lambda x: apply_rope(x, at), x)
        ),
        x,
    )
    assert sum(r.size for r in residuals) <= 2 * 64 * 16 + 64
    assert all(r.shape != x.shape for r in residuals)


def test_matmul_precision_changes_nothing():
    x, at = normal(SHAPE), jnp.arange(512)[None]
    want = apply_rope(x, at)
    for precision in ("bfloat16", "tensorfloat32", "highest"):
        with jax.default_matmul_precision(precision):
            np.testing.assert_array_equal(apply_rope(x, at), want)


def test_gradient_compiles_without_temporaries_of_the_size_of_x():
    x, at = ARGS
    compiled = (
        jax.jit(jax.vmap(jax.grad(lambda x, at: (apply_rope(x, at) * x).sum())))
        .lower(x, at)
        .compile()
    )
    table = SHAPE[1] * SHAPE[-1] // 2 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < x.size * 4 + 8 * table
