"""PaTH: every token reflects what passes over it; reference form."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.decay import recent
from flax_pos.functional.fields import check_integer
from flax_pos.functional.shapes import beside
from flax_pos.scheme import Scheme, register


@register("path")
@dataclass(frozen=True, kw_only=True)
class Path(Scheme):
    """Between key and query stand Householder-like maps `I - beta w w'`, one per token, with w
    and beta from content, per key/value head.

    Usually each new token rewrites all cached keys. Here the query is carried back from key to
    key instead, one after the other within a block: keys stay as they are, and the time is that
    of a loop over keys. A reference for short texts, not a fast kernel.
    """

    rank: int = 32
    """Of the map from the input to w."""
    kernel: int = 3
    """Tokens that its convolution sees."""

    paper = "Yang et al. 2025, arXiv:2505.16381"
    formula = "s = q_i' H_i H_{i-1} .. H_{j+1} k_j / sqrt(H), H_t = I - b_t w_t w_t', |w_t| = 1"
    causal_only = True

    def __post_init__(self):
        check_integer("rank", self.rank)
        check_integer("kernel", self.kernel)

    def init_layer(self, key, dims):
        down, up, conv, beta = jax.random.split(key, 4)
        draw = lambda key, shape, fan_in: jax.random.uniform(
            key, shape, jnp.float32, -(fan_in**-0.5), fan_in**-0.5
        )
        heads = (dims.kv_heads, dims.head_dim)
        return {
            "down": draw(down, (dims.width, self.rank), dims.width),
            "up": draw(up, (self.rank, *heads), self.rank),
            "conv": draw(conv, (self.kernel, *heads), self.kernel),
            "beta": draw(beta, (dims.width, dims.kv_heads), dims.width),
            "beta_bias": jnp.zeros((dims.kv_heads,), jnp.float32),
        }

    def coords(self, params, x, at, prev):
        own = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        x = x.astype(jnp.float32)
        low_rank = jnp.where(at.index[..., None] >= 0, x @ own["down"], 0.0)
        before = None if prev is None else prev.feats["recent"]
        last = recent(low_rank, at.index, self.kernel, before)
        w = jax.nn.silu(jnp.einsum("...tcr,rkh,ckh->...tkh", last, own["up"], own["conv"]))
        w *= jax.lax.rsqrt(jnp.sum(jnp.square(w), -1, keepdims=True) + 1e-6)
        beta = x @ own["beta"]
        beta = 2 * jax.nn.sigmoid(beta + beside(own["beta_bias"], beta))
        kept = {"w": w, "beta": beta, "recent": last[..., : self.kernel - 1, :]}
        return at._replace(feats={**at.feats, **kept})

    def scores(self, params, pair, carry):
        *batch, t, heads, width = pair.q.shape
        kv_heads = pair.k.shape[-2]
        if carry is None:
            carry = pair.q.astype(jnp.float32)
        query = carry.reshape(*batch, t, kv_heads, heads // kv_heads, width)
        keys_first = lambda a, axis: jnp.moveaxis(a, axis, 0)
        feats = pair.k_at.feats
        xs = (
            keys_first(pair.k.astype(jnp.float32), -3),
            keys_first(feats["w"], -3),
            keys_first(feats["beta"], -2),
            keys_first(pair.mask[..., 0, :, :], -1),
        )

        def step(query, key):
            k, w, beta, seen = key
            logit = jnp.einsum("...tkgh,...kh->...tkg", query, k)
            part = jnp.einsum("...tkgh,...kh->...tkg", query, w)
            part = jnp.where(seen[..., None, None], part * beta[..., None, :, None], 0.0)
            return query - part[..., None] * w[..., None, :, None, :], logit

        query, logits = jax.lax.scan(step, query, xs, reverse=True)
        logits = jnp.moveaxis(logits.reshape(*logits.shape[:-2], heads), (0, -1), (-1, -3))
        logits *= jnp.asarray(pair.scale, jnp.float32)
        if pair.softcap is not None:
            logits = pair.softcap * jnp.tanh(logits / pair.softcap)
        carry = query.reshape(carry.shape)
        return super().scores(params, pair._replace(logits=logits), None)[0], carry
