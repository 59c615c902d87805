"""How many parameters a model has, where, and what they weigh; nothing is allocated."""

from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from flax_pos.nnx import CausalLM, ModelConfig
from flax_pos.scheme import Scheme

PRESETS: dict[str, tuple[ModelConfig, str]] = {
    "gpt2": (
        ModelConfig(
            vocab_size=50257,
            width=768,
            layers=12,
            heads=12,
            max_len=1024,
            norm="layer",
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
        ),
        "learned",
    ),
    "llama-3.1-8b": (
        ModelConfig(
            vocab_size=128256,
            width=4096,
            layers=32,
            heads=32,
            kv_heads=8,
            max_len=131072,
            mlp="gated",
            mlp_width=14336,
            activation="silu",
            tied=False,
            param_dtype="bfloat16",
        ),
        "rope(theta=500000.0)",
    ),
    "qwen2.5-0.5b": (
        ModelConfig(
            vocab_size=151936,
            width=896,
            layers=24,
            heads=14,
            kv_heads=2,
            max_len=32768,
            mlp="gated",
            mlp_width=4864,
            activation="silu",
            qkv_bias=True,
            param_dtype="bfloat16",
        ),
        "rope(theta=1000000.0)",
    ),
    "gemma-3-1b": (
        ModelConfig(
            vocab_size=262144,
            width=1152,
            layers=26,
            heads=4,
            kv_heads=1,
            head_dim=256,
            max_len=32768,
            mlp="gated",
            mlp_width=6912,
            qk_norm="head",
            param_dtype="bfloat16",
        ),
        "rope(theta=1000000.0)",
    ),
}
"""Sizes of known models, with their position scheme."""


class Part(NamedTuple):
    """Some of a model's parameters."""

    parameters: int
    bytes: int

    def __add__(self, other) -> "Part":
        return Part(self.parameters + other.parameters, self.bytes + other.bytes)


class Account(NamedTuple):
    """A model's parameters by what they are for."""

    embedding: Part
    head: Part
    """Zero where the head is the embedding."""
    positional: Part
    rest: Part
    """Attention, MLPs and norms."""

    @property
    def total(self) -> Part:
        return self.embedding + self.head + self.positional + self.rest

    @property
    def tying(self) -> Part:
        """What one matrix for embedding and head saves, or would save."""
        return self.embedding


def account(config: ModelConfig, scheme: Scheme) -> Account:
    """Counts a model's parameters by tracing its creation.

    >>> from flax_pos import get_scheme
    >>> config = ModelConfig(vocab_size=128256, width=4096, layers=1, heads=32, tied=False)
    >>> account(config, get_scheme("none")()).embedding.parameters
    525336576
    """
    blank = nnx.eval_shape(lambda: CausalLM(config, scheme, rngs=nnx.Rngs(0)))
    parts = {"embedding": Part(0, 0), "head": Part(0, 0), "position": Part(0, 0), "": Part(0, 0)}
    for path, variable in nnx.to_flat_state(nnx.state(blank)):
        names = [str(p) for p in path]
        kind = names[1] if names[0] == "embed" else names[0] if names[0] == "position" else ""
        array = variable.get_value()
        assert isinstance(array, jax.ShapeDtypeStruct)
        size = int(np.prod(array.shape))
        parts[kind] += Part(size, size * array.dtype.itemsize)
    return Account(parts["embedding"], parts["head"], parts["position"], parts[""])
