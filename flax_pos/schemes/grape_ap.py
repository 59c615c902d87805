"""GRAPE-AP: decay summed along the path from key to query, each step judged by the query."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.functional.angles import cos_sin_at
from flax_pos.functional.decay import suffix_sums
from flax_pos.functional.distance import alibi_slopes
from flax_pos.functional.fields import check_integer
from flax_pos.functional.rope.rotation import rotate_with_tables
from flax_pos.functional.shapes import beside_scores
from flax_pos.scheme import Scheme, register


@register("grape_ap")
@dataclass(frozen=True, kw_only=True)
class GrapeAP(Scheme):
    """Each token passed over costs a log-sigmoid of the product of its path vector with the
    query's, both of unit RMS and rotated by one radian per token; ALiBi's slopes scale the sum."""

    path_dim: int = 8
    """Width P of the path vectors, per head."""

    paper = "Zhang et al. 2025, arXiv:2512.07805"
    formula = "b = m_n sum_{l = j+1 .. i} log sigmoid(p_i.R_{i-l} p_l / P), p = rms_norm(W x)"
    causal_only = True

    def __post_init__(self):
        check_integer("path_dim", self.path_dim, at_least=2)
        if self.path_dim % 2:
            raise ValueError(f"path_dim must be even, got {self.path_dim}")

    def init_layer(self, key, dims):
        shape = (dims.width, dims.heads, self.path_dim)
        return {"w": dims.width**-0.5 * jax.random.normal(key, shape, jnp.float32)}

    def coords(self, params, x, at, prev):
        w = params["w"].astype(jnp.float32)
        p = jnp.einsum("...td,dnp->...tnp", x.astype(jnp.float32), w)
        p *= jax.lax.rsqrt(jnp.mean(jnp.square(p), -1, keepdims=True) + 1e-6)
        return at._replace(feats={**at.feats, "path": p})

    def _path(self, at):
        tables = cos_sin_at(at.pos, np.ones(self.path_dim // 2))
        return rotate_with_tables(at.feats["path"], *tables)

    def scores(self, params, pair, carry):
        logits, _ = super().scores(params, pair, None)
        step = jnp.einsum("...tnp,...snp->...nts", self._path(pair.q_at), self._path(pair.k_at))
        slopes = beside_scores(alibi_slopes(step.shape[-3]), step)
        step = slopes * jax.nn.log_sigmoid(step / self.path_dim)
        step = jnp.where(pair.mask, step, 0.0)
        total, carry = suffix_sums(step, carry)
        return logits + (total - step), carry
