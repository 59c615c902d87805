"""Text out of a causal language model: prefill, then one token at a time from the cache.

Compiled once for each shape: prompts are padded to a power of two and the cache to a multiple of
64 slots, so that prompts of similar lengths share programs; settings that are numbers are traced.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int

from flax_pos.attention.place import check_per_token, check_reach
from flax_pos.functional.lookup import resolve_index
from flax_pos.functional.sampling import BEST, Sampling, check_sampling, sample
from flax_pos.nnx.causal_lm import Cache, CausalLM
from flax_pos.scheme import Scheme, plan_layers

_SLOTS = 64


class _State(NamedTuple):
    """What one decoding step hands to the next."""

    cache: Cache
    token: jax.Array
    """int32 `B`: the last token, not yet in the cache."""
    done: jax.Array
    """bool `B`: rows that have ended."""
    step: jax.Array
    """int32: tokens drawn so far."""
    history: "_History | None"
    """Only where the scheme depends on the length."""


class _History(NamedTuple):
    """All tokens, for schemes that place every token anew where the length changes them."""

    ids: jax.Array
    """int32 `B W`: the padded prompts, then the tokens drawn."""
    mask: jax.Array


class _Rules(NamedTuple):
    """How tokens are chosen and when rows end."""

    how: Sampling
    key: jax.Array | None
    eos_ids: jax.Array | None
    pad_id: jax.Array


def generate(
    model: CausalLM,
    ids: Int[Array, "B T"],
    *,
    mask: Bool[Array, "B T"] | None = None,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    key: jax.Array | None = None,
    eos_id: int | Sequence[int] | None = None,
    pad_id: int = 0,
    scheme: Scheme | None = None,
) -> Int[Array, "B T+new"]:
    """Continues every row by `max_new_tokens` tokens.

    Tokens are those that the model would choose without a cache. Where the scheme depends on the
    length (dynamic NTK, LongRoPE), a length that changes it makes all earlier tokens be computed
    again: once for LongRoPE, at every step past the original length for dynamic NTK.

    Args:
      model: the model; it is not changed.
      ids: prompts.
      mask: False on padding, on the left or on the right; None: no padding. Each row is continued
        as if it were alone, save for schemes that depend on the length: there the longest row's
        counts for all, as in one forward.
      max_new_tokens: how many; a row that ends earlier is filled with `pad_id`.
      temperature: 0 takes the best token; otherwise tokens are drawn, with `key`.
      top_k, top_p, min_p: see `flax_pos.functional.sampling.Sampling`.
      key: PRNG key for drawing.
      eos_id: token or tokens that end a row (kept in the result); None: rows never end early.
      pad_id: stands after the end of a row.
      scheme: another scheme in place of the model's own, with the same parameters.

    Returns:
      int32: the prompts as they were given, then the new tokens.

    Raises:
      ValueError: a prompt without tokens; ids out of range; prompts and new tokens that need more
        positions than the scheme has; settings out of their range.

    >>> from flax import nnx
    >>> from flax_pos import get_scheme
    >>> from flax_pos.nnx import ModelConfig
    >>> config = ModelConfig(vocab_size=11, width=16, layers=2, heads=2)
    >>> model = CausalLM(config, get_scheme("none")(), rngs=nnx.Rngs(0))
    >>> generate(model, jnp.array([[1, 2, 3]]), max_new_tokens=4).shape
    (1, 7)
    """
    rules = _rules(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        key=key,
        eos_id=eos_id,
        pad_id=pad_id,
    )
    state = _start(model, ids, mask, max_new_tokens, rules, scheme)
    new = _decode(model, state, rules, jnp.int32(max_new_tokens), scheme=scheme)
    return jnp.concatenate([jnp.asarray(ids, jnp.int32), new[:, :max_new_tokens]], axis=1)


def stream(
    model: CausalLM,
    ids: Int[Array, "B T"],
    *,
    mask: Bool[Array, "B T"] | None = None,
    max_new_tokens: int,
    scheme: Scheme | None = None,
    **choice,
) -> Iterator[np.ndarray]:
    """As `generate` with the same arguments, giving each step's tokens (int32 `B`) as soon as
    they are known; it stops when all rows have ended.

    >>> from flax import nnx
    >>> from flax_pos import get_scheme
    >>> from flax_pos.nnx import ModelConfig
    >>> config = ModelConfig(vocab_size=11, width=16, layers=2, heads=2)
    >>> model = CausalLM(config, get_scheme("none")(), rngs=nnx.Rngs(0))
    >>> prompt = jnp.array([[1, 2, 3]])
    >>> streamed = [int(token) for (token,) in stream(model, prompt, max_new_tokens=4)]
    >>> streamed == generate(model, prompt, max_new_tokens=4)[0, 3:].tolist()
    True
    """
    rules = _rules(**choice)
    state = _start(model, ids, mask, max_new_tokens, rules, scheme)

    def tokens(state: _State) -> Iterator[np.ndarray]:
        yield np.asarray(state.token)
        for _ in range(max_new_tokens - 1):
            if bool(state.done.all()):
                return
            state = _step(model, state, rules, scheme=scheme)
            yield np.asarray(state.token)

    return tokens(state)


# Before the first token --------------------------------------------------------------------------


def _start(model, ids, mask, max_new_tokens, rules, scheme) -> _State:
    """Checks the prompts, fills the cache with them and draws the first token."""
    traced = isinstance(ids, Tracer) or isinstance(mask, Tracer)
    spread = None if traced else getattr(ids, "sharding", None)
    xp = jnp if traced else np
    ids = xp.asarray(ids)
    if ids.ndim != 2:
        raise ValueError(f"ids must have the axes B T, got shape {ids.shape}")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    mask = xp.ones(ids.shape, bool) if mask is None else xp.asarray(mask)
    check_per_token("mask", mask, ids.shape)
    resolve_index(xp.where(mask, ids, 0), model.config.vocab_size, name="ids")
    longest = mask.shape[1] if traced else _longest_row(np.asarray(mask))
    plan = plan_layers(scheme or model.scheme, model.config.layers)
    check_reach(plan, longest + max_new_tokens, model.config.max_len)
    bucket = 1 << (ids.shape[1] - 1).bit_length()
    pad = ((0, 0), (0, bucket - ids.shape[1]))
    slots = -(-(longest + max_new_tokens) // _SLOTS) * _SLOTS
    ids, mask = xp.pad(ids, pad), xp.pad(mask, pad)
    if isinstance(spread, NamedSharding):
        rows = NamedSharding(spread.mesh, PartitionSpec(*spread.spec[:1]))
        ids, mask = jax.device_put((ids, mask), rows)
    return _prefill(model, ids, mask, rules, slots=slots, scheme=scheme)


def _longest_row(mask: np.ndarray) -> int:
    counts = mask.sum(-1)
    if not counts.all():
        raise ValueError(f"row {int(np.argmin(counts))} has no tokens: a prompt needs at least one")
    return int(counts.max())


def _rules(
    *, temperature=0.0, top_k=None, top_p=None, min_p=None, key=None, eos_id=None, pad_id=0
) -> _Rules:
    if temperature < 0:
        raise ValueError(f"temperature must be 0 (the best token) or greater, got {temperature}")
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    if temperature == 0:
        unused = [name for name, value in filters.items() if value is not None]
        if unused:
            raise ValueError(f"{unused[0]} has no effect at temperature=0; set a temperature")
        how, key = BEST, None
    else:
        check_sampling(Sampling(temperature, **filters))
        if key is None:
            raise ValueError("drawing tokens (temperature > 0) needs key=jax.random.key(...)")
        number = lambda v: None if v is None else jnp.float32(v)
        how = Sampling(number(temperature), top_k, number(top_p), number(min_p))
    eos_ids = None if eos_id is None else jnp.atleast_1d(jnp.asarray(eos_id, jnp.int32))
    return _Rules(how, key, eos_ids, jnp.int32(pad_id))


# Compiled ----------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("slots", "scheme"))
def _prefill(model: CausalLM, ids, mask, rules: _Rules, *, slots: int, scheme) -> _State:
    length = ids.shape[1]
    cache = _empty_cache(model, ids, slots, scheme)
    h, cache = model.hidden(ids, mask=mask, cache=cache, scheme=scheme)
    newest = length - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    h = jnp.take_along_axis(h, newest[:, None, None], axis=1)
    history = None
    if _depends_on_length(model, scheme):
        later = ((0, 0), (0, slots))
        history = _History(jnp.pad(ids, later), jnp.pad(mask, later))
    return _draw(model, h, cache, rules, jnp.zeros_like(mask[:, 0]), jnp.int32(0), history)


def _empty_cache(model: CausalLM, ids: jax.Array, slots: int, scheme) -> Cache:
    """Room for `slots` tokens of each row; it lies on devices as the rows do."""
    rows, axis = jnp.zeros_like(ids[:, 0]), int(model.config.scan_layers)

    def lay(leaf):
        others = [a for a in range(leaf.ndim) if a != axis]
        return leaf + jnp.expand_dims(rows, others).astype(leaf.dtype)

    return jax.tree.map(lay, model.init_cache(ids.shape[0], slots, scheme=scheme))


@functools.partial(jax.jit, static_argnames="scheme", donate_argnames="state")
def _step(model: CausalLM, state: _State, rules: _Rules, *, scheme) -> _State:
    return _advance(model, state, rules, scheme)


@functools.partial(jax.jit, static_argnames="scheme")
def _decode(model: CausalLM, state: _State, rules: _Rules, limit: jax.Array, *, scheme):
    """int32 `B slots`: `limit` tokens (fewer where all rows end), then padding."""
    slots = state.cache[0].size

    def unfinished(carry):
        _, state = carry
        return (state.step < limit) & ~state.done.all()

    def step(carry):
        out, state = carry
        state = _advance(model, state, rules, scheme)
        return _put(out, state), state

    ended = jnp.full_like(state.token, rules.pad_id)  # lies as the rows do
    empty = jnp.broadcast_to(ended[:, None], (*ended.shape, slots))
    return jax.lax.while_loop(unfinished, step, (_put(empty, state), state))[0]


def _put(out: jax.Array, state: _State) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(out, state.token[:, None], state.step - 1, axis=1)


def _advance(model: CausalLM, state: _State, rules: _Rules, scheme) -> _State:
    # Rows that have ended are padding from here on.
    mask = None if rules.eos_ids is None else ~state.done[:, None]

    def go_on(state: _State):
        return model.hidden(state.token[:, None], mask=mask, cache=state.cache, scheme=scheme)

    if state.history is None:
        h, cache = go_on(state)
        return _draw(model, h, cache, rules, state.done, state.step, None)

    ids, seen = state.history
    at = ids.shape[1] - state.cache[0].size + state.step - 1
    put = lambda row, new: jax.lax.dynamic_update_slice_in_dim(row, new, at, axis=1)
    history = _History(put(ids, state.token[:, None]), put(seen, ~state.done[:, None]))

    def start_again(state: _State):
        cache = _empty_cache(model, ids, state.cache[0].size, scheme)
        h, cache = model.hidden(history.ids, mask=history.mask, cache=cache, scheme=scheme)
        newest = h.shape[1] - 1 - jnp.argmax(history.mask[:, ::-1], axis=1)
        return jnp.take_along_axis(h, newest[:, None, None], axis=1), cache

    before, now = (jnp.max(m.sum(-1, dtype=jnp.int32)) for m in (seen, history.mask))
    moved = _places_differ(model, scheme, ids.shape[1], before, now)
    h, cache = jax.lax.cond(moved, start_again, go_on, state)
    return _draw(model, h, cache, rules, state.done, state.step, history)


def _depends_on_length(model: CausalLM, scheme: Scheme | None) -> bool:
    plan = plan_layers(scheme or model.scheme, model.config.layers)
    return any(part.depends_on_length for part in plan.parts)


def _places_differ(model: CausalLM, scheme: Scheme | None, slots: int, before, now) -> jax.Array:
    """Whether the first `before` of at most `slots` tokens are placed or rotated otherwise in a
    sequence of length `now`; rotations are judged by the first two."""
    index = jnp.arange(slots, dtype=jnp.int32)[None]

    def places(length):
        dims = model.config.dims._replace(length=length)
        pos = [part.positions(index, length=length, ids=index) for part in parts]
        known = [jnp.where(index < before, p, 0) for p in pos]
        return known, [part.features(p[:, :2], dims) for part, p in zip(parts, pos, strict=True)]

    parts = plan_layers(scheme or model.scheme, model.config.layers).parts
    pairs = zip(*map(jax.tree.leaves, (places(before), places(now))), strict=True)
    return jnp.stack([(a != b).any() for a, b in pairs]).any()


def _draw(model: CausalLM, h, cache, rules: _Rules, done, step, history) -> _State:
    """The next token of each row, out of what the head reads (`B 1 D`)."""
    key = None if rules.key is None else jax.random.fold_in(rules.key, step)
    token = jnp.where(done, rules.pad_id, sample(model.logits(h)[:, 0], rules.how, key))
    if rules.eos_ids is not None:
        done |= (token[:, None] == rules.eos_ids[None]).any(-1)
    return _State(cache, token, done, step + 1, history)


__all__ = ["generate", "stream"]
