"""Checks of the modules around a scheme."""

import jax
import jax.numpy as jnp
from flax import nnx

from flax_pos import linen
from flax_pos.attention.place import place
from flax_pos.nnx import PositionEncoding
from flax_pos.nnx.params import arrays
from flax_pos.scheme import Scheme, plan_layers
from flax_pos.testing.harness import DIMS, assert_close, make_inputs, project


def check_modules(scheme: Scheme) -> None:
    """The NNX module, split and merged, the Linen module and plain dicts give the same numbers."""
    part = scheme.for_layer(0)
    inputs = make_inputs(part)
    module = PositionEncoding(scheme, DIMS, rngs=nnx.Rngs(0))
    graph, state = nnx.split(module)
    params = arrays(module.params)
    plan = plan_layers(scheme, DIMS.layers)
    shapes = lambda tree: [a.shape for a in jax.tree.leaves(tree)]

    def layers(x, placement):
        q, k, v = project(x, inputs.weights)
        outputs = [placement.layer(n).attend(x, q, k, v)[0] for n in range(DIMS.layers)]
        return x, outputs

    def gradients(state):
        loss = lambda module: jnp.sum(layers(*module(inputs.x, ids=inputs.ids))[0])
        return nnx.grad(loss)(nnx.merge(graph, state))

    own = jax.eval_shape(gradients, state)
    assert shapes(own) == shapes(state), "a parameter without a gradient"
    twin = linen.PositionEncoding(scheme, DIMS)
    own = jax.eval_shape(lambda: twin.init(jax.random.key(0), inputs.x, ids=inputs.ids))
    assert shapes(own) == shapes(params), "the Linen module has other parameters"

    @jax.jit
    def every_form(state, params, x, ids):
        merged = nnx.merge(graph, state)
        variables = {"params": {"position": params}}
        return (
            layers(*place(plan, params, DIMS, x, ids=ids)),
            layers(*merged(x, ids=ids)),
            layers(*twin.apply(variables, x, ids=ids)),
        )

    plain, merged, applied = every_form(state, params, inputs.x, inputs.ids)
    assert_close(merged, plain, "NNX module")
    assert_close(applied, plain, "Linen module")


__all__ = ["check_modules"]
