"""Changing a model that exists: its vocabulary, its head, its positions. Every function gives a
new model and leaves the old one as it is; what is not changed is shared, not copied."""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from flax_pos.functional.embedding import round_up
from flax_pos.interop.pretrained import fill
from flax_pos.interop.weights import EMBEDDING, HEAD, HEAD_BIAS, Path
from flax_pos.nnx.causal_lm import CausalLM
from flax_pos.nnx.config import ModelConfig
from flax_pos.nnx.position import PositionEncoding
from flax_pos.scheme import Scheme
from flax_pos.schemes.learned import Learned


def params_of(model: CausalLM) -> dict[Path, jax.Array]:
    """All parameters by path."""
    flat: Any = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {path: variable[...] for path, variable in flat}


def rebuild(
    model: CausalLM,
    *,
    config: ModelConfig | None = None,
    scheme: Scheme | None = None,
    params: Mapping[Path, jax.Array] | None = None,
) -> CausalLM:
    """The model with other settings or another scheme, and with some parameters replaced."""
    config, scheme = config or model.config, scheme or model.scheme
    empty = nnx.eval_shape(lambda: CausalLM(config, scheme, rngs=nnx.Rngs(0)))
    new = fill(empty, {**params_of(model), **(params or {})})
    new.origin = model.origin
    return new


# Vocabulary and head ------------------------------------------------------------------------------


def resize_vocab(model: CausalLM, vocab_size: int, *, pad_to_multiple: int = 1) -> CausalLM:
    """The model with more tokens, or fewer.

    New rows of the embedding and of an untied head are the mean of all rows in use: they change
    the softmax of old tokens as little as a new token can (Hewitt 2021, "Initializing New Word
    Embeddings"). A tied head stays tied.

    Args:
      vocab_size: the new V.
      pad_to_multiple: rows are added up to a multiple of this; no id reads them, and they get no
        logits.

    Raises:
      ValueError: a size below 1.
    """
    if vocab_size < 1:
        raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
    rows = round_up(vocab_size, pad_to_multiple)
    used = min(model.config.vocab_size, vocab_size)

    def resize(table: jax.Array) -> jax.Array:
        kept = table[: model.config.vocab_size]
        mean = kept.astype(jnp.float32).mean(0, keepdims=True).astype(table.dtype)
        new = jnp.broadcast_to(mean, (vocab_size - used, *mean.shape[1:]))
        surplus = jnp.zeros((rows - vocab_size, *mean.shape[1:]), table.dtype)
        return jnp.concatenate([kept[:used], new, surplus])

    params = params_of(model)
    changed = {path: resize(params[path]) for path in (EMBEDDING, HEAD_BIAS) if path in params}
    if HEAD in params:
        changed[HEAD] = resize(params[HEAD].T).T
    config = model.config.replace(
        vocab_size=vocab_size, vocab_rows=None if rows == vocab_size else rows
    )
    return rebuild(model, config=config, params=changed)


def untie(model: CausalLM) -> CausalLM:
    """The model with a head of its own, equal to the embedding at first."""
    if not model.config.tied:
        return model
    head = params_of(model)[EMBEDDING].T
    return rebuild(model, config=model.config.replace(tied=False), params={HEAD: head})


def tie(model: CausalLM, *, keep: Literal["embedding", "head"] = "embedding") -> CausalLM:
    """The model with one table for both ends.

    Args:
      keep: the one that becomes both; the other is dropped.
    """
    if keep not in ("embedding", "head"):
        raise ValueError(f"keep must be 'embedding' or 'head', got {keep!r}")
    if model.config.tied:
        return model
    params = params_of(model)
    table = params[EMBEDDING] if keep == "embedding" else params[HEAD].T
    return rebuild(model, config=model.config.replace(tied=True), params={EMBEDDING: table})


# Positions ----------------------------------------------------------------------------------------


def swap_scheme(model: CausalLM, scheme: Scheme, *, rngs: nnx.Rngs | None = None) -> CausalLM:
    """The same weights with another position scheme, to look at or to train on.

    Args:
      scheme: any scheme. Its own parameters start afresh; those of the old one are dropped.
      rngs: for them; needed if there are any.

    Raises:
      ValueError: parameters, but no `rngs`.
    """
    make = lambda rngs: PositionEncoding(scheme, model.config.dims, rngs=rngs)
    flat: Any = nnx.to_flat_state(nnx.state(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param))
    fresh = {}
    if len(flat):
        if rngs is None:
            raise ValueError(f"scheme {scheme.name!r} has parameters: pass rngs=nnx.Rngs(seed)")
        flat = nnx.to_flat_state(nnx.state(make(rngs), nnx.Param))
        fresh = {("position", *path): variable[...] for path, variable in flat}
    return rebuild(model, scheme=scheme, params=fresh)


def resize_positions(
    model: CausalLM, max_len: int, *, how: Literal["interpolate", "cut", "repeat"] = "interpolate"
) -> CausalLM:
    """A model with learned positions, with more of them or fewer.

    Args:
      max_len: the new number of positions.
      how: "interpolate" stretches the table (linearly between its rows; the first and the last
        stay what they are), so that old positions get the rows of others. "cut" keeps the first
        ones. "repeat" starts over after the last (Longformer, arXiv:2004.05150, section 5).

    Raises:
      ValueError: the scheme is not `learned`, or `how` does not fit the sizes.
    """
    scheme, old = model.scheme, model.config.max_len
    if not isinstance(scheme, Learned):
        raise ValueError(f"only a table of learned positions can be resized, got {scheme}")
    if how not in ("interpolate", "cut", "repeat"):
        raise ValueError(f"how must be 'interpolate', 'cut' or 'repeat', got {how!r}")
    if max_len < 1 or (how == "cut" and max_len > old) or (how == "repeat" and max_len < old):
        raise ValueError(f"how={how!r} cannot make {max_len} positions of {old}")
    path = ("position", "params", "0", "model", "table")
    table = params_of(model)[path]
    before, rows = table[: scheme.offset], table[scheme.offset :]
    if how == "interpolate":
        at = jnp.linspace(0, old - 1, max_len, dtype=jnp.float32)
        low = jnp.floor(at).astype(jnp.int32)
        part = (at - low.astype(jnp.float32))[:, None]
        wide = rows.astype(jnp.float32)
        new = (1 - part) * wide[low] + part * wide[jnp.minimum(low + 1, old - 1)]
    else:
        new = rows[jnp.arange(max_len) % old]
    return rebuild(
        model,
        config=model.config.replace(max_len=max_len),
        params={path: jnp.concatenate([before, new.astype(table.dtype)])},
    )


__all__ = [
    "params_of",
    "rebuild",
    "resize_positions",
    "resize_vocab",
    "swap_scheme",
    "tie",
    "untie",
]
