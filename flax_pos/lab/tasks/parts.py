"""What procedural sequences are put together from, on the device, with traced lengths."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

PAD, BOS, SEP, EOS = range(4)
SPECIAL = 4
"""Ids below this one are the four above; a task's own tokens begin here."""


class Example(NamedTuple):
    """One sequence, right-padded."""

    ids: jax.Array
    """int32 `T`."""
    labels: jax.Array
    """int32 `T`: the token after each, or what the task asks for there."""
    scored: jax.Array
    """bool `T`: labels that count. Each is determined by the ids up to its own position, save in
    language modelling."""


class Part(NamedTuple):
    """A piece of a sequence: the first `length` of `tokens`."""

    tokens: jax.Array
    length: jax.Array | int
    answer: jax.Array | bool = False
    """Whether the model is scored on predicting these tokens; for all of them or for each."""


def token(value: jax.Array | int, *, answer: bool = False) -> Part:
    """A part of one token."""
    return Part(jnp.asarray(value, jnp.int32)[None], 1, answer)


def join(width: int, *parts: Part) -> Example:
    """The next-token example of parts written one after the other, padded to `width` ids; their
    last token is only a label."""
    at = jnp.arange(width + 1, dtype=jnp.int32)
    tokens = jnp.full_like(at, PAD)
    answer = jnp.zeros_like(at, bool)
    start = 0
    for part in parts:
        inside = (at >= start) & (at < start + part.length)
        own = jnp.clip(at - start, 0, part.tokens.shape[0] - 1)
        tokens = jnp.where(inside, part.tokens[own], tokens)
        scored = part.answer if isinstance(part.answer, bool) else part.answer[own]
        answer |= inside & scored
        start = start + part.length
    return Example(jnp.where(at < start - 1, tokens, PAD)[:-1], tokens[1:], answer[1:])


def draw(key: jax.Array, count: int, symbols: int, *, first: int = SPECIAL) -> jax.Array:
    """`count` independent tokens out of `first .. first + symbols - 1`."""
    return jax.random.randint(key, (count,), first, first + symbols, jnp.int32)


def draw_different(key: jax.Array, count: int, symbols: int, *, first: int = SPECIAL) -> jax.Array:
    """`count` tokens, no two the same."""
    shuffled = jnp.argsort(jax.random.uniform(key, (symbols,), jnp.float32))
    return first + shuffled[:count].astype(jnp.int32)


def backwards(tokens: jax.Array, length: jax.Array | int) -> jax.Array:
    """The first `length` tokens in reverse order; what follows them has no meaning."""
    at = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    return tokens[jnp.clip(length - 1 - at, 0, tokens.shape[0] - 1)]


def alternate(first: jax.Array, second: jax.Array) -> jax.Array:
    """One of each in turn."""
    return jnp.stack([first, second], axis=-1).reshape(-1)


def questions(asked: jax.Array, answers: jax.Array, count: jax.Array | int) -> Part:
    """The first `count` questions of one token, each followed by its answer, which is scored."""
    scored = alternate(jnp.zeros_like(asked, bool), jnp.ones_like(answers, bool))
    return Part(alternate(asked, answers), 2 * count, scored)
