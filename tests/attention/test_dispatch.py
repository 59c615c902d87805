"""Which implementation serves which call, what each refuses, and arguments that do not fit."""

import importlib.machinery
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from draws import normal
from jax.sharding import NamedSharding, PartitionSpec

from flax_pos import Coords, Dims, Scheme, attend, get_scheme
from flax_pos.attention import dispatch, prepare
from flax_pos.functional.dot import dot_logits
from flax_pos.scheme import plan_layers

NONE = get_scheme("none")()
ALIBI = get_scheme("alibi")()


def arrays(batch=(2,), length=9, heads=4, kv_heads=2, width=8, value=8, dtype=jnp.float32):
    shapes = (heads, width), (kv_heads, width), (kv_heads, value)
    return [normal((*batch, length, *shape), n, dtype) for n, shape in enumerate(shapes)]


def coords(batch=(2,), length=9, pad=0):
    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32) - pad, (*batch, length)).clip(-1)
    return Coords(index, jnp.maximum(index, 0))


def call(scheme=NONE, xs=None, at=None, **options):
    at = coords() if at is None else at
    return attend(scheme, {}, *(arrays() if xs is None else xs), at, at, **options)


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


# Arguments that do not fit -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda q, k, v: (q[0, 0], k, v), ValueError, r"q must be \*B, tokens, heads, width"),
        (lambda q, k, v: (q, k[:1], v), ValueError, r"k has batch axes \(1,\) and q has \(2,\)"),
        (lambda q, k, v: (q, k, v.astype(jnp.float16)), TypeError, "v is float16 and q is float32"),
        (lambda q, k, v: (q, k[..., :4], v), ValueError, "k is 4 wide and q is 8"),
        (lambda q, k, v: (q, k, v[:, :5]), ValueError, r"v has \(5, 2\)"),
        (lambda q, k, v: (q[:, :, :3], k, v), ValueError, "3 query heads cannot share 2"),
        (lambda q, k, v: (q[:, :4], k, v), ValueError, "q_at.index has shape"),
        (lambda q, k, v: (q, k[:, :4], v[:, :4]), ValueError, "k_at.index has shape"),
    ],
)
def test_shapes_and_dtypes_that_do_not_fit(change, error, message):
    q, k, v = change(*arrays())
    with pytest.raises(error, match=message):
        attend(NONE, {}, q, k, v, coords(), coords())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"chunk": -1}, "chunk must be at least 1, got -1"),
        ({"implementation": "blockwise", "block_q": 0}, "block_q must be at least 1, got 0"),
        ({"implementation": "flash"}, "implementation must be one of .*'blockwise'.*got 'flash'"),
        ({"sinks": jnp.zeros(2)}, r"one logit per query head, \(4,\); got \(2,\)"),
        (
            {"scheme": get_scheme("fox")(), "causal": False},
            "'fox' has no meaning without a causal mask",
        ),
    ],
    ids=str,
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        call(**options)


def test_coords_without_the_batch_axis_are_refused():
    at = jax.tree.map(lambda a: a[0], coords())
    with pytest.raises(ValueError, match=r"q_at.index has shape \(9,\), but q has tokens \(2, 9\)"):
        call(at=at)


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


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("softcap", [0.0, -1.0, float("nan")])
def test_a_soft_cap_that_caps_nothing(softcap, traced):
    if traced:  # nothing is known about it yet
        assert jax.eval_shape(lambda c: call(softcap=c), softcap).shape == (2, 9, 4, 8)
        return
    with pytest.raises(ValueError, match=f"softcap must be positive, got {softcap}; None leaves"):
        call(softcap=softcap)
    q, k, _ = arrays()
    with pytest.raises(ValueError, match=f"cap must be positive, got {softcap}; None leaves"):
        dot_logits(q, k, scale=1.0, softcap=softcap)


@pytest.mark.parametrize("side", ["q_at", "k_at"])
@pytest.mark.parametrize(
    ("field", "dtype"),
    [(f, d) for f in ("index", "pos") for d in ("bfloat16", "float16", "bool", "int16", "uint32")]
    + [("index", "float32")],
)
def test_coords_of_a_dtype_that_cannot_count(side, field, dtype):
    at, (q, k, v) = coords(), arrays()
    bad = at._replace(**{field: getattr(at, field).astype(dtype)})
    ats = {"q_at": at, "k_at": at} | {side: bad}
    with pytest.raises(TypeError, match=rf"{side}.{field} must be int32.* got {dtype}"):
        attend(ALIBI, {}, q, k, v, **ats)


def test_tokens_may_be_placed_at_real_numbers():
    at = coords()
    got = call(ALIBI, at=at._replace(pos=at.pos.astype(jnp.float32)))
    np.testing.assert_array_equal(got, call(ALIBI))


@pytest.mark.parametrize("name", ["window", "chunk", "block_q", "block_k"])
@pytest.mark.parametrize("value", [2.5, 2.0, np.float32(2), True, "2", jnp.int32(2)], ids=repr)
def test_sizes_that_are_not_integers(name, value):
    with pytest.raises(TypeError, match=f"{name} must be an integer"):
        call(implementation="blockwise", **{name: value})


@pytest.mark.parametrize("value", ["alibi", type(ALIBI)])
def test_a_scheme_is_an_instance(value):
    for use in (call, lambda scheme: plan_layers(scheme, 2)):
        with pytest.raises(TypeError, match=r"such as get_scheme\('alibi'\)\(\); got"):
            use(value)
    with pytest.raises(ValueError, match="unknown scheme 'alibbi'; did you mean 'alibi'"):
        call("alibbi")


def test_coords_are_coords():
    index = coords().index
    with pytest.raises(TypeError, match=r"q_at must be Coords\(index, pos\).*get_scheme"):
        call(at=index)


@pytest.mark.parametrize("kv_heads", [0, 3])
def test_key_heads_are_blamed_where_they_are_wrong(kv_heads):
    q, _, v = arrays()
    with pytest.raises(ValueError, match=f"4 query heads cannot share {kv_heads} key/value heads"):
        call(xs=(q, jnp.ones((2, 9, kv_heads, 8)), v))


@pytest.mark.parametrize("form", ["auto", "dense", "blockwise", "xla"])
@pytest.mark.parametrize(("queries", "keys"), [(0, 0), (0, 9), (9, 0)])
def test_no_tokens(form, queries, keys):
    q, k, v = arrays(value=8)
    q_at, k_at = coords(length=queries), coords(length=keys)
    out = attend(
        NONE, {}, q[:, :queries], k[:, :keys], v[:, :keys], q_at, k_at, implementation=form
    )
    np.testing.assert_array_equal(out, np.zeros((2, queries, 4, 8)))


WRONG = {
    "segments on one side": (
        {"q_at": {"segment": jnp.zeros((2, 9), jnp.int32)}}, "q_at has segments and k_at has none"),
    "segments of a row only": (
        {"q_at": {"segment": jnp.zeros((9,), jnp.int32)}}, r"q_at.segment has shape \(9,\)"),
    "one segment a row": (
        {"k_at": {"segment": jnp.zeros((2, 1), jnp.int32)}}, r"k_at.segment has shape \(2, 1\)"),
    "segments that are floats": (
        {"k_at": {"segment": jnp.zeros((2, 9), jnp.float16)}}, "k_at.segment must be int32"),
    "one place a row": (
        {"k_at": {"pos": jnp.zeros((2, 1), jnp.int32)}}, r"k_at.pos has shape \(2, 1\)"),
    "places of a row only": (
        {"q_at": {"pos": jnp.zeros((9,), jnp.int32)}}, r"q_at.pos has shape \(9,\)"),
    "an index that is a list": ({"k_at": {"index": [0, 1]}}, "k_at.index must be an array"),
    "a scale a head": ({"scale": jnp.ones(4)}, r"scale must be one number, got shape \(4,\)"),
    "a scale in quotes": ({"scale": "0.5"}, "scale must be a number, got '0.5'"),
    "a flag as scale": ({"scale": True}, "scale must be a number, got True"),
    "a cap in quotes": ({"softcap": "30"}, "softcap must be a number, got '30'"),
    "a cap a head": ({"softcap": jnp.ones(4)}, r"softcap must be one number, got shape \(4,\)"),
    "sinks of two heads": ({"sinks": np.zeros(2)}, r"one logit per query head, \(4,\); got \(2,\)"),
    "a window of two numbers": ({"window": (2, 0)}, r"window must be an integer .* got \(2, 0\)"),
    "a word for causal": ({"causal": "yes"}, "causal must be True or False"),
}  # fmt: skip


@pytest.mark.parametrize("form", ["dense", "blockwise", "xla"])
@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG)
def test_input_that_would_be_misread_is_refused(given, message, form):
    ats = {name: coords()._replace(**given.get(name, {})) for name in ("q_at", "k_at")}
    options = {name: value for name, value in given.items() if name not in ats}
    with pytest.raises((TypeError, ValueError), match=message):
        attend(
            ALIBI if form != "xla" else NONE, {}, *arrays(), **ats, implementation=form, **options
        )


def test_whole_numbers_are_not_attended_to():
    xs = [x.astype(jnp.int32) for x in arrays()]
    with pytest.raises(TypeError, match="q, k and v must be floats, such as bfloat16; got int32"):
        call(xs=xs)


@pytest.mark.parametrize("form", ["dense", "blockwise", "xla"])
def test_a_scheme_of_many_layers_is_not_one(form):
    with pytest.raises(ValueError, match=r"'rnope_swa' differs by layer: give scheme.for_layer"):
        call(get_scheme("rnope_swa")(), implementation=form)


@pytest.mark.parametrize("form", ["dense", "blockwise"])
def test_parameters_of_all_layers_are_not_those_of_one(form):
    dims = Dims(width=32, heads=4, kv_heads=4, head_dim=8, layers=2, max_len=9)
    t5 = get_scheme("t5")()
    every = t5.init(jax.random.key(0), dims)
    for params, found in ((every, r"\['layers', 'model'\]"), ({}, r"\[\]")):
        with pytest.raises(ValueError, match=rf"'t5' misses 'table'; its params have {found}"):
            attend(t5, params, *arrays(), coords(), coords(), implementation=form)
    carope = get_scheme("carope")()
    at, x, q = coords(), jnp.ones((2, 9, 32)), jnp.ones((2, 9, 4, 8))
    with pytest.raises(ValueError, match=r"'carope' misses .*scheme.layer_params"):
        prepare(carope, {}, x, q, q, at, carope.features(at.pos, dims))


@pytest.mark.parametrize("form", ["dense", "blockwise"])
def test_what_prepare_makes_is_asked_for(form):
    dims = Dims(width=32, heads=4, kv_heads=2, head_dim=8, layers=1, max_len=9)
    fox = get_scheme("fox")()
    own = fox.layer_params(fox.init(jax.random.key(0), dims), 0)
    with pytest.raises(ValueError, match=r"'fox' misses 'log_kept'.*comes from `prepare`"):
        attend(fox, own, *arrays(), coords(), coords(), implementation=form)
