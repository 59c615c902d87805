"""The whole model in float64 numpy, token by token, written from the formulas."""

import math

import numpy as np
from flax import nnx

erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
}


def parameters(model) -> dict[str, np.ndarray]:
    flat = nnx.to_flat_state(nnx.state(model))
    return {".".join(map(str, path)): np.asarray(v[...], np.float64) for path, v in flat}


def logits(model, ids, *, angle=None, table=None) -> np.ndarray:
    """Logits of one row.

    Args:
      angle: angle(position, pair) by which q and k are rotated in halves; None: not at all.
      table: rows added to the embeddings; None: none.
    """
    c, p = model.config, parameters(model)
    dims = c.dims

    def norm(x, name):
        if c.norm == "layer":
            x = x - x.mean()
        scale = p[f"{name}.scale"] + c.norm_offset
        out = x / np.sqrt((x**2).mean() + c.norm_eps) * scale
        return out + p.get(f"{name}.bias", 0.0)

    def product(x, name):
        return x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0.0)

    def rotated(head, position):
        half = len(head) // 2
        a, b = head[:half], head[half:]
        t = np.array([angle(position, i) for i in range(half)])
        return np.concatenate([a * np.cos(t) - b * np.sin(t), b * np.cos(t) + a * np.sin(t)])

    def capped(x, cap):
        return x if cap is None else cap * np.tanh(x / cap)

    def attention(xs, name):
        q, k, v = ([product(x, f"{name}.{part}") for x in xs] for part in "qkv")
        split = lambda a, heads: a.reshape(heads, -1)
        q, k, v = ([split(a, n) for a in part] for part, n in
                   ((q, dims.heads), (k, dims.kv_heads), (v, dims.kv_heads)))  # fmt: skip
        if c.qk_norm == "head":
            q = [np.stack([norm(h, f"{name}.q_norm") for h in a]) for a in q]
            k = [np.stack([norm(h, f"{name}.k_norm") for h in a]) for a in k]
        if angle is not None:
            q = [np.stack([rotated(h, t) for h in a]) for t, a in enumerate(q)]
            k = [np.stack([rotated(h, t) for h in a]) for t, a in enumerate(k)]
        scale = c.attn_scale or dims.head_dim**-0.5
        out = []
        for t in range(len(xs)):
            heads = []
            for n in range(dims.heads):
                own = n // (dims.heads // dims.kv_heads)
                scores = [capped(q[t][n] @ k[s][own] * scale, c.attn_softcap) for s in range(t + 1)]
                w = np.exp(np.array(scores) - max(scores))
                w /= w.sum()
                heads.append(sum(w[s] * v[s][own] for s in range(t + 1)))
            out.append(product(np.concatenate(heads), f"{name}.out"))
        return out

    def mlp(x, name):
        act, up = ACTIVATIONS[c.activation], product(x, f"{name}.up")
        inner = act(product(x, f"{name}.gate")) * up if c.mlp == "gated" else act(up)
        return product(inner, f"{name}.down")

    xs = [p["embed.embedding"][i] * (c.embed_scale or 1.0) for i in ids]
    if table is not None:
        xs = [x + table[t] for t, x in enumerate(xs)]
    for layer in range(c.layers):
        at = f"blocks.{layer}"
        read = lambda x, name, at=at: norm(x, f"{at}.{name}") if f"{at}.{name}.scale" in p else x
        if c.norm_at == "sum":
            outs = attention(xs, f"{at}.attention")
            xs = [norm(x + o, f"{at}.attention_norm") for x, o in zip(xs, outs, strict=True)]
            xs = [norm(x + mlp(x, f"{at}.mlp"), f"{at}.mlp_norm") for x in xs]
            continue
        hs = [read(x, "attention_norm") for x in xs]
        outs = [read(o, "attention_out_norm") for o in attention(hs, f"{at}.attention")]
        if c.residual == "sequential":
            xs = [x + o for x, o in zip(xs, outs, strict=True)]
            xs = [x + read(mlp(read(x, "mlp_norm"), f"{at}.mlp"), "mlp_out_norm") for x in xs]
        else:
            inputs = hs if c.residual == "parallel_one_norm" else [read(x, "mlp_norm") for x in xs]
            xs = [x + o + mlp(h, f"{at}.mlp") for x, o, h in zip(xs, outs, inputs, strict=True)]
    head = p["embed.head"] if "embed.head" in p else p["embed.embedding"].T
    out = np.stack([(norm(x, "norm") if c.final_norm else x) @ head for x in xs])
    out = out * c.logit_scale + p.get("embed.head_bias", 0.0)
    return capped(out, c.logit_softcap)
