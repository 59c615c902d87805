"""Transformer-XL: queries meet keys and sinusoids of the distance apart, each with its own bias."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.angles import cos_sin_at
from flax_pos.functional.dot import dot_logits
from flax_pos.functional.fields import check_number
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.shapes import beside
from flax_pos.scheme import Scheme, register


@register("transformer_xl")
@dataclass(frozen=True, kw_only=True)
class TransformerXL(Scheme):
    """`(q_i + u) . k_j + (q_i + v) . W R[i - j]`, R the sinusoids of width D; W per layer, u and v
    shared by all layers.

    sin and cos of i - j are products of those of i and of j, so the second term is a dot product
    of D numbers of the query with D of the key: exact at any distance, with no shift of rows.
    """

    theta: float = 10000.0
    stddev: float = 0.02
    """Of all initial parameters."""

    paper = "Dai et al. 2019, arXiv:1901.02860"
    formula = "s = ((q_i + u).k_j + (q_i + v).W R[i - j]) / sqrt(H)"

    def __post_init__(self):
        check_theta(self.theta)
        check_number("stddev", self.stddev, at_least=0)

    def init_model(self, key, dims):
        u, v = self.stddev * jax.random.normal(key, (2, dims.heads, dims.head_dim), jnp.float32)
        return {"u": u, "v": v}

    def init_layer(self, key, dims):
        shape = (dims.width // 2, 2, dims.heads, dims.head_dim)
        return {"w": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def scores(self, params, pair, carry):
        u, v, w = (params[name].astype(jnp.float32) for name in "uvw")
        q = pair.q.astype(jnp.float32)
        content = dot_logits(
            q + beside(u, q), pair.k.astype(jnp.float32), scale=pair.scale, softcap=pair.softcap
        )
        # What each query wants of sin and of cos of the distance, per frequency.
        wanted = jnp.einsum("...tnh,fcnh->...tnfc", q + beside(v, q), w)
        of_sin, of_cos = wanted[..., 0], wanted[..., 1]
        pairs = w.shape[0]
        inv_freq = ladder(self.theta, 2 * pairs)
        (q_cos, q_sin), (k_cos, k_sin) = (
            cos_sin_at(at.pos, inv_freq) for at in (pair.q_at, pair.k_at)
        )
        q_cos, q_sin = q_cos[..., None, :], q_sin[..., None, :]
        with_k_cos = of_sin * q_sin + of_cos * q_cos
        with_k_sin = of_cos * q_sin - of_sin * q_cos
        position = jnp.einsum(
            "...tnf,...sf->...nts",
            jnp.concatenate([with_k_cos, with_k_sin], -1),
            jnp.concatenate([k_cos, k_sin], -1),
            precision="highest",
        )
        logits = content + pair.scale * position
        return super().scores(params, pair._replace(logits=logits), carry)
