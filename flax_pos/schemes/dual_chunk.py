"""Dual chunk attention: positions restart in chunks, so no distance exceeds those trained on."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.angles import logits_at
from flax_pos.functional.fields import check_integer
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.rotation import Layout, check_layout
from flax_pos.scheme import Scheme, register


@register("dual_chunk")
@dataclass(frozen=True, kw_only=True)
class DualChunk(Scheme):
    """RoPE with keys at `j mod s`, s = span - local, and queries at `i mod s` for their own
    chunk, `min(i mod s + s, span)` for the one before, `span` for all earlier ones.

    ChunkLlama's settings for a model trained on L tokens: span 3 L / 4, local L / 16.
    """

    span: int = 3072
    """Largest distance (ChunkLlama's chunk size), here for L = 4096."""
    local: int = 256
    """Distances up to this stay exact across a border between chunks."""
    theta: float = 10000.0
    layout: Layout = "half"

    paper = "An et al. 2024, arXiv:2402.17463"
    formula = "q_i.R_r k_j / sqrt(H), r = p - j mod s, p = i mod s, min(i mod s + s, c) or c"
    relative = False
    causal_only = True
    toy = {"span": 10, "local": 3}

    def __post_init__(self):
        check_integer("span", self.span, at_least=2)
        check_integer("local", self.local)
        if self.local >= self.span:
            raise ValueError(f"local must be below span={self.span}, got {self.local}")
        check_theta(self.theta)
        check_layout(self.layout)

    def scores(self, params, pair, carry):
        inv_freq = ladder(self.theta, pair.q.shape[-1])
        size = self.span - self.local
        (q_chunk, q_rest), (k_chunk, k_rest) = (
            jnp.divmod(at.pos, size) for at in (pair.q_at, pair.k_at)
        )
        own, before, earlier = (
            logits_at(pair, q_pos, k_rest, inv_freq, layout=self.layout)
            for q_pos in (
                q_rest,
                jnp.minimum(q_rest + size, self.span),
                jnp.full_like(q_rest, self.span),
            )
        )
        apart = (q_chunk[..., :, None] - k_chunk[..., None, :])[..., None, :, :]
        logits = jnp.where(apart <= 0, own, jnp.where(apart == 1, before, earlier))
        return super().scores(params, pair._replace(logits=logits), carry)
