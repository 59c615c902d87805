"""ALiBi's linear penalty with steps that depend on the tokens passed over."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.decay import decay_bias, running_total
from flax_pos.functional.distance import alibi_slopes
from flax_pos.functional.fields import check_flag
from flax_pos.functional.shapes import beside
from flax_pos.scheme import Scheme, register


@register("cable")
@dataclass(frozen=True, kw_only=True)
class Cable(Scheme):
    """The logits of a key fall by a softplus step for each token after it.

    `Cable(content=False, alibi_init=True)` starts as ALiBi and trains its slopes.
    """

    content: bool = True
    """Whether steps depend on the tokens; otherwise each head has one constant step."""
    alibi_init: bool = False
    """Whether steps start around ALiBi's slopes instead of around log 2 for all heads."""

    paper = "Veisi et al. 2025, arXiv:2503.08067"
    formula = "b = -sum_{t = j+1 .. i} softplus(w_n . x_t + c_n)"
    causal_only = True

    def __post_init__(self):
        check_flag("content", self.content)
        check_flag("alibi_init", self.alibi_init)

    def init_layer(self, key, dims):
        b = jnp.zeros((dims.heads,), jnp.float32)
        if self.alibi_init:
            b = jnp.log(jnp.expm1(alibi_slopes(dims.heads)))  # the inverse of softplus
        if not self.content:
            return {"b": b}
        w = jax.random.normal(key, (dims.width, dims.heads), jnp.float32)
        return {"w": w * dims.width**-0.5, "b": b}

    def coords(self, params, x, at, prev):
        steps = beside(params["b"], x)
        if self.content:
            steps += x.astype(jnp.float32) @ params["w"].astype(jnp.float32)
        steps = jnp.broadcast_to(-jax.nn.softplus(steps), (*x.shape[:-1], steps.shape[-1]))
        before = None if prev is None else prev.feats["passed"]
        total = running_total(steps, at.index >= 0, before)
        return at._replace(feats={**at.feats, "passed": total})

    def bias(self, params, q_at, k_at, heads):
        return decay_bias(q_at.feats["passed"], k_at.feats["passed"])
