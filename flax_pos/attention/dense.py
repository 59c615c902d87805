"""Dense attention: the whole T x S matrix. The oracle, and the fast path for short sequences.

Everything in it is differentiable to any order, forward and reverse.
"""

import jax
import jax.numpy as jnp

from flax_pos.attention.mask import Reach
from flax_pos.functional.dot import dot_logits
from flax_pos.scheme import Scheme, contract
from flax_pos.types import Coords, Pair, Params

LOWEST = -1e30
"""The logit of a key that is not seen: far below any other, yet finite."""


def block_scores(
    scheme: Scheme,
    params: Params,
    q: jax.Array,
    k: jax.Array,
    q_at: Coords,
    k_at: Coords,
    mask: jax.Array,
    carry,
    *,
    scale,
    softcap,
):
    """Scores `*B N T S` (float32, not masked) of a block of queries against a block of keys, and
    the carry for the block to its left. The whole matrix is one block with carry None."""
    logits = dot_logits(q, k, scale=scale, softcap=softcap)
    with contract.params_of(scheme, params):
        bias = scheme.bias(params, q_at, k_at, q.shape[-2])
    if bias is not None:
        contract.check_array(scheme, "bias", bias, "*B N T S", logits.shape, stretch=True)
    pair = Pair(q, k, logits, bias, mask, q_at, k_at, scale, softcap)
    with contract.params_of(scheme, params):
        scored = scheme.scores(params, pair, carry)
    contract.check_scores(scheme, scored, logits.shape)
    return scored


def block_sums(
    scheme: Scheme, params: Params, weights: jax.Array, v: jax.Array, q_at: Coords, k_at: Coords
) -> jax.Array:
    """Sums of values `*B N T Hv` (float32) over the keys of a block, by their weights."""
    with contract.params_of(scheme, params):
        sums = scheme.mix(params, weights, v, q_at, k_at)
    shape = (*weights.shape[:-1], v.shape[-1])
    contract.check_array(scheme, "mix", sums, "*B N T Hv", shape)
    return sums


def attend_dense(
    scheme: Scheme,
    params: Params,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_at: Coords,
    k_at: Coords,
    *,
    reach: Reach,
    scale,
    softcap,
    sinks,
) -> jax.Array:
    """`attend` with the whole matrix at once; arguments as resolved by `attend`."""
    mask = reach.allowed(q_at, k_at)
    scores, _ = block_scores(
        scheme, params, q, k, q_at, k_at, mask, None, scale=scale, softcap=softcap
    )
    scores = jnp.where(mask, scores, LOWEST)
    if not scheme.normalized:
        weights = jnp.where(mask, jnp.exp(scores), 0.0)
    else:
        top = scores.max(-1, keepdims=True)
        if sinks is not None:
            sinks = sinks.astype(jnp.float32).reshape((1,) * (top.ndim - 3) + (-1, 1, 1))
            top = jnp.maximum(top, sinks)
        # A bias may be -inf at every key that a query sees.
        top = jax.lax.stop_gradient(jnp.maximum(top, LOWEST))
        weights = jnp.where(mask, jnp.exp(scores - top), 0.0)
        total = weights.sum(-1, keepdims=True)
        if sinks is not None:
            total += jnp.exp(sinks - top)
        weights /= jnp.where(total > 0, total, 1.0)
    out = block_sums(scheme, params, weights, v, q_at, k_at)
    return jnp.swapaxes(out, -2, -3).astype(v.dtype)


__all__ = ["attend_dense", "block_scores", "block_sums"]
