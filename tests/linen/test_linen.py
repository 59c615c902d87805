"""The Linen modules give the numbers of the NNX ones, and hold the same arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal
from flax import nnx

from flax_pos import Dims, from_dict, get_scheme, list_schemes
from flax_pos import linen as L
from flax_pos import nnx as N
from flax_pos.functional.rope import RopeSpec
from flax_pos.nnx.params import arrays

DIMS = Dims(width=16, heads=4, kv_heads=2, head_dim=8, layers=4, max_len=32)
MIXED = {"name": "by_layer", "parts": [{"name": "t5"}, {"name": "fox"}], "pattern": [0, 1, 1, 0]}


@pytest.mark.parametrize(
    "more", [{}, {"rows": 8}, {"head_bias": True}, {"rows": 8, "head_bias": True}]
)
@pytest.mark.parametrize("tied", [True, False])
def test_embed(tied, more):
    ids = jnp.array([[1, 4, 2]])
    options = {"tied": tied, "scale": 3.0, "dtype": jnp.bfloat16, **more}
    ours = N.Embed(5, 4, **options, rngs=nnx.Rngs(0))
    twin = L.Embed(5, 4, **options)
    variables = twin.init(jax.random.key(0), ids)
    shapes = jax.tree.map(jnp.shape, variables["params"])
    assert shapes == jax.tree.map(jnp.shape, ours.params())
    assert 0 < float(jnp.std(variables["params"]["embedding"])) < 0.05
    if ours.head_bias is not None:
        ours.head_bias[...] = jnp.linspace(0.0, 1.0, ours.head_bias[...].size)
    variables = {"params": ours.params()}
    np.testing.assert_array_equal(twin.apply(variables, ids), ours(ids))
    h = normal((2, 4), 1, dtype=jnp.bfloat16)
    logits = twin.apply(variables, h, scale=0.5, softcap=2.0, method="attend")
    assert logits.dtype == jnp.float32
    assert logits.shape == (2, 5)
    np.testing.assert_array_equal(logits, ours.attend(h, scale=0.5, softcap=2.0))


def test_embed_refuses_ids_out_of_range():
    twin = L.Embed(5, 4)
    variables = twin.init(jax.random.key(0), jnp.array([[1]]))
    with pytest.raises(ValueError, match="ids 5"):
        twin.apply(variables, jnp.array([[5]]))


def test_rope():
    x, at = normal((2, 3, 2, 8)), jnp.array([[0, 1, 2], [5, 9, 2]])
    spec = RopeSpec(theta=100.0, layout="interleaved")
    twin = L.Rope(spec)
    assert twin.init(jax.random.key(0), x, at) == {}
    np.testing.assert_array_equal(twin.apply({}, x, at), N.Rope(spec)(x, at))


@pytest.mark.parametrize("name", list_schemes())
def test_parameters_of_every_scheme(name):
    """One plain dict with the structure that the scheme makes and the NNX module holds."""
    scheme = get_scheme(name)()
    x = jnp.zeros((1, 3, 16))
    init = lambda key: L.PositionEncoding(scheme, DIMS).init(key, x, ids=jnp.zeros((1, 3), int))
    params = jax.eval_shape(init, jax.random.key(0)).get("params", {}).get("position", {})
    ours = nnx.eval_shape(lambda: N.PositionEncoding(scheme, DIMS, rngs=nnx.Rngs(0)))
    state = nnx.to_pure_dict(nnx.state(ours)).get("params", {})
    leaves = lambda tree: {
        jax.tree_util.keystr(path): (a.shape, a.dtype)
        for path, a in jax.tree_util.tree_leaves_with_path(tree)
    }
    assert leaves(params) == leaves(state)


@pytest.mark.parametrize("scheme", ["learned", "fire", MIXED], ids=str)
def test_position_encoding(scheme):
    scheme = from_dict(scheme) if isinstance(scheme, dict) else get_scheme(scheme)()
    x = normal((2, 6, 16))
    q, k, v = (normal((2, 6, heads, 8), n) for n, heads in ((1, 4), (2, 2), (3, 2)))
    mask = jnp.array([[0, 0, 1, 1, 1, 1], [1] * 6], bool)
    ours = N.PositionEncoding(scheme, DIMS, rngs=nnx.Rngs(0))
    twin = L.PositionEncoding(scheme, DIMS)

    def layers(x, placement):
        return x, [placement.layer(n).attend(x, q, k, v)[0] for n in range(DIMS.layers)]

    @jax.jit
    def both(ours, x):
        variables = {"params": {"position": arrays(ours.params)}}
        return layers(*ours(x, mask=mask)), layers(*twin.apply(variables, x, mask=mask))

    (a, outs), (b, twins) = both(ours, x)
    np.testing.assert_array_equal(a, b)
    for out, other in zip(outs, twins, strict=True):
        np.testing.assert_array_equal(out, other)


def test_same_key_same_parameters():
    """Both make what the scheme's own `init` makes of the key."""
    scheme, key = get_scheme("fire")(), jax.random.key(3)
    rngs = nnx.Rngs(key)
    ours = N.PositionEncoding(scheme, DIMS, rngs=rngs)
    want = jax.jit(lambda k: scheme.init(k, DIMS))(nnx.Rngs(key).params())
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6)
    jax.tree.map(close, arrays(ours.params)["0"], want)


def test_override_in_linen():
    x = jnp.zeros((1, 3, 16))
    twin = L.PositionEncoding(get_scheme("rope")(), DIMS)
    variables = twin.init(jax.random.key(0), x)
    _, placement = twin.apply(variables, x, scheme=get_scheme("none")())
    assert placement.features == ({},)
    with pytest.raises(ValueError, match="'t5' needs the parameters"):
        twin.apply(variables, x, scheme=get_scheme("t5")())
