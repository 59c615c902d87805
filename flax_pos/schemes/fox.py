"""Forgetting Transformer: each token says how much of what came before it is kept."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.decay import decay_bias, running_total
from flax_pos.functional.fields import check_number
from flax_pos.functional.shapes import beside
from flax_pos.scheme import Scheme, register


@register("fox")
@dataclass(frozen=True, kw_only=True)
class Fox(Scheme):
    """The logits of a key fall by the logarithms of all forget gates after it. A token's running
    sum of them is all that the cache needs."""

    bias_init: float = 0.0
    """Initial bias of the gates; 0 forgets half at every token."""

    paper = "Lin et al. 2025, arXiv:2503.02130"
    formula = "b = sum_{t = j+1 .. i} log f_t, f_t = sigmoid(w_n . x_t + c_n)"
    causal_only = True

    def __post_init__(self):
        check_number("bias_init", self.bias_init)

    def init_layer(self, key, dims):
        w = jax.random.normal(key, (dims.width, dims.heads), jnp.float32) * dims.width**-0.5
        return {"w": w, "b": jnp.full((dims.heads,), self.bias_init, jnp.float32)}

    def coords(self, params, x, at, prev):
        w, b = (params[name].astype(jnp.float32) for name in "wb")
        gate = x.astype(jnp.float32) @ w
        log_gate = jax.nn.log_sigmoid(gate + beside(b, gate))
        before = None if prev is None else prev.feats["log_kept"]
        total = running_total(log_gate, at.index >= 0, before)
        return at._replace(feats={**at.feats, "log_kept": total})

    def bias(self, params, q_at, k_at, heads):
        return decay_bias(q_at.feats["log_kept"], k_at.feats["log_kept"])
