"""Which implementation serves which call, and what each refuses."""

import importlib.machinery
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from attend_calls import ALIBI, NONE, arrays, call, coords
from jax.sharding import NamedSharding, PartitionSpec

from flax_pos import Dims, Scheme, attend, get_scheme
from flax_pos.attention import dispatch, prepare

# Library kernels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": False}, {"window": 3}, {"window": 3, "causal": False}, {"chunk": 4},
     {"scale": 0.3}],
    ids=str,
)  # fmt: skip
def test_xla_equals_dense(options, contiguous):
    got = call(implementation="xla", contiguous=contiguous, **options)
    np.testing.assert_allclose(got, call(implementation="dense", **options), atol=2e-6)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_xla_takes_any_batch_axes_and_padding(batch):
    xs, at = arrays(batch), coords(batch, pad=3)
    run = lambda form: jax.jit(lambda xs, at: call(xs=xs, at=at, implementation=form))(xs, at)
    got = run("xla")
    assert (np.asarray(got)[..., :3, :, :] == 0).all()
    np.testing.assert_allclose(got, run("dense"), atol=2e-6)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"scheme": ALIBI}, "scheme 'alibi' has a bias hook"),
        ({"scheme": get_scheme("cope")()}, "scheme 'cope' has a scores hook"),
        ({"softcap": 30.0}, r"it has no soft cap \(softcap=30.0\)"),
        ({"sinks": jnp.zeros(4)}, "it has no sinks"),
        ({"xs": arrays(value=4)}, "values are 4 wide and keys 8"),
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
@pytest.mark.parametrize("implementation", ["xla", "cudnn"])
def test_kernels_say_what_they_cannot_do(implementation, options, why):
    with pytest.raises(ValueError, match=f"implementation='{implementation}' cannot do .*{why}"):
        call(implementation=implementation, **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs bfloat16 or float16, got float32"),
        ({"xs": arrays(width=12, value=12, dtype=jnp.bfloat16)}, "multiple of 8 up to 128, got 12"),
        (
            {"xs": arrays(dtype=jnp.bfloat16), "window": 3, "causal": False},
            "sliding window needs causal=True",
        ),
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
def test_cudnn_says_what_it_cannot_do(options, why):
    with pytest.raises(ValueError, match=why):
        call(implementation="cudnn", **options)


SPLASH = {"implementation": "splash", "contiguous": True}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": False},
        {"window": 40, "softcap": 2.0, "sinks": jnp.array([0.5, -1.0, 2.0, 0.0])},
        {"chunk": 48, "scale": 0.2},
    ],
    ids=["causal", "bidirectional", "window-softcap-sinks", "chunk-scale"],
)
def test_splash_equals_dense_in_values_and_gradients(options):
    xs, at = arrays(length=256, width=16), coords(length=256)
    xs[2] = jnp.concatenate([xs[2], xs[2]], -1)

    def loss(xs, how):
        out = call(xs=xs, at=at, **how, **options)
        return jnp.sum(jnp.sin(out)), out

    run = lambda how: jax.jit(jax.grad(lambda xs: loss(xs, how), has_aux=True))(xs)
    got, wanted = run(SPLASH), run({"implementation": "dense"})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), got, wanted)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"contiguous": False}, "only contiguous=True allows"),
        ({}, "multiple of 128 queries, got 9"),
        ({"scheme": ALIBI}, "has a bias hook"),
        ({"xs": arrays(length=128), "at": coords(length=128), "softcap": jnp.float32(1)}, "number"),
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
def test_splash_says_what_it_cannot_do(options, why):
    with pytest.raises(ValueError, match=f"'splash' cannot do this: .*{why}"):
        call(**{**SPLASH, **options})


def test_tokamax_is_asked_for_only_where_it_is(monkeypatch):
    with pytest.raises(ValueError, match=r"not installed \(pip install tokamax\)"):
        call(implementation="tokamax")
    module = types.ModuleType("tokamax")
    module.__spec__ = importlib.machinery.ModuleSpec("tokamax", None)

    def attention(q, k, v, *, logits_soft_cap, **options):
        assert logits_soft_cap is None
        assert flags.FLAGS.is_parsed()  # it would read this program's command line for its own
        return jax.nn.dot_product_attention(q, k, v, **options)

    module.dot_product_attention = attention
    flags.FLAGS.unparse_flags()
    monkeypatch.setitem(sys.modules, "tokamax", module)
    for options in ({}, {"window": 3}, {"window": 3, "contiguous": True}):
        got = call(implementation="tokamax", **options)
        np.testing.assert_allclose(got, call(implementation="dense", **options), atol=2e-6)


# The rule ----------------------------------------------------------------------------------------


@pytest.fixture
def chosen(monkeypatch):
    """Names of the implementations that were called."""
    names = []
    for name in ("attend_dense", "attend_blockwise", "attend_library"):

        def spy(*args, name=name, **options):
            names.append(args[0] if name == "attend_library" else name.removeprefix("attend_"))

        monkeypatch.setattr(dispatch, name, spy)
    return names


@pytest.mark.parametrize(
    ("backend", "options", "wanted"),
    [
        ("cpu", {}, "dense"),
        ("cpu", {"length": 513}, "dense"),
        ("cpu", {"length": 1025}, "blockwise"),
        ("cpu", {"length": 256, "batch": 32}, "blockwise"),  # rows count
        ("cpu", {"length": 255, "batch": 32}, "dense"),  # a block or two: nothing to skip
        ("cpu", {"dtype": jnp.bfloat16, "contiguous": True}, "dense"),
        ("gpu", {"dtype": jnp.bfloat16, "contiguous": True}, "cudnn"),
        ("gpu", {"dtype": jnp.bfloat16}, "dense"),
        ("gpu", {"contiguous": True}, "dense"),
        ("gpu", {"dtype": jnp.bfloat16, "contiguous": True, "scheme": ALIBI}, "dense"),
        ("gpu", {"dtype": jnp.bfloat16, "contiguous": True, "softcap": 5.0}, "dense"),
        ("tpu", {"dtype": jnp.bfloat16, "contiguous": True, "length": 1025}, "blockwise"),
    ],
)
def test_auto(chosen, monkeypatch, backend, options, wanted):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    length, batch = options.pop("length", 9), (options.pop("batch", 2),)
    xs = arrays(length=length, dtype=options.pop("dtype", jnp.float32), batch=batch)
    call(xs=xs, at=coords(length=length, batch=batch), **options)
    assert chosen == [wanted]


def test_one_query_against_a_long_cache_is_dense(chosen):
    q, k, v = arrays(length=4096)
    at = coords(length=4096)
    q_at = jax.tree.map(lambda a: a[:, -1:], at)
    attend(NONE, {}, q[:, -1:], k, v, q_at, at)
    assert chosen == ["dense"]


def test_decoding_of_many_rows_against_a_long_cache_is_dense(chosen):
    """Its scores are many, but fewer than the numbers in k."""

    def run():
        q, k, v = arrays(batch=(16,), length=70_000)
        at = coords(batch=(16,), length=70_000)
        q_at = jax.tree.map(lambda a: a[:, -1:], at)
        return attend(NONE, {}, q[:, -1:], k, v, q_at, at)

    jax.eval_shape(run)
    assert chosen == ["dense"]


# What a scheme prescribes ------------------------------------------------------------------------


def test_window_and_chunk_of_the_scheme_hold_unless_the_call_says_otherwise():
    class Windowed(Scheme):
        window = 3

    class Chunked(Scheme):
        chunk = 4

    np.testing.assert_array_equal(call(Windowed()), call(window=3))
    np.testing.assert_array_equal(call(Windowed(), window=2), call(window=2))
    np.testing.assert_array_equal(call(Chunked()), call(chunk=4))


def test_scores_as_they_stand():
    class Halves(Scheme):
        normalized = False

        def scores(self, params, pair, carry):
            return jnp.full_like(pair.logits, np.log(0.5)), carry

    q, k, v = arrays(kv_heads=4)
    for form in ({"implementation": "dense"}, {"implementation": "blockwise", "block_k": 4}):
        got = call(Halves(), xs=(q, k, v), **form)
        np.testing.assert_allclose(got, 0.5 * jnp.cumsum(v, 1), atol=1e-5)
    with pytest.raises(ValueError, match="sinks join a softmax"):
        call(Halves(), sinks=jnp.zeros(4))


# Over devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_a_sequence_over_eight_devices(form, name):
    """Tokens split over devices: positions travel with them, so every number stays."""
    scheme, (q, k, v) = get_scheme(name)(), arrays(length=16)
    at = coords(length=16)
    mesh = jax.make_mesh((8,), ("tokens",), axis_types=(jax.sharding.AxisType.Auto,))

    def run(q, k, v, at):
        features = scheme.features(at.pos, Dims(8, 4, 2, 8, 1, 16, 16))
        q, k, at = prepare(scheme, {}, q[..., 0, :], q, k, at, features)
        return attend(scheme, {}, q, k, v, at, at, implementation=form, block_q=4, block_k=4)

    wanted = jax.jit(run)(q, k, v, at)
    sharding = NamedSharding(mesh, PartitionSpec(None, "tokens"))
    split = jax.device_put((q, k, v, at), sharding)
    np.testing.assert_allclose(jax.jit(run)(*split), wanted, atol=2e-6)


def test_each_device_its_own_queries():
    scheme, (q, k, v) = ALIBI, arrays(length=16)
    at = coords(length=16)
    mesh = jax.make_mesh((8,), ("tokens",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec(None, "tokens")

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(spec,) * 4, out_specs=spec)
    def run(q, k, v, at):
        gather = lambda a: jax.lax.all_gather(a, "tokens", axis=1, tiled=True)
        return attend(scheme, {}, q, gather(k), gather(v), at, jax.tree.map(gather, at))

    got = run(q, k, v, at)
    np.testing.assert_allclose(got, call(scheme, (q, k, v), at, implementation="dense"), atol=2e-6)
