"""AdamW with warm-up and cosine, the learning rate a traced number, and one step counter."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW; the learning rate warms up linearly and falls along a cosine."""

    learning_rate: float = 3e-3
    """Peak."""
    warmup: float = 0.1
    """Share of the steps that warm up, at most `warmup_max` of them."""
    warmup_max: int = 200
    final: float = 0.05
    """Learning rate at the last step, as a share of the peak."""
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Decoupled, times the learning rate; on the matrices of attention, MLP and untied head only.
    Never on embedding tables (tied or not: a rare token's row would shrink without ever having a
    gradient), norm scales, biases, or parameters of a position scheme."""
    clip: float = 1.0
    """Largest global norm of a gradient; 0: not clipped."""

    def __post_init__(self):
        for name in ("learning_rate", "eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be greater than 0 and finite")
        for name in ("warmup", "final", "b1", "b2"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in 0 .. 1")
        for name in ("weight_decay", "clip", "warmup_max"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be finite and not negative")


def schedule(config: OptimizerConfig, step: jax.Array, steps: int) -> jax.Array:
    """Share of the peak learning rate used by the update number `step` (counted from 0).

    A function of the step alone, so that a resumed run continues where it stopped.
    """
    warmup = min(int(config.warmup * steps), config.warmup_max)
    step = jnp.asarray(step, jnp.float32)
    rise = (step + 1) / max(warmup, 1)
    progress = jnp.clip((step - warmup) / max(steps - 1 - warmup, 1), 0, 1)
    fall = config.final + (1 - config.final) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return jnp.where(step < warmup, rise, fall)


DECAYED = ("kernel", "head")
"""Last names of the parameters that decay, outside of position schemes."""


def decay_mask(params: dict[str, jax.Array]) -> dict[str, bool]:
    """Which parameters, by dotted path, weight decay applies to."""
    names = {name: name.split(".") for name in params}
    return {n: path[-1] in DECAYED and path[0] != "position" for n, path in names.items()}


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Everything but the learning rate: updates are to be scaled by -rate * schedule(step)."""
    clip = optax.clip_by_global_norm(config.clip) if config.clip else optax.identity()
    decay = (
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask)
        if config.weight_decay
        else optax.identity()
    )
    chain = optax.chain(clip, optax.scale_by_adam(config.b1, config.b2, config.eps), decay)

    def update(updates, state, params=None):
        # Optax mixes integers and floats, which a user's strict setting would refuse.
        with jax.numpy_dtype_promotion("standard"):
            return chain.update(updates, state, params)

    return optax.GradientTransformation(chain.init, update)
