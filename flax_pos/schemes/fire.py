"""A trained function of distance, measured in parts of the way back to the first token."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.curves import distances, fire_ratio
from flax_pos.functional.fields import check_integer, check_number
from flax_pos.functional.shapes import beside, beside_scores
from flax_pos.scheme import Scheme, register


@register("fire")
@dataclass(frozen=True, kw_only=True)
class Fire(Scheme):
    """An MLP per layer maps psi(|i - j|) / psi(max(i, L)) to one bias per head; c and a
    multiplier of L are trained with it. All of a query's biases change with its position, so
    nothing is cached."""

    hidden: int = 32
    """Width of the MLP."""
    c: float = 0.1
    """Initial steepness of psi."""
    threshold: float = 512.0
    """Initial L: queries before it share one normaliser. What is trained is a factor on it, 1 at
    the start: an optimiser with steps of one size would leave 512 where it is."""

    paper = "Li et al. 2024, arXiv:2310.04418"
    formula = "b = MLP(psi(|i - j|) / psi(max(i, |m L|))), psi(x) = log(1 + |c| x)"
    relative = False
    toy = {"threshold": 8.0}

    def __post_init__(self):
        check_integer("hidden", self.hidden)
        check_number("c", self.c, above=0)
        check_number("threshold", self.threshold, above=0)

    def init_layer(self, key, dims):
        keys = jax.random.split(key, 4)
        # PyTorch's default for linear layers, which the paper's code starts from.
        draw = lambda key, shape, fan_in: jax.random.uniform(
            key, shape, jnp.float32, -(fan_in**-0.5), fan_in**-0.5
        )
        return {
            "c": jnp.asarray(self.c, jnp.float32),
            "multiplier": jnp.ones((), jnp.float32),
            "w1": draw(keys[0], (self.hidden,), 1),
            "b1": draw(keys[1], (self.hidden,), 1),
            "w2": draw(keys[2], (self.hidden, dims.heads), self.hidden),
            "b2": draw(keys[3], (dims.heads,), self.hidden),
        }

    def bias(self, params, q_at, k_at, heads):
        own = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        ratio = fire_ratio(
            distances(q_at.pos, k_at.pos),
            q_at.pos,
            own["c"],
            jnp.abs(own["multiplier"] * self.threshold),
        )
        ratio = jnp.moveaxis(ratio, -3, -1)
        hidden = ratio * beside(own["w1"], ratio) + beside(own["b1"], ratio)
        out = jnp.einsum("...tsf,fn->...nts", jax.nn.relu(hidden), own["w2"], precision="highest")
        return out + beside_scores(own["b2"], out)
