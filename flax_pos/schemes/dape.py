"""A position bias that adapts to the data: an MLP over all heads' logits and biases."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.fields import check_integer
from flax_pos.functional.shapes import beside, beside_scores
from flax_pos.scheme import Scheme, Wrapper, merge, register
from flax_pos.schemes.kerple_log import KerpleLog


@register("dape")
@dataclass(frozen=True, kw_only=True)
class Dape(Wrapper):
    """`S + B + MLP([S; B])` for each pair of tokens, across heads; B is the bias of `inner`."""

    inner: Scheme = KerpleLog()  # noqa: RUF009 - frozen
    hidden: int = 32
    """Width of the MLP."""

    paper = "Zheng et al. 2024, arXiv:2405.14722"
    formula = "s = S + B + W2 leaky_relu(W1 [S; B]), S = q.k / sqrt(H), over heads"

    def __post_init__(self):
        super().__post_init__()
        check_integer("hidden", self.hidden)
        if "bias" not in self.inner.uses:
            raise ValueError(f"inner must have a bias to adapt, {self.inner.name!r} has none")
        if "scores" in self.inner.uses:
            raise ValueError(f"inner must leave scores to dape, {self.inner.name!r} has its own")

    def init_layer(self, key, dims):
        inner_key, *keys = jax.random.split(key, 5)
        draw = lambda key, shape, fan_in: jax.random.uniform(
            key, shape, jnp.float32, -(fan_in**-0.5), fan_in**-0.5
        )
        own = {
            "w1": draw(keys[0], (2, dims.heads, self.hidden), 2 * dims.heads),
            "b1": draw(keys[1], (self.hidden,), 2 * dims.heads),
            "w2": draw(keys[2], (self.hidden, dims.heads), self.hidden),
            "b2": draw(keys[3], (dims.heads,), self.hidden),
        }
        return merge(self.inner.init_layer(inner_key, dims), {"dape": own})

    def scores(self, params, pair, carry):
        own = jax.tree.map(lambda p: p.astype(jnp.float32), params["dape"])
        logits, bias = pair.logits, jnp.broadcast_to(pair.bias, pair.logits.shape)
        mix = lambda x, w: jnp.einsum("...nts,nf->...tsf", x, w)
        hidden = mix(logits, own["w1"][0]) + mix(bias, own["w1"][1])
        hidden += beside(own["b1"], hidden)
        hidden = jax.nn.leaky_relu(hidden, 0.01)
        more = jnp.einsum("...tsf,fn->...nts", hidden, own["w2"])
        return logits + bias + more + beside_scores(own["b2"], more), carry
