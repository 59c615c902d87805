"""Flax NNX modules: thin shells that hold parameters around the pure functions."""

from flax_pos.nnx.attention import Attention
from flax_pos.nnx.block import MLP, Block
from flax_pos.nnx.causal_lm import CausalLM, restack
from flax_pos.nnx.config import ModelConfig
from flax_pos.nnx.embed import Embed
from flax_pos.nnx.generate import generate, stream
from flax_pos.nnx.position import PositionEncoding
from flax_pos.nnx.rope import Rope

__all__ = [
    "MLP",
    "Attention",
    "Block",
    "CausalLM",
    "Embed",
    "ModelConfig",
    "PositionEncoding",
    "Rope",
    "generate",
    "restack",
    "stream",
]
