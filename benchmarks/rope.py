"""RoPE against the forms that JAX code bases use, in multiples of a plain copy of the input.

    python -m benchmarks.rope [--rounds 15] [--shape 4 2048 16 128] [--skip cpu|tpu]

First on this machine's devices, measured: forward, and forward with backward against two copies.
Then, where the package `libtpu` is installed, what the TPU compiler's cost model says about the
same programs, compiled here without a TPU: bytes moved in multiples of reading and writing the
input once, and bytes of temporaries; and the same for a whole attention block. Those are
the compiler's own estimates, not measurements. Needs a quiet machine for the first part.

Measured on 2 CPU cores, the target is at most 1.5 for ours in both dtypes and both directions.
"""

import argparse
import importlib.util
import os

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no network look-up for a chip's metadata
if importlib.util.find_spec("libtpu"):
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import alternate
from flax_pos.functional.rope import RopeSpec, apply_rope, rope_tables, rotate_with_tables

THETA = 10000.0
TOPOLOGIES = ("v5e:2x2", "v6e:2x2")


def textbook(x, positions):
    """Angles, split, multiply, concatenate; float32 inside."""
    cos, sin = (f(_angles(x, positions))[..., None, :] for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def maxtext_style(x, positions):
    """Positions divided by time scales; tables in the dtype of the input."""
    scales = THETA ** (2 * jnp.arange(x.shape[-1] // 2) / x.shape[-1])
    angle = positions[..., None, None].astype(jnp.float32) / scales
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def gemma_style(x, positions):
    """The same with float32 tables and one cast at the end."""
    scales = THETA ** (2 * jnp.arange(x.shape[-1] // 2) / x.shape[-1])
    angle = positions[..., None].astype(jnp.float32) / scales
    cos, sin = jnp.cos(angle)[..., None, :], jnp.sin(angle)[..., None, :]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def hugging_face_style(x, positions):
    """Full-width tables in the dtype of the input; halves swapped with a sign."""
    angle = _angles(x, positions)
    angle = jnp.concatenate([angle, angle], -1)[..., None, :]
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-b, a], -1) * sin


def _angles(x, positions):
    inv_freq = THETA ** (-2 * jnp.arange(x.shape[-1] // 2) / x.shape[-1])
    return positions[..., None].astype(jnp.float32) * inv_freq


def copy(x, positions):
    """Reads and writes the input once (adding a number, so that it is not elided)."""
    return x + jnp.ones((), x.dtype)


FORMS = {
    "copy": copy,
    "flax_pos": apply_rope,
    "textbook": textbook,
    "MaxText style": maxtext_style,
    "Gemma style": gemma_style,
    "Hugging Face style": hugging_face_style,
}


def with_backward(form):
    """The result and the cotangent of the input; of a copy, two copies."""

    def both(x, positions):
        y, pull = jax.vjp(lambda x: form(x, positions), x)
        return y, pull(y)[0] if form is not copy else x + jnp.full((), 2, x.dtype)

    return both


def backward(form):
    """The cotangent of the input alone; of a copy, a copy."""
    if form is copy:
        return copy
    return lambda x, positions: jax.vjp(lambda x: form(x, positions), x)[1](x)[0]


def measure(shape, rounds: int) -> None:
    """The table of times on the default device."""
    positions = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape[:2])
    kind = jax.devices()[0].device_kind
    print(f"jax {jax.__version__}, {kind}, {os.cpu_count()} cores, x of shape {tuple(shape)}")
    print("multiples of a copy (forward + backward: of two copies), medians of alternating rounds")
    columns = {}
    for dtype in ("float32", "bfloat16"):
        x = jax.random.normal(jax.random.key(0), shape).astype(dtype)
        for name, wrap in (("forward", lambda f: f), ("forward + backward", with_backward)):
            calls = {}
            for form_name, form in FORMS.items():
                compiled = jax.jit(wrap(form)).lower(x, positions).compile()
                calls[form_name] = lambda c=compiled, x=x: c(x, positions)
            columns[f"{name}, {dtype}"] = alternate(calls, rounds=rounds)
    width = max(map(len, FORMS))
    print(" " * width, *(f"{name:>28s}" for name in columns))
    for form_name in FORMS:
        cells = [
            f"{seconds[form_name] / seconds['copy']:10.2f} x {1e3 * seconds[form_name]:10.1f} ms "
            for seconds in columns.values()
        ]
        print(f"{form_name:{width}s}", *(f"{cell:>28s}" for cell in cells))


# The TPU compiler's cost model -------------------------------------------------------------------


def attention_block(form):
    """Projections, rope, attention and the output projection of a layer; None: without rope."""

    def block(x, w, positions):
        q, k, v = (jnp.einsum("btd,dnh->btnh", x, w[name]) for name in "qkv")
        if form == "tables":
            cos, sin = rope_tables(positions, RopeSpec(), head_dim=q.shape[-1])
            q, k = (rotate_with_tables(t, cos, sin) for t in (q, k))
        elif form is not None:
            q, k = form(q, positions), form(k, positions)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return jnp.einsum("btnh,dnh->btd", y, w["o"])

    return block


def cost_model(shape) -> None:
    """What the TPU compiler says the programs move and keep."""
    from jax.experimental import topologies

    print("\nTPU compiler's cost model (compiled without a TPU; estimates, not measurements)")
    for topology in TOPOLOGIES:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
        device = jax.sharding.SingleDeviceSharding(described.devices[0])
        for dtype in ("bfloat16", "float32"):
            _print_forms(topology, shape, dtype, device)
        _print_blocks(topology, device)


def _print_forms(topology, shape, dtype, device) -> None:
    x = jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=device)
    positions = jax.ShapeDtypeStruct(tuple(shape[:2]), jnp.int32, sharding=device)
    size = np.prod(shape) * x.dtype.itemsize
    print(f"\n{topology}, {dtype}, x of {size / 1e6:.0f} MB: multiples of the ideal bytes moved")
    for name, form in FORMS.items():
        cells = []
        for program in (form, backward(form)):
            moved, kept = _costs(program, x, positions)
            cells.append(f"{moved / size / 2:5.2f} x, {kept:6.1f} MB kept")
        print(f"  {name:20s} forward {cells[0]}   backward {cells[1]}", flush=True)


def _print_blocks(topology, device) -> None:
    struct = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=device)
    weights = {name: struct(2048, 16, 128) for name in "qkvo"}
    positions = jax.ShapeDtypeStruct((2, 2048), jnp.int32, sharding=device)
    print(f"\n{topology}, attention block, bfloat16, x (2, 2048, 2048), 16 heads of 128")
    for name, form in {
        "without rope": None,
        "flax_pos, tables once": "tables",
        "flax_pos, per call": apply_rope,
        "textbook": textbook,
        "Hugging Face style": hugging_face_style,
    }.items():
        moved, kept = _costs(attention_block(form), struct(2, 2048, 2048), weights, positions)
        print(f"  {name:22s} {moved / 1e6:8.0f} MB moved {kept:8.1f} MB kept", flush=True)


def _costs(function, *args) -> tuple[float, float]:
    """Bytes accessed, and MB of temporaries."""
    compiled = jax.jit(function).lower(*args).compile()
    kept = compiled.memory_analysis().temp_size_in_bytes / 1e6
    return compiled.cost_analysis()["bytes accessed"], kept


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", type=int, nargs=4, default=(4, 2048, 16, 128))
    parser.add_argument("--skip", choices=("cpu", "tpu"), action="append", default=[])
    options = parser.parse_args()
    if "cpu" not in options.skip:
        measure(tuple(options.shape), options.rounds)
    if "tpu" in options.skip:
        return
    if importlib.util.find_spec("libtpu"):
        cost_model(tuple(options.shape))
    else:
        print("\nno TPU cost model: `pip install libtpu` adds the TPU compiler (no TPU needed)")


if __name__ == "__main__":
    main()
