"""Attention written out in float64 numpy, one query at a time."""

import numpy as np


def attention(
    q, k, v, q_index, k_index, *, bias=None, causal=True, window=None, chunk=None, scale=None,
    softcap=None, sinks=None, q_segment=None, k_segment=None,
):  # fmt: skip
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    batch, queries, heads, width = q.shape
    keys, groups = k.shape[1], heads // k.shape[2]
    scale = width**-0.5 if scale is None else scale
    out = np.zeros((batch, queries, heads, v.shape[-1]))
    for b, t, n in np.ndindex(batch, queries, heads):
        i, scores, values = int(q_index[b, t]), [], []
        for s in range(keys):
            j = int(k_index[b, s])
            seen = i >= 0 and j >= 0 and not (causal and j > i)
            seen &= window is None or abs(i - j) <= window - 1
            seen &= chunk is None or i // chunk == j // chunk
            seen &= q_segment is None or q_segment[b, t] == k_segment[b, s]
            if not seen:
                continue
            score = scale * q[b, t, n] @ k[b, s, n // groups]
            if softcap is not None:
                score = softcap * np.tanh(score / softcap)
            scores.append(score + (0 if bias is None else bias[n, i, j]))
            values.append(v[b, s, n // groups])
        if not scores:
            continue
        rest = [] if sinks is None else [np.float64(sinks[n])]
        weights = np.exp(np.array(scores + rest) - max(scores + rest))
        out[b, t, n] = weights[: len(scores)] @ np.array(values) / weights.sum()
    return out
