"""Under a mesh with explicit axes, which is what `jax.make_mesh` makes, a batch stays spread over
devices and the numbers are those of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from tiny_models import some_ids, tiny

from flax_pos import embed, from_dict, unembed
from flax_pos.nnx import generate

MESH = jax.make_mesh((4, 2), ("data", "tensor"))


def put(tree, *spec):
    return jax.device_put(tree, NamedSharding(MESH, PartitionSpec(*spec)))


@nnx.jit
def step(model, ids):
    def loss(model):
        h, _ = model.hidden(ids)
        return model.cross_entropy(h[:, :-1], ids[:, 1:]) + jnp.mean(model(ids) ** 2)

    return nnx.value_and_grad(loss)(model)


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("learned", "dense"),
        ("t5", "dense"),
        ("rope", "blockwise"),
        ("fox", "blockwise"),
        ("cope", "blockwise"),
    ],
)
def test_a_training_step(name, attention):
    model, ids = tiny(name, attention=attention, tied=False), some_ids(8, 6)
    want = step(model, ids)
    graph, state = nnx.split(model)
    with jax.set_mesh(MESH):
        got = step(nnx.merge(graph, put(state)), put(ids, "data"))
        logits = jax.eval_shape(nnx.merge(graph, put(state)), put(ids, "data"))
    assert logits.sharding.spec[0] == "data"
    for ours, right in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(ours, right, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [("rope", {}), ("learned", {"temperature": 1.0, "eos_id": 3}), ("cope", {}), ("ntk", {})],
)
def test_generation(name, options):
    """Rows that are spread are continued where they are, token for token as on one device."""
    law = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
    ntk = {"name": "rope", "spec": {"scaling": law}}
    scheme = name if name != "ntk" else from_dict(ntk)
    model, ids = tiny(scheme, scan_layers=name == "rope"), some_ids(8, 6)
    mask = jnp.arange(6)[None] >= jnp.arange(8)[:, None] % 3
    options = {"max_new_tokens": 4, "mask": mask, **options}
    if "temperature" in options:
        options["key"] = jax.random.key(1)
    want = generate(model, ids, **options)
    graph, state = nnx.split(model)
    with jax.set_mesh(MESH):
        got = generate(nnx.merge(graph, put(state)), put(ids, "data"), **options)
    assert got.sharding.spec[0] == "data"
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("spec", [(), ("tensor",), (None, "tensor"), ("data", "tensor")], ids=str)
def test_a_table_however_it_lies(spec):
    """Rows, columns or both over devices: the result lies as the ids do, and across as the table,
    where the ids leave that axis free; the gradient lies as the table."""
    table = normal((8, 6))
    ids = jnp.array([[1, 7], [0, 3], [2, 2], [6, 5]])
    loss = lambda table, ids: jnp.sum(embed({"embedding": table}, ids) ** 2)
    want, gradient = embed({"embedding": table}, ids), jax.grad(loss)(table, ids)
    spread, at = put(table, *spec), put(ids, "data")
    with jax.set_mesh(MESH):
        eager = embed({"embedding": spread}, at)
        got = jax.jit(lambda t, i: embed({"embedding": t}, i))(spread, at)
        ours = jax.jit(jax.grad(loss))(spread, at)
        logits = jax.jit(lambda t, h: unembed({"embedding": t}, h))(put(table, "tensor"), got)
    across = spec[1] if len(spec) > 1 else None
    assert got.sharding.spec == eager.sharding.spec == PartitionSpec("data", None, across)
    assert ours.sharding.is_equivalent_to(spread.sharding, 2)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(eager, want)
    np.testing.assert_allclose(ours, gradient, rtol=1e-6)
    np.testing.assert_allclose(logits, want @ table.T, rtol=1e-5)


def test_an_axis_that_the_ids_have_is_not_used_across():
    table, ids = jnp.ones((8, 8)), jnp.zeros((8, 2), jnp.int32)
    with jax.set_mesh(MESH):
        got = jax.jit(lambda t, i: embed({"embedding": t}, i))(
            put(table, None, "data"), put(ids, "data")
        )
    assert got.sharding.spec == PartitionSpec("data", None, None)
