"""Arguments of `attend` that do not fit, each told by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attend_calls import ALIBI, NONE, arrays, call, coords

from flax_pos import Dims, attend, get_scheme
from flax_pos.attention import prepare
from flax_pos.functional.dot import dot_logits
from flax_pos.scheme import plan_layers


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
    shaw = get_scheme("shaw")(values=True)
    half = {"table": jnp.zeros((2 * shaw.max_distance + 1, 8))}
    with pytest.raises(ValueError, match=r"'shaw' misses 'values'; its params have \['table'\]"):
        attend(shaw, half, *arrays(), coords(), coords(), implementation=form)
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
