"""Checks of one layer: every form of attention gives the same numbers, and claims are true."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.functional.shapes import shapes_inside
from flax_pos.scheme import Scheme
from flax_pos.testing.harness import (
    BATCH,
    DIMS,
    LENGTH,
    RAGGED,
    assert_close,
    decode,
    decode_step,
    dense,
    differ,
    forward,
    make_inputs,
    new_inputs,
    place,
    project,
    value_and_gradients,
)
from flax_pos.types import Coords

FAR = 2**20
"""A length that no scheme takes for a usual one."""
NOT_32_BIT = 2**24 + 2**20
"""Whole positions from 2^24 on are rounded to others in float32."""
NOT_16_BIT = 4001
"""Positions from here on are rounded to others in bfloat16 and, half of them, in float16."""


def run(scheme: Scheme, inputs, *, shift: int = 0, length: int = LENGTH) -> jax.Array:
    """The dense layer, compiled once for all checks."""
    return dense(scheme, inputs, shift=jnp.int32(shift), length=jnp.int32(length))[0]


def check_seeds(scheme: Scheme) -> None:
    """`vmap` over parameters of several seeds equals a loop over them."""
    inputs = make_inputs(scheme)
    if not jax.tree.leaves(inputs.params):
        return
    keys = jax.random.split(jax.random.key(1), 3)
    stacked = jax.vmap(lambda key: scheme.layer_params(scheme.init(key, DIMS), 0))(keys)
    run_one = lambda params: forward(scheme, inputs._replace(params=params))
    at_once = jax.jit(jax.vmap(run_one, axis_size=3))(stacked)
    for i in range(3):
        params = jax.tree.map(lambda a, i=i: a[i], stacked)
        alone = run(scheme, inputs._replace(params=params))
        assert_close(at_once[i], alone, f"seed {i} of a vmap")


def check_blockwise(scheme: Scheme) -> None:
    """Attention by ragged blocks equals dense attention, in values and all gradients."""
    inputs = make_inputs(scheme)
    wanted = dense(scheme, inputs, shift=jnp.int32(0), length=jnp.int32(LENGTH))
    options = {"implementation": "blockwise", "length": LENGTH, **RAGGED}
    got = jax.jit(lambda inputs: value_and_gradients(scheme, inputs, **options))(inputs)
    assert_close(got[0], wanted[0], "blockwise output")
    assert_close(got[1], wanted[1], "blockwise gradient", tolerance=1e-4)


def check_bidirectional(scheme: Scheme) -> None:
    """Without a causal mask blocks equal dense too; schemes that need one refuse to go without."""
    inputs = make_inputs(scheme)
    if scheme.causal_only:
        try:
            forward(scheme, inputs, causal=False)
        except ValueError:
            return
        raise AssertionError("claims causal_only, and attends without a causal mask")
    wanted = forward(scheme, inputs, causal=False)
    options = {"causal": False, "implementation": "blockwise", **RAGGED}
    got = jax.jit(lambda inputs: forward(scheme, inputs, **options))(inputs)
    assert_close(got, wanted, "blockwise output without a causal mask")


def check_memory(scheme: Scheme) -> None:
    """Nothing of size T x T in the blockwise form and its gradient, judged by their jaxpr."""
    length, block = 320, 32
    dims = DIMS._replace(max_len=length)
    inputs = jax.eval_shape(lambda: new_inputs(scheme, batch=1, length=length, dims=dims))
    blocks = {"implementation": "blockwise", "block_q": block, "block_k": block}
    run = lambda inputs: value_and_gradients(scheme, inputs, dims=dims, **blocks)
    for shape in shapes_inside(jax.make_jaxpr(run)(inputs).jaxpr):
        long_axes = sum(axis >= length for axis in shape)
        small = np.prod(shape, dtype=np.int64) < DIMS.heads * length * length // 2
        fits = long_axes < 2 and small
        assert fits, f"an array of shape {shape} at T = {length}"


def check_explicit_mesh(scheme: Scheme) -> None:
    """Traces in every form, gradients too, under a mesh with explicit axes (what `jax.make_mesh`
    makes) and rows spread over it."""
    mesh = jax.make_mesh((1,), ("rows",), devices=jax.devices()[:1])
    inputs = jax.eval_shape(lambda: new_inputs(scheme))

    def put(tree, *spec):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return jax.tree.map(lambda a: a.update(sharding=sharding), tree)

    rows = put(inputs[2:], "rows")
    inputs = type(inputs)(put(inputs.params), put(inputs.weights), *rows)
    with jax.set_mesh(mesh):
        for form in ({}, {"implementation": "blockwise", **RAGGED}):
            run = lambda inputs, form=form: value_and_gradients(scheme, inputs, **form)
            out, _ = jax.eval_shape(run, inputs)
            assert out.sharding.spec[0] == "rows", f"rows lie as {out.sharding.spec} under {form}"


def check_cache(scheme: Scheme) -> None:
    """A prompt in pieces and then token by token through a cache gives the rows of one forward,
    for rows of different lengths, left-padded; an equal scheme object compiles nothing anew."""
    inputs = make_inputs(scheme)
    inputs = inputs._replace(index=inputs.index.at[0].add(-3).clip(-1))
    traces = []

    def counted(*args):
        traces.append(args)
        return decode_step(*args)

    step = jax.jit(counted, static_argnums=0)
    stop, real = 0, np.asarray(inputs.index >= 0)
    for out in decode(scheme, inputs, (4, 4, 1, 1, 1, 1, 1), size=LENGTH + 2, step=step):
        start, stop = stop, stop + out.shape[1]
        wanted = run(scheme, inputs, length=stop)[:, start:stop]
        seen = real[:, start:stop, None, None]
        assert_close(
            jnp.where(seen, out, 0.0), jnp.where(seen, wanted, 0.0), f"tokens {start} to {stop}, "
        )
    before = len(traces)
    decode(dataclasses.replace(scheme), inputs, (4,), size=LENGTH + 2, step=step)
    assert len(traces) == before, "an equal scheme compiles again"


def check_ring(scheme: Scheme) -> None:
    """Through a cache that keeps the last few tokens attention is that of a sliding window, in
    calls that the ring can hold and in one that it cannot. For schemes whose tokens carry
    something or whose scores go from block to block."""
    if not scheme.uses & {"coords", "scores"}:
        return
    inputs, size = make_inputs(scheme), 5
    window = size if scheme.window is None else min(size, scheme.window)
    roll = functools.partial(decode_step, on_full="roll", window=window)
    pieces, stop = (1, 1, 1, 1, 1, 1, 7), 0
    within = jax.jit(lambda inputs, length: forward(scheme, inputs, length=length, window=window))
    for out in decode(scheme, inputs, pieces, size=size, step=jax.jit(roll, static_argnums=0)):
        start, stop = stop, stop + out.shape[1]
        wanted = within(inputs, jnp.int32(stop))[:, start:stop]
        assert_close(out, wanted, f"tokens {start} to {stop} through a ring, ")


def check_rows(scheme: Scheme) -> None:
    """Rows of a batch do not see each other."""
    inputs = make_inputs(scheme)
    index = inputs.index.at[1].add(-6).clip(-1)
    other = inputs._replace(x=inputs.x.at[1].set(3.0), ids=inputs.ids.at[1].set(7), index=index)
    assert_close(run(scheme, other)[0], run(scheme, inputs)[0], "a row beside another one")


def check_padding(scheme: Scheme) -> None:
    """Rows shifted right by padding give the same numbers, whatever the padding holds."""
    inputs = make_inputs(scheme)
    pad = 4
    roll = lambda a: jnp.concatenate([jnp.zeros_like(a[:, :pad]), a[:, :-pad]], 1)
    index = roll(inputs.index).at[:, :pad].set(-1)
    padded = inputs._replace(x=roll(inputs.x), ids=roll(inputs.ids), index=index)
    other = padded._replace(x=padded.x.at[:, :pad].set(3.0), ids=padded.ids.at[:, :pad].set(7))
    wanted = run(scheme, inputs, length=LENGTH - pad)
    got = run(scheme, padded, length=LENGTH - pad)
    assert np.isfinite(np.asarray(got)).all(), "not finite on padding"
    assert_close(got[:, pad:], wanted[:, :-pad], "left-padded rows")
    assert_close(
        run(scheme, other, length=LENGTH - pad)[:, pad:], got[:, pad:], "rows after other padding"
    )


def check_packing(scheme: Scheme) -> None:
    """Documents packed into one row give the numbers of each alone."""
    inputs = make_inputs(scheme)
    cut = 8
    slot = jnp.arange(LENGTH, dtype=jnp.int32)
    rows = lambda a: jnp.broadcast_to(a, (BATCH, LENGTH))
    first = inputs._replace(index=rows(jnp.where(slot < cut, slot, -1)))
    second = inputs._replace(
        x=jnp.roll(inputs.x, -cut, 1),
        ids=jnp.roll(inputs.ids, -cut, 1),
        index=rows(jnp.where(slot < LENGTH - cut, slot, -1)),
    )
    # A document's own ids decide where its tokens are, so placing is done one at a time.
    places = [place(scheme, document, cut) for document in (first, second)]
    packed = forward(
        scheme,
        inputs._replace(index=rows(jnp.where(slot < cut, slot, slot - cut))),
        pos=jnp.where(rows(slot < cut), places[0], jnp.roll(places[1], cut, 1)),
        segment=rows(jnp.where(slot < cut, 1, 2)),
        length=cut,
    )
    alone = [run(scheme, document, length=cut) for document in (first, second)]
    assert_close(packed[:, :cut], alone[0][:, :cut], "first document")
    assert_close(packed[:, cut:], alone[1][:, : LENGTH - cut], "second document")


def check_grouped_heads(scheme: Scheme) -> None:
    """Query heads that share a key head equal query heads with a copy of it each."""
    inputs = make_inputs(scheme)
    got = forward(scheme, inputs, repeat_heads=True)
    assert_close(got, run(scheme, inputs), "repeated key heads")


def check_positions(scheme: Scheme) -> None:
    """`positions` is pointwise in the index given length and key; one that reads ids gives each
    token the same place whatever comes after it."""
    inputs = make_inputs(scheme)
    for key in (None, jax.random.key(3)):
        whole = place(scheme, inputs, LENGTH, key)
        assert whole.shape == inputs.index.shape, f"positions have shape {whole.shape}"
        start = 0 if _reads_ids(scheme, inputs, key) else 5
        part = inputs._replace(index=inputs.index[:, start:9], ids=inputs.ids[:, start:9])
        np.testing.assert_array_equal(
            place(scheme, part, LENGTH, key), whole[:, start:9], "positions of a part"
        )


def _reads_ids(scheme, inputs, key) -> bool:
    ids = inputs._replace(ids=jnp.flip(inputs.ids, -1))
    return differ(place(scheme, inputs, LENGTH, key), place(scheme, ids, LENGTH, key))


def check_claims(scheme: Scheme) -> None:
    """`relative`, `unbounded` and `depends_on_length` are true where claimed, false where not;
    `relative` also far away, where float32 no longer tells positions apart."""
    inputs = make_inputs(scheme)
    here = run(scheme, inputs)
    whole = jnp.issubdtype(place(scheme, inputs, LENGTH).dtype, jnp.integer)
    shifts = (17, NOT_32_BIT if whole else FAR) if scheme.unbounded else (17,)
    shifted = [run(scheme, inputs, shift=shift) for shift in shifts]
    for name, true in (
        ("relative", not any(differ(moved, here, tolerance=1e-4) for moved in shifted)),
        ("unbounded", np.isfinite(run(scheme, inputs, shift=10 * DIMS.max_len)).all()),
        ("depends_on_length", differ(run(scheme, inputs, length=FAR), here)),
    ):
        claim = getattr(scheme, name)
        assert bool(true) == bool(claim), f"claims {name} = {claim}, which is {not claim}"


def check_hooks(scheme: Scheme) -> None:
    """Hooks that the scheme overrides do something; carries do not depend on the block."""
    inputs = make_inputs(scheme)
    nothing = forward(Scheme(), inputs._replace(params={}))
    probes = [run(scheme, inputs), run(scheme, inputs, shift=40), run(scheme, inputs, length=FAR)]
    acts = scheme.uses - {"init_model", "init_layer"}
    same = not any(differ(probe, nothing) for probe in probes)
    bounds = (scheme.window, scheme.chunk) != (None, None)
    assert not (acts and same) or bounds, f"overrides {sorted(acts)}, and nothing comes of it"


def check_dtype(scheme: Scheme) -> None:
    """bfloat16 in, bfloat16 out, at every hook, and near the float32 result; positions and what is
    made of them stay exact, also those that 16 bits do not hold."""
    wide = make_inputs(scheme)
    inputs = make_inputs(scheme, dtype=jnp.bfloat16)
    pos = place(scheme, inputs, LENGTH)
    pos = pos + jnp.asarray(NOT_16_BIT if scheme.unbounded else 0, pos.dtype)
    features = scheme.features(pos, DIMS._replace(length=LENGTH))
    bare = Coords(inputs.index, pos, features)
    at = scheme.coords(inputs.params, inputs.x, bare, None)
    float32 = lambda a: a.astype(jnp.float32)
    exact = scheme.coords(inputs.params, float32(inputs.x), bare, None)
    assert_close(at.feats, exact.feats, "coords of bfloat16", tolerance=1e-5)
    q, k, _ = project(inputs.x, inputs.weights)
    for name, hook, x in (
        ("embed", lambda x: scheme.embed(inputs.params, x, pos), inputs.x),
        ("rotate q", lambda x: scheme.rotate(inputs.params, x, at, "q"), q),
        ("rotate k", lambda x: scheme.rotate(inputs.params, x, at, "k"), k),
    ):
        got = hook(x)
        assert got.dtype == jnp.bfloat16, f"{name}: {got.dtype} from bfloat16"
        assert_close(float32(got), hook(float32(x)), f"{name} in bfloat16", tolerance=2**-7)
    bias = scheme.bias(inputs.params, at, at, DIMS.heads)
    assert bias is None or bias.dtype == jnp.float32, f"bias: {bias.dtype}, wanted float32"
    out = forward(scheme, inputs)
    assert out.dtype == jnp.bfloat16, f"output: {out.dtype} from bfloat16"
    narrow = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (wide.weights, wide.x))
    assert_close(
        forward(scheme, wide._replace(weights=narrow[0], x=narrow[1])).astype(jnp.float32),
        run(scheme, wide),
        "bfloat16 output",
        tolerance=0.15,
    )


def check_x64(scheme: Scheme) -> None:
    """`jax_enable_x64` changes nothing for float32 and 16-bit input, parameters included."""
    inputs = make_inputs(scheme)
    wanted, narrow = run(scheme, inputs), make_inputs(scheme, dtype=jnp.float16)
    with jax.enable_x64(True):
        params = jax.eval_shape(lambda: scheme.init(jax.random.key(0), DIMS))
        wide = [a.shape for a in jax.tree.leaves(params) if a.dtype.itemsize > 4]
        assert not wide, f"parameters of shapes {wide} are 64-bit"
        got = jax.jit(lambda inputs: forward(scheme, inputs))(inputs)
        half = jax.eval_shape(lambda inputs: forward(scheme, inputs), narrow)
    assert got.dtype == wanted.dtype, f"output is {got.dtype} under x64"
    assert half.dtype == jnp.float16, f"output is {half.dtype} from float16 under x64"
    assert_close(got, wanted, "output under x64", tolerance=2e-6)
