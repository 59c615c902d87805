"""The model's numbers against float64 numpy, and the ways to run it against each other."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpy_model
import pytest
from flax import nnx
from tiny_models import VOCAB, config, loss, mixed, run, run_with, scheme_of, some_ids, tiny

from flax_pos import from_dict, get_scheme
from flax_pos.nnx import CausalLM, generate, restack

LLAMA = {"mlp": "gated", "activation": "silu"}
GPT2 = {
    "norm": "layer",
    "kv_heads": None,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
}
BLOCKS = {
    "llama": LLAMA,
    "gpt2": GPT2,
    "qwen3": {**LLAMA, "qk_norm": "head", "head_dim": 6, "tied": False},
    "gemma2": {
        **LLAMA,
        "activation": "gelu_tanh",
        "norm_offset": 1.0,
        "norm_at": "both",
        "attn_softcap": 0.7,
        "logit_softcap": 1.5,
        "attn_scale": 0.3,
        "embed_scale": 4.0,
    },
    "olmo2": {**LLAMA, "norm_at": "output"},
    "gpt_neox": {**GPT2, "residual": "parallel", "activation": "gelu"},
    "gptj": {
        **GPT2,
        "residual": "parallel_one_norm",
        "tied": False,
        "head_bias": True,
        "qkv_bias": False,
    },
    "post_norm": {**GPT2, "norm_at": "sum", "final_norm": False, "activation": "relu"},
    "cohere": {**LLAMA, "norm": "layer", "norm_bias": False, "logit_scale": 0.25},
}


def perturbed(model, seed=1):
    """All parameters moved, so that norm scales and biases count."""
    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state)
    rng = np.random.default_rng(seed)
    moved = [a + jnp.asarray(0.2 * rng.standard_normal(a.shape), a.dtype) for a in leaves]
    return nnx.merge(graph, jax.tree.unflatten(tree, moved))


@pytest.mark.parametrize("name", BLOCKS)
def test_logits_equal_the_formula(name):
    model = perturbed(tiny("rope", scan_layers=False, **BLOCKS[name]))
    width = model.config.dims.head_dim
    angle = lambda position, i: position * 10000.0 ** (-2 * i / width)
    ids = some_ids(1, 7)
    want = numpy_model.logits(model, np.asarray(ids[0]), angle=angle)
    np.testing.assert_allclose(run(model, ids)[0], want, atol=2e-5 * np.abs(want).max())


def test_learned_positions_equal_the_formula():
    model = perturbed(tiny("learned", scan_layers=False, **GPT2))
    table = numpy_model.parameters(model)["position.params.0.model.table"]
    ids = some_ids(1, 7)
    want = numpy_model.logits(model, np.asarray(ids[0]), table=table)
    np.testing.assert_allclose(run(model, ids)[0], want, atol=2e-5 * np.abs(want).max())


# Layers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["t5", mixed])
def test_scanned_layers_equal_separate_ones(scheme):
    scheme = scheme() if callable(scheme) else scheme_of(scheme)
    scanned = tiny(scheme, layers=8)
    apart = tiny(scheme, layers=8, scan_layers=False)
    ids = some_ids(2, 6)
    np.testing.assert_allclose(run(scanned, ids), run(apart, ids), atol=1e-5)
    np.testing.assert_array_equal(run(restack(scanned, scan_layers=False), ids), run(apart, ids))
    back = restack(restack(scanned, scan_layers=False), scan_layers=True)
    assert nnx.graphdef(back) == nnx.graphdef(scanned)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(back), nnx.state(scanned))


def test_layers_differ_from_each_other():
    kernels = tiny("none").blocks.mlp.up.kernel[...]
    assert not np.array_equal(kernels[0], kernels[1])


def test_each_layer_has_its_own_scheme():
    """Layers of a pattern take the scheme that the pattern gives them: moving the one layer
    without positions changes the outputs."""
    parts = [{"name": "rope"}, {"name": "none"}]
    by_layer = lambda *pattern: from_dict({"name": "by_layer", "parts": parts, "pattern": pattern})
    ids, model = some_ids(1, 6), tiny("rope")
    got = {p: run_with(model, ids, by_layer(*p)) for p in ((0, 1), (1, 0))}
    assert np.abs(got[0, 1] - got[1, 0]).max() > 1e-3


@pytest.mark.parametrize("scan_layers", [True, False])
def test_remat_changes_no_gradient(scan_layers):
    ids = some_ids(2, 6)
    grads = [
        jax.jit(jax.grad(loss))(tiny("rope", remat=remat, scan_layers=scan_layers), ids)
        for remat in (False, True)
    ]
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6)
    jax.tree.map(close, *[jax.tree.leaves(g) for g in grads])


def test_remat_keeps_less():
    count = {}
    for remat in (False, True):
        model, ids = tiny("rope", remat=remat, layers=4), some_ids(2, 6)
        _, residuals = jax.eval_shape(lambda m, i: jax.vjp(lambda m: loss(m, i), m), model, ids)
        count[remat] = sum(a.size for a in jax.tree.leaves(residuals))
    assert count[True] < 0.6 * count[False]


def test_program_does_not_grow_with_depth():
    text = lambda layers: len(
        jax.jit(jax.grad(loss)).lower(tiny("rope", layers=layers), some_ids(1, 6)).as_text()
    )
    assert text(24) <= 1.5 * text(4)


def test_cos_once_in_a_forward():
    """And in a decoding step for one token only."""
    model, ids = tiny("rope", layers=12), some_ids(1, 6)
    jaxpr = jax.make_jaxpr(lambda m, i: m(i))(model, ids)
    assert [size for _, size in _cosines(jaxpr.jaxpr)] == [6 * 2]  # tokens x pairs
    assert all(depth == 0 for depth, _ in _cosines(jaxpr.jaxpr))
    cache = model.init_cache(1, 32)
    jaxpr = jax.make_jaxpr(lambda m, i, c: m(i, cache=c))(model, ids[:, :1], cache)
    assert [size for _, size in _cosines(jaxpr.jaxpr)] == [2]


def _cosines(jaxpr, depth=0):
    """(loops around it, size) of every cosine."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "cos":
            found.append((depth, eqn.outvars[0].aval.size))
        for param in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(param):
                inner = getattr(param, "jaxpr", param)
                found += _cosines(inner, depth + (eqn.primitive.name in ("scan", "while")))
    return found


def _is_jaxpr(value) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def test_long_inputs_fold_no_tables():
    """The program for 131072 tokens holds no more constants than the one for 1024."""

    def program(length):
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        lowered = jax.jit(lambda m, i: m.hidden(i)[0]).lower(tiny("rope", layers=1), ids)
        return len(lowered.as_text())

    assert program(131072) < 1.1 * program(1024)


# Dtypes and the start ----------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_first_loss_is_that_of_guessing(tied):
    sizes = {"vocab_size": 1000, "width": 64, "heads": 4, "layers": 4, "init_std": 0.02}
    model = tiny("rope", tied=tied, **sizes)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 1000, (4, 33)))
    assert 6.8 < float(jax.jit(loss)(model, ids)) < 7.3  # ln 1000 = 6.91


def test_bfloat16_compute():
    model = tiny("rope", dtype="bfloat16", **LLAMA)
    ids = some_ids(2, 6)
    h, _ = jax.jit(lambda m, i: m.hidden(i))(model, ids)
    assert h.dtype == jnp.bfloat16
    got = run(model, ids)
    assert got.dtype == jnp.float32
    assert {a.dtype for a in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}
    want = run(tiny("rope", **LLAMA), ids)
    np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())
    assert not np.allclose(got, want, atol=1e-6)


def test_parameter_dtype():
    dtypes = {a.dtype for a in jax.tree.leaves(nnx.state(tiny("none", param_dtype="bfloat16")))}
    assert dtypes == {jnp.dtype("bfloat16")}


def test_residual_matrices_start_smaller():
    model = tiny("none", width=64, heads=4, layers=8, init_std=0.02)
    std = lambda kernel: float(np.std(kernel[...]))
    assert std(model.blocks.attention.q.kernel) == pytest.approx(0.02, rel=0.05)
    for kernel in (model.blocks.attention.out.kernel, model.blocks.mlp.down.kernel):
        assert std(kernel) == pytest.approx(0.02 / math.sqrt(16), rel=0.05)
    plain = tiny("none", width=64, heads=4, layers=8, init_std=0.02, scale_residual_init=False)
    assert std(plain.blocks.mlp.down.kernel) == pytest.approx(0.02, rel=0.05)


def test_surplus_rows_are_never_seen():
    """A table with rows past the vocabulary gives the logits of one without."""
    ids = some_ids(2, 6)
    wide = tiny("rope", vocab_rows=24)
    plain = tiny("rope")
    wide.embed.embedding[...] = jnp.full_like(wide.embed.embedding[...], jnp.nan)
    wide.embed.embedding[...] = wide.embed.embedding[...].at[:VOCAB].set(plain.embed.embedding[...])
    assert run(wide, ids).shape == (2, 6, VOCAB)
    np.testing.assert_array_equal(run(wide, ids), run(plain, ids))
    with pytest.raises(ValueError, match=r"ids 17 .* legal values are 0 \.\. 16"):
        wide(jnp.array([[17, 0]]))


def test_cross_entropy_equals_that_of_the_logits():
    model = tiny("rope", logit_scale=0.5, logit_softcap=2.0, vocab_rows=24)
    ids = some_ids(2, 9)

    def chunked(model, ids):
        return model.cross_entropy(model.hidden(ids[:, :-1])[0], ids[:, 1:], chunk=4)

    want, want_grad = jax.jit(jax.value_and_grad(loss))(model, ids)
    got, got_grad = jax.jit(jax.value_and_grad(chunked))(model, ids)
    assert float(got) == pytest.approx(float(want), abs=1e-6)
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6)
    jax.tree.map(close, jax.tree.leaves(got_grad), jax.tree.leaves(want_grad))
    with pytest.raises(ValueError, match="head_bias"):
        tiny("rope", head_bias=True).cross_entropy(jnp.zeros((1, 2, 16)), ids[:1, :2])


# Transformations -------------------------------------------------------------------------------


def test_seeds_at_once_equal_one_by_one():
    ids = some_ids(1, 6)
    build = lambda seed: CausalLM(config(), scheme_of("t5"), rngs=nnx.Rngs(jax.random.key(seed)))
    seeds = jnp.arange(3)
    stacked = jax.vmap(build)(seeds)
    kernels = stacked.blocks.mlp.up.kernel[...]
    assert all(not np.array_equal(kernels[a], kernels[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    got = jax.jit(jax.vmap(lambda m: jax.value_and_grad(loss)(m, ids)))(stacked)
    for i in range(3):
        want = jax.jit(jax.value_and_grad(loss))(build(i), ids)
        row = jax.tree.map(lambda a, i=i: a[i], got)
        close = lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6)
        jax.tree.map(close, jax.tree.leaves(row), jax.tree.leaves(want))


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("scan_layers", [True, False])
def test_graph_and_tree_mode(graph, scan_layers):
    with nnx.set_graph_mode(graph):
        model, ids = tiny("t5", scan_layers=scan_layers), some_ids(2, 6)
        want = run(model, ids)
        compiled = nnx.jit(lambda m, i: m(i))
        np.testing.assert_allclose(compiled(model, ids), want, atol=1e-6)
        graphdef, state = nnx.split(model)
        np.testing.assert_array_equal(run(nnx.merge(graphdef, state), ids), want)
        grads = nnx.jit(nnx.grad(loss))(model, ids)
        close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6)
        plain = jax.jit(jax.grad(loss))(model, ids)
        jax.tree.map(close, jax.tree.leaves(grads), jax.tree.leaves(plain))
        assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(grads))
        paths = [path for path, _ in nnx.to_flat_state(nnx.state(model))]
        assert len(paths) == len(set(paths)) == len(jax.tree.leaves(model))


def test_a_second_model_compiles_nothing():
    count = []

    @jax.jit
    def forward(model, ids):
        count.append(1)
        return model(ids)

    for seed in range(2):
        forward(tiny("rope", seed=seed), some_ids(2, 6))
    forward(tiny(get_scheme("rope")(theta=1e4)), some_ids(2, 6))
    assert len(count) == 1
    forward(tiny(get_scheme("rope")(theta=1e5)), some_ids(2, 6))
    assert len(count) == 2


@pytest.mark.parametrize("rows", [{"vocab_size": 24}, {"vocab_rows": 18}], ids=str)
def test_axis_names_place_parameters_on_a_mesh(rows):
    """The same logits with the parameters spread over eight devices by their names, also where
    the vocabulary itself does not divide them."""
    model, ids = tiny("rope", mlp="gated", tied=False, **rows), some_ids(2, 6)
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rules = [("vocab", "tensor"), ("heads", "tensor"), ("kv_heads", "tensor"), ("mlp", "tensor"),
             ("embed", "data"), ("layers", None)]  # fmt: skip
    graph, state = nnx.split(model)
    with nnx.logical_axis_rules(rules):
        specs = nnx.get_partition_spec(state)
    spec = dict(nnx.to_flat_state(specs))[("blocks", "mlp", "up", "kernel")]
    assert spec.get_value() == jax.sharding.PartitionSpec(None, "data", "tensor")
    shardings = jax.tree.map(
        lambda s: jax.sharding.NamedSharding(mesh, s),
        specs,
        is_leaf=lambda s: isinstance(s, jax.sharding.PartitionSpec),
    )
    spread = nnx.merge(graph, jax.device_put(state, shardings))
    assert len(spread.blocks.mlp.up.kernel[...].sharding.device_set) == 8
    np.testing.assert_allclose(run(spread, ids), run(model, ids), atol=1e-5)


@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_no_tokens(name):
    assert run(tiny(name), some_ids(2, 6)[:, :0]).shape[:2] == (2, 0)


@pytest.mark.parametrize("scheme", ["rope", get_scheme("rope")])
def test_a_scheme_is_an_instance(scheme):
    config = tiny("rope").config
    with pytest.raises(TypeError, match=r"such as get_scheme\('rope'\)\(\); got"):
        CausalLM(config, scheme, rngs=nnx.Rngs(0))


def test_x64_changes_nothing():
    model, ids = tiny("t5"), some_ids(2, 6)
    want, text = run(model, ids), generate(model, ids, max_new_tokens=3)
    with jax.enable_x64(True):
        wide = tiny("t5")
        assert {a.dtype for a in jax.tree.leaves(nnx.state(wide))} == {jnp.dtype("float32")}
        got = run(wide, ids)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, atol=1e-5)
        again = generate(wide, ids, max_new_tokens=3)
        assert again.dtype == jnp.int32
        np.testing.assert_array_equal(again, text)
