"""Attention side by side: dense, blockwise, `jax.nn.dot_product_attention` and tokamax; time and
memory of value and gradients to q, k, v, activations and parameters.

    python -m benchmarks.attention time    [--length 4096] [--rounds 5] [--schemes none,alibi]
    python -m benchmarks.attention memory  [--lengths 1024,4096,16384,65536] [--schemes ...]
    python -m benchmarks.attention step    [--length 32768] [--schemes alibi]
    python -m benchmarks.attention tpu     [--length 8192] [--schemes ...]

8 heads of 64, batch 1, float32, causal. `time` needs a quiet machine. `memory` is what the
compiler says (temporaries, without arguments and results) and runs nothing. `step` runs a training
step of one layer and reports the peak of the process. `tpu` compiles the blockwise form in
bfloat16 for a v5e on a machine without one (`pip install libtpu`); its figures are a cost model.

The library kernels know no schemes: they are given the bias as a T x T matrix, computed by the
scheme, and cannot serve schemes with scores of their own.
"""

import argparse
import functools
import importlib.util
import os
import resource
import time

LENGTH, WIDTH, HEADS, HEAD_DIM = 4096, 512, 8, 64
USUAL = "none,rope,alibi,t5,fox,fire,kerple_log,cope"


def layer(scheme, form, params, x, q, k, v, index, **options):
    """Output of one attention layer in the form named."""
    from flax_pos import Coords, attend
    from flax_pos.attention import prepare

    features = scheme.features(index, sizes(index.shape[-1]))
    q, k, at = prepare(scheme, params, x, q, k, Coords(index, index), features)
    if form in ("dense", "blockwise"):
        return attend(scheme, params, q, k, v, at, at, implementation=form, **options)
    bias = scheme.bias(params, at, at, HEADS)
    if form == "jax.nn":
        import jax

        return jax.nn.dot_product_attention(q, k, v, bias, is_causal=True)
    from flax_pos.attention.kernels import load_tokamax

    return load_tokamax().dot_product_attention(q, k, v, bias, is_causal=True)


def sizes(length):
    from flax_pos import Dims

    return Dims(WIDTH, HEADS, HEADS, HEAD_DIM, 1, length, length)


def program(scheme, form, **options):
    """Value and gradients, to be compiled."""
    import jax
    import jax.numpy as jnp

    def loss(params, x, q, k, v, index):
        out = layer(scheme, form, params, x, q, k, v, index, **options).astype(jnp.float32)
        return jnp.sum(out * out)

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3, 4)))


def arguments(scheme, length, dtype="float32"):
    """Shapes of the arguments of `program`."""
    import jax

    shape = lambda *axes: jax.ShapeDtypeStruct((1, length, *axes), dtype)
    init = lambda key: scheme.layer_params(scheme.init(key, sizes(length)), 0)
    params = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    heads = [shape(HEADS, HEAD_DIM)] * 3
    return params, shape(WIDTH), *heads, jax.ShapeDtypeStruct((1, length), "int32")


def values(shapes):
    """Random arrays of these shapes; the last is the order of the tokens."""
    import jax
    import jax.numpy as jnp

    leaves, structure = jax.tree.flatten(shapes[:-1])
    keys = jax.random.split(jax.random.key(0), len(leaves))
    leaves = [
        0.5 * jax.random.normal(k, s.shape, s.dtype) for k, s in zip(keys, leaves, strict=True)
    ]
    order = jnp.arange(shapes[-1].shape[-1], dtype=jnp.int32)
    return *jax.tree.unflatten(structure, leaves), order[None]


FORMS = ("dense", "blockwise", "jax.nn", "tokamax")


def refusal(scheme, form):
    """Why a form cannot serve a scheme here; None if it can."""
    if form in ("dense", "blockwise"):
        return None
    for hook in ("scores", "mix"):
        if hook in scheme.uses:
            return f"the scheme has {hook} of its own"
    if not scheme.normalized:
        return "the scheme does without softmax"
    if form == "tokamax" and importlib.util.find_spec("tokamax") is None:
        return "not installed (pip install tokamax)"
    return None


def build(scheme, form, length):
    """The program for this length, or in one line why there is none."""
    why = refusal(scheme, form)
    if why is not None:
        return why
    try:
        return program(scheme, form).lower(*arguments(scheme, length)).compile()
    except Exception as error:  # a library's kernel may say no in its own way
        if form in ("dense", "blockwise"):
            raise
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def temporaries(compiled):
    return compiled.memory_analysis().temp_size_in_bytes / 2**20


def show_time(schemes, options):
    from benchmarks.timing import alternate, table

    for scheme in schemes:
        programs = {form: build(scheme, form, options.length) for form in FORMS}
        runs = {form: run for form, run in programs.items() if not isinstance(run, str)}
        given = values(arguments(scheme, options.length))
        calls = {form: functools.partial(run, *given) for form, run in runs.items()}
        seconds = alternate(calls, rounds=options.rounds, warmup=1)
        print(f"{scheme.name}, T = {options.length}")
        rows = table(seconds, baseline="dense").splitlines()
        for run, row in zip(runs.values(), rows, strict=True):
            print(f"  {row} {temporaries(run):10.1f} MiB")
        for form in FORMS:
            if form not in runs:
                print(f"  {form:9s} {programs[form]}")
        print(end="", flush=True)


def show_memory(schemes, options):
    lengths = [int(n) for n in options.lengths.split(",")]
    print(f"{'MiB of temporaries':34s}" + "".join(f"{'T = ' + str(n):>12s}" for n in lengths))
    for scheme in schemes:
        for form in FORMS:
            if (why := refusal(scheme, form)) is not None:
                print(f"{scheme.name:20s} {form:12s}   {why}", flush=True)
                continue
            row = [build(scheme, form, n) for n in lengths]
            cells = [
                "      failed" if isinstance(c, str) else f"{temporaries(c):12.1f}" for c in row
            ]
            print(f"{scheme.name:20s} {form:12s} " + "".join(cells), flush=True)


def show_step(schemes, options):
    import jax

    def step(params, x, q, k, v, index):
        value, gradients = program(scheme, "blockwise")(params, x, q, k, v, index)
        floats = (params, x, q, k, v)
        return value, jax.tree.map(lambda p, g: p - 1e-3 * g, floats, gradients)

    for scheme in schemes:
        shapes = arguments(scheme, options.length)
        compiled = jax.jit(step, donate_argnums=(0, 1, 2, 3, 4)).lower(*shapes).compile()
        given = jax.block_until_ready(values(shapes))
        start = time.perf_counter()
        jax.block_until_ready(compiled(*given))
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{scheme.name}: a step at T = {options.length} in {seconds:.1f} s, "
            f"temporaries {temporaries(compiled):.0f} MiB, peak of the process {peak:.2f} GiB"
        )


def show_tpu(schemes, options):
    import jax
    from jax.experimental import topologies

    blocks = {"block_q": 512, "block_k": 512}  # as there, where a scheme holds no more than scores
    device = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    on_device = lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding)
    for scheme in schemes:
        shapes = jax.tree.map(on_device, arguments(scheme, options.length, "bfloat16"))
        start = time.process_time()  # whatever else the machine does
        compiled = program(scheme, "blockwise", **blocks).lower(*shapes).compile()
        seconds = time.process_time() - start
        print(
            f"{scheme.name:20s} {temporaries(compiled):10.1f} MiB of temporaries, "
            f"compiled in {seconds:.1f} s of processor time",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["time", "memory", "step", "tpu"])
    parser.add_argument("--length", type=int)
    parser.add_argument("--lengths", default="1024,4096,16384,65536")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--schemes", help="comma-separated; all: every scheme of one layer")
    options = parser.parse_args()
    if options.what == "tpu":
        os.environ.update(TPU_SKIP_MDS_QUERY="1", JAX_PLATFORMS="cpu")
    defaults = {"step": (32768, "alibi"), "tpu": (8192, "all")}
    length, names = defaults.get(options.what, (LENGTH, USUAL))
    options.length = options.length or length
    names = options.schemes or names

    from flax_pos import get_scheme, list_schemes

    chosen = list_schemes() if names == "all" else names.split(",")
    schemes = [get_scheme(name)() for name in chosen]
    schemes = [scheme for scheme in schemes if scheme.for_layer(0) is scheme]
    {"time": show_time, "memory": show_memory, "step": show_step, "tpu": show_tpu}[options.what](
        schemes, options
    )


if __name__ == "__main__":
    main()
