"""Dense attention: the whole T x S matrix. The oracle, and the fast path for short sequences."""

import math

import jax
import jax.numpy as jnp

from flax_pos.types import Coords, Pair


def allowed(q_at: Coords, k_at: Coords, *, causal: bool, window: int | None) -> jax.Array:
    """bool `*B 1 T S`: which query may see which key, from `index` and `segment` alone."""
    q, k = q_at.index[..., :, None], k_at.index[..., None, :]
    ok = (q >= 0) & (k >= 0)
    if causal:
        ok &= k <= q
    if window is not None:
        ok &= jnp.abs(q - k) < window
    if q_at.segment is not None and k_at.segment is not None:
        ok &= q_at.segment[..., :, None] == k_at.segment[..., None, :]
    return ok[..., None, :, :]


def attend_dense(
    scheme, params, q, k, v, q_at, k_at, *, causal=True, window=None, scale=None, implementation="auto"
):
    """Softmax attention with the scheme's bias and scores; `*B T N Hv`."""
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    n, kv = q.shape[-2], k.shape[-2]
    qg = q.reshape(*q.shape[:-2], kv, n // kv, q.shape[-1])
    logits = jnp.einsum("...tkgh,...skh->...kgts", qg, k, preferred_element_type=jnp.float32)
    logits = logits.reshape(*logits.shape[:-4], n, *logits.shape[-2:]) * scale
    window = scheme.window if window is None else window
    mask = allowed(q_at, k_at, causal=causal, window=window)
    bias = scheme.bias(params, q_at, k_at, n)
    logits, _ = scheme.scores(params, Pair(q, k, logits, bias, mask, q_at, k_at), None)
    logits = jnp.where(mask, logits, -1e30)
    p = jnp.where(mask, jax.nn.softmax(logits, -1), 0.0)
    pg = p.reshape(*p.shape[:-3], kv, n // kv, *p.shape[-2:]).astype(v.dtype)
    out = jnp.einsum("...kgts,...skh->...tkgh", pg, v)
    return out.reshape(*out.shape[:-3], n, v.shape[-1])
