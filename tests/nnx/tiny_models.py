"""Small models for tests, and one way to run them: compiled, so that equal shapes compile once."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_pos import from_dict, get_scheme
from flax_pos.nnx import CausalLM, ModelConfig

VOCAB = 17


def config(**settings) -> ModelConfig:
    """Two blocks with grouped heads, started large enough that every part matters."""
    sizes = {"vocab_size": VOCAB, "width": 16, "layers": 2, "heads": 4, "kv_heads": 2}
    return ModelConfig(**{**sizes, "max_len": 32, "init_std": 0.3, **settings})


def scheme_of(name):
    """A registered scheme under settings that short texts can show."""
    cls = get_scheme(name)
    return cls(**cls.toy)


def tiny(scheme="rope", seed=0, **settings) -> CausalLM:
    scheme = scheme_of(scheme) if isinstance(scheme, str) else scheme
    return CausalLM(config(**settings), scheme, rngs=nnx.Rngs(seed))


def some_ids(*shape, seed=0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, VOCAB, shape), jnp.int32)


@jax.jit
def run(model, ids, **options):
    return model(ids, **options)


def loss(model, ids):
    logits = jax.nn.log_softmax(model(ids[:, :-1]))
    return -jnp.take_along_axis(logits, ids[:, 1:, None], -1).mean()


def mixed():
    part = lambda name, **fields: {"name": name, **fields}
    parts = [part("rope"), part("alibi"), part("t5")]
    return from_dict({"name": "by_layer", "parts": parts, "pattern": [0, 1, 0, 2]})


def run_with(model, ids, scheme):
    return np.asarray(jax.jit(lambda m, i: m(i, scheme=scheme))(model, ids))
