"""A hook that returns something else than its contract says is named, whichever form attends."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_pos.functional.dot import mix_values
from flax_pos.nnx import CausalLM, ModelConfig
from flax_pos.scheme import Scheme
from flax_pos.scheme.contract import HookError
from flax_pos.testing.harness import RAGGED, forward, make_inputs

ROWS = 4
"""As many as heads, so that an axis of rows passes for one of heads."""


def scheme(**hooks) -> Scheme:
    """A scheme with these hooks and no name."""
    made = type("Wrong", (Scheme,), hooks)
    return dataclass(frozen=True, kw_only=True)(made)()


def gap(q_at, k_at):
    return (q_at.pos[..., :, None] - k_at.pos[..., None, :]).astype(jnp.float32)


def with_feats(at, value):
    return at._replace(feats={**at.feats, "mine": value})


OF_ATTENTION = {
    "bias without heads": (
        {"bias": lambda self, params, q_at, k_at, heads: -gap(q_at, k_at)},
        "hook bias must return *B N T S = (4, 4, ",
    ),
    "bias of other heads": (
        {
            "bias": lambda self, params, q_at, k_at, heads: (
                -gap(q_at, k_at)[..., None, :, :].repeat(2, 1)
            )
        },
        "hook bias must return *B N T S",
    ),
    "integer bias": (
        {"bias": lambda self, params, q_at, k_at, heads: q_at.pos[..., None, :, None]},
        "hook bias must return float32; got int32",
    ),
    "a number for a bias": (
        {"bias": lambda self, params, q_at, k_at, heads: 1.0},
        "hook bias must return *B N T S = (4, 4, ",
    ),
    "scores alone": (
        {"scores": lambda self, params, pair, carry: pair.logits},
        "hook scores must return two things",
    ),
    "scores of one head": (
        {"scores": lambda self, params, pair, carry: (pair.logits[:, :1], carry)},
        "hook scores must return *B N T S",
    ),
    "sums in the order of x": (
        {
            "mix": lambda self, params, weights, v, q_at, k_at: jnp.swapaxes(
                mix_values(weights, v), -2, -3
            )
        },
        "hook mix must return *B N T Hv",
    ),
    "rotated into float32": (
        {"rotate": lambda self, params, x, at, side: x.astype(jnp.float32)},
        "hook rotate must return bfloat16; got float32",
    ),
    "rotated with heads first": (
        {"rotate": lambda self, params, x, at, side: jnp.swapaxes(x, -2, -3)},
        "hook rotate must return *B T N H = (4, 13, 4, any); got shape (4, 4, 13, 8)",
    ),
    "coords that are a dict": (
        {"coords": lambda self, params, x, at, prev: {"mine": x}},
        "hook coords must return Coords",
    ),
    "coords without rows": (
        {"coords": lambda self, params, x, at, prev: with_feats(at, x[0])},
        "hook coords must return Coords whose feats are arrays that begin with *B T = (4, 13); "
        "'mine' has shape (13, 16)",
    ),
}


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("case", OF_ATTENTION)
def test_of_a_layer(case, implementation):
    hooks, message = OF_ATTENTION[case]
    dtype = jnp.bfloat16 if "float32" in case else jnp.float32
    inputs = make_inputs(Scheme(), batch=ROWS, dtype=dtype)
    blocks = RAGGED if implementation == "blockwise" else {}
    run = lambda: forward(scheme(**hooks), inputs, implementation=implementation, **blocks)
    with pytest.raises(HookError) as caught:
        jax.eval_shape(run)
    assert str(caught.value).startswith("scheme 'Wrong': its ")
    assert message in str(caught.value)


OF_A_MODEL = {
    "parameters that are an array": (
        {"init_layer": lambda self, key, dims: jnp.ones(dims.heads)},
        "hook init_layer must return a dict of parameters; got ",
    ),
    "integer parameters": (
        {"init_model": lambda self, key, dims: {"a": {"b": jnp.arange(3)}}},
        "hook init_model must return floating parameters; 'a.b' is int32",
    ),
    "positions of one row": (
        {"positions": lambda self, index, *, length: index[0]},
        "hook positions must return *B T = (4, 5); got shape (5,)",
    ),
    "16-bit positions": (
        {"positions": lambda self, index, *, length: index.astype(jnp.bfloat16)},
        "hook positions must return int32, or float32",
    ),
    "embedded in another width": (
        {"embed": lambda self, params, x, pos: x[..., :2]},
        "hook embed must return *B T D = (4, 5, 8); got shape (4, 5, 2)",
    ),
    "no embedding": (
        {"embed": lambda self, params, x, pos: None},
        "hook embed must return *B T D = (4, 5, 8); got NoneType",
    ),
    "features of frequencies": (
        {"features": lambda self, pos, dims: {"angle": jnp.ones(3)}},
        "hook features must return arrays that begin with *B T = (4, 5); 'angle' has shape (3,)",
    ),
    "features that are an array": (
        {"features": lambda self, pos, dims: pos},
        "hook features must return a dict of arrays",
    ),
}


@pytest.mark.parametrize("case", OF_A_MODEL)
def test_of_a_model(case):
    hooks, message = OF_A_MODEL[case]
    config = ModelConfig(vocab_size=11, width=8, layers=1, heads=2, max_len=16)

    def run():
        model = CausalLM(config, scheme(**hooks), rngs=nnx.Rngs(0))
        return model(jnp.zeros((4, 5), jnp.int32))

    with pytest.raises(HookError) as caught:
        jax.eval_shape(run)
    assert message in str(caught.value)
