"""The next token out of logits."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("temperature", "top_p", "min_p"),
    meta_fields=("top_k",),
)
@dataclass(frozen=True)
class Sampling:
    """How a token is drawn. Filters apply in the order of the fields, each to what the ones
    before it left. Numbers other than `top_k` may be traced, so that changing them compiles
    nothing."""

    temperature: float | jax.Array | None = None
    """Logits are divided by it; None: the best token, always."""
    top_k: int | None = None
    """Only the k best tokens (a static integer)."""
    top_p: float | jax.Array | None = None
    """Only the smallest set of best tokens with this much probability together, the token that
    reaches it included (Holtzman et al. 2020, arXiv:1904.09751, section 3.1)."""
    min_p: float | jax.Array | None = None
    """Only tokens with at least this part of the best token's probability (Nguyen et al. 2024,
    arXiv:2407.01082)."""


BEST = Sampling()
"""The best token, always."""


def sample(
    logits: Float[Array, "*B V"], how: Sampling = BEST, key: jax.Array | None = None
) -> Int[Array, "*B"]:
    """Token ids (int32) drawn from logits.

    Args:
      logits: floating, `*B V`; -inf excludes a token.
      how: the best token by default.
      key: a PRNG key; not needed for the best token.

    Raises:
      ValueError: a key is missing, or a setting is out of its range (where it is not traced).

    >>> sample(jnp.array([0.0, 2.0, 1.0])).item()
    1
    """
    check_sampling(how)
    if how.temperature is None:
        return jnp.argmax(logits, -1).astype(jnp.int32)
    if key is None:
        raise ValueError("sampling with a temperature needs key=jax.random.key(...)")
    return jax.random.categorical(key, filter_logits(logits, how)).astype(jnp.int32)


def filter_logits(logits: Float[Array, "*B V"], how: Sampling) -> Float[Array, "*B V"]:
    """Logits (float32) after temperature and filters: -inf where a token may not be drawn.

    >>> filter_logits(jnp.array([3.0, 1.0, 2.0]), Sampling(1.0, top_k=2)).tolist()
    [3.0, -inf, 2.0]
    """
    check_sampling(how)
    logits = logits.astype(jnp.float32)
    if how.temperature is not None:
        logits = logits / jnp.asarray(how.temperature, jnp.float32)
    if how.top_k is not None and how.top_k < logits.shape[-1]:
        logits = _at_least(logits, jax.lax.top_k(logits, how.top_k)[0][..., -1:])
    if how.top_p is not None:
        ranked = jnp.sort(logits, axis=-1, descending=True)
        p = jax.nn.softmax(ranked, axis=-1)
        before = jnp.cumsum(p, axis=-1) - p
        kept = jnp.where(before < jnp.asarray(how.top_p, jnp.float32), ranked, jnp.inf)
        logits = _at_least(logits, kept.min(-1, keepdims=True))
    if how.min_p is not None:
        floor = jnp.log(jnp.asarray(how.min_p, jnp.float32))
        logits = _at_least(logits, logits.max(-1, keepdims=True) + floor)
    return logits


def _at_least(logits: jax.Array, floor: jax.Array) -> jax.Array:
    return jnp.where(logits >= floor, logits, -jnp.inf)


def check_sampling(how: Sampling) -> None:
    """Raises ValueError if a setting that is not traced is out of its range."""
    bounds = {
        "temperature": (how.temperature, lambda v: v > 0, "greater than 0"),
        "top_k": (how.top_k, lambda v: v >= 1, "at least 1"),
        "top_p": (how.top_p, lambda v: 0 < v <= 1, "in (0, 1]"),
        "min_p": (how.min_p, lambda v: 0 < v <= 1, "in (0, 1]"),
    }
    for name, (value, good, rule) in bounds.items():
        if value is not None and not isinstance(value, Tracer) and not good(value):
            raise ValueError(f"{name} must be {rule}, got {value}; None leaves it out")


__all__ = ["BEST", "Sampling", "check_sampling", "filter_logits", "sample"]
