"""Polar coordinates: content sets the length of each channel, position its angle."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.functional.angles import cos_sin_at, turn
from flax_pos.functional.dot import dot_logits
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.shapes import beside
from flax_pos.scheme import Scheme, register


@register("pope")
@dataclass(frozen=True, kw_only=True)
class Pope(Scheme):
    """Each channel c is a complex number of length softplus(q_c) at angle `i theta_c`: H
    frequencies, where RoPE has H / 2 and lets content turn them. A trained offset per head and
    channel, kept within -2 pi .. 0, is added to the angle between q and k.

    Keys are cached H wide and spread to 2 H block by block.
    """

    theta: float = 10000.0

    paper = "Gopalakrishnan et al. 2025, arXiv:2509.10534"
    formula = "s = sum_c softplus(q_c) softplus(k_c) cos((j - i) theta^(-c/H) + d_c) / sqrt(H)"

    def __post_init__(self):
        check_theta(self.theta)

    def init_layer(self, key, dims):
        return {"offset": jnp.zeros((dims.heads, dims.head_dim), jnp.float32)}

    def scores(self, params, pair, carry):
        width = pair.q.shape[-1]
        inv_freq = ladder(self.theta, 2 * width, width)
        q_cos, q_sin = (t[..., None, :] for t in cos_sin_at(pair.q_at.pos, inv_freq))
        k_cos, k_sin = (t[..., None, :] for t in cos_sin_at(pair.k_at.pos, inv_freq))
        # On the query's side, where every head has its own: the angle from q to k is what counts.
        offset = jnp.clip(params["offset"].astype(jnp.float32), -2 * np.pi, 0.0)
        offset = beside(offset, q_cos)
        q_cos, q_sin = turn(q_cos, q_sin, jnp.cos(offset), -jnp.sin(offset))
        q, k = (
            jnp.concatenate([length * cos, length * sin], -1)
            for length, cos, sin in (
                (jax.nn.softplus(pair.q.astype(jnp.float32)), q_cos, q_sin),
                (jax.nn.softplus(pair.k.astype(jnp.float32)), k_cos, k_sin),
            )
        )
        logits = dot_logits(q, k, scale=pair.scale, softcap=pair.softcap)
        return super().scores(params, pair._replace(logits=logits), carry)
