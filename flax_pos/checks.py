"""The classic position mistakes, as checks that users run on functions and modules of their own.

All checks share one contract: `fn(inputs, *, positions=..., mask=..., segments=...)` gives one
output per token, with axes `B T ...`; inputs are token ids `B T` or vectors `B T D`. A check passes
only the arguments that it is about. `CausalLM` and functions like it fit as they are.

Differences are relative: the largest one divided by the standard deviation of the outputs.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

Seen = Literal["nothing", "causal mask", "positions", "order"]
TOLERANCE = 1e-4
_whole = lambda n: isinstance(n, int | np.integer)


class PositionCheckError(AssertionError):
    """A check failed; the message says what was found."""


@dataclasses.dataclass(frozen=True)
class Check:
    """What a check found. It is true where the check passed."""

    name: str
    ok: bool
    finding: str
    """One sentence."""
    differences: dict[str, float]
    """Largest relative difference of each comparison."""
    tolerance: float
    """Differences up to this count as none."""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        rows = [f"  {value:9.2e}  {what}" for what, value in self.differences.items()]
        return "\n".join([f"{'ok  ' if self.ok else 'FAIL'} {self.name}: {self.finding}", *rows])

    def raise_if_failed(self) -> "Check":
        """This result, or PositionCheckError."""
        if not self.ok:
            raise PositionCheckError(str(self))
        return self


@dataclasses.dataclass(frozen=True)
class PositionSensitivity(Check):
    """What `check_position_sensitivity` found."""

    seen: Seen
    """How order is seen. "nothing": not at all. "causal mask": only because a token sees what came
    before it. "positions": through the `positions` argument. "order": it is seen, but not through
    `positions` (the function takes none or ignores it)."""
    last_token_blind: bool
    """Whether the last output depends only on which tokens came before, not on their order."""
    causal: bool
    """Whether outputs are independent of later tokens."""


def check_position_sensitivity(
    fn: Callable,
    inputs: Any = None,
    *,
    vocab_size: int | None = None,
    expect: Seen | None = None,
    tolerance: float = TOLERANCE,
) -> PositionSensitivity:
    """Says how `fn` sees the order of its inputs.

    Attention without a mask and without positions sees none: "dog bites man" is "man bites dog".
    With a causal mask a deep model sees order even without positions, but a single layer still
    has a last token that sees a bag of words.

    Args:
      fn: see the module's text; `positions` is used if it takes that.
      inputs: ids `B T` or vectors `B T D`, all different within a row; None: random ids.
      vocab_size: for random ids; None: that of `fn.config`.
      expect: the check fails on any other finding; None: it fails on "nothing" only.

    >>> bag = lambda x: jnp.broadcast_to(x.mean(1, keepdims=True), x.shape)
    >>> x = jax.random.normal(jax.random.key(0), (1, 3, 8))
    >>> check_position_sensitivity(bag, x).seen
    'nothing'
    """
    known = (None, *get_args(Seen))
    _each("expect", [expect], known.__contains__, f"one of {known}")
    inputs = _inputs(fn, inputs, vocab_size)
    call = _callable(fn)
    steps = np.arange(inputs.shape[1])
    back, front = steps[::-1], np.concatenate([steps[-2::-1], steps[-1:]])
    out = call(inputs)
    differ = {
        "tokens in reverse order": _difference(call(inputs[:, back]), out[:, back]),
        "last output, tokens before it reversed": _difference(
            call(inputs[:, front])[:, -1], out[:, -1], scale=out
        ),
        "outputs before a changed last token": _difference(
            call(inputs.at[:, -1].set(inputs[:, 0]))[:, :-1], out[:, :-1]
        ),
    }
    blind, last_blind, causal = (value <= tolerance for value in differ.values())
    moved = False
    if _takes(fn, "positions"):
        put = lambda order: jnp.broadcast_to(jnp.asarray(order, jnp.int32), inputs.shape[:2])
        name = "positions in another order"
        differ[name] = _difference(
            call(inputs, positions=put(_shuffled(len(steps)))), call(inputs, positions=put(steps))
        )
        moved = differ[name] > tolerance
    if moved:
        seen, finding = "positions", "order is seen through positions"
    elif blind:
        seen, finding = "nothing", "order blind: the same tokens in any order give the same outputs"
    elif causal and _takes(fn, "positions"):
        seen, finding = "causal mask", "order is seen only through the causal mask"
        if last_blind:
            finding += "; the last token sees which tokens came before, not in which order"
    else:
        seen = "order"
        why = "ignores `positions`" if _takes(fn, "positions") else "takes no `positions`"
        finding = f"order is seen, but the function {why}"
        if causal and last_blind:
            finding = "the last token sees which tokens came before, not in which order"
    ok = seen != "nothing" if expect is None else seen == expect
    if not ok and expect is not None:
        finding += f"; expected: {expect}"
    told = ("position sensitivity", *_told(ok, finding, differ), differ, tolerance)
    return PositionSensitivity(*told, seen, last_blind, causal)


def check_relative(
    fn: Callable,
    inputs: Any = None,
    *,
    vocab_size: int | None = None,
    shifts: Sequence[int] = (1, 17),
    expect: bool = True,
    tolerance: float = TOLERANCE,
) -> Check:
    """Whether outputs stay the same when all positions shift together.

    Args:
      fn: must take `positions`.
      inputs, vocab_size: as in `check_position_sensitivity`.
      shifts: keep them within the positions that `fn` is defined for.
      expect: False for absolute schemes: then some shift must change the outputs.
    """
    shifts = _each("shifts", shifts, lambda s: _whole(s) and s != 0, "integers other than 0")
    _each("expect", [expect], lambda e: isinstance(e, bool), "True or False")
    inputs = _inputs(fn, inputs, vocab_size)
    call = _callable(fn, "positions")
    at = lambda shift: jnp.broadcast_to(
        jnp.arange(inputs.shape[1], dtype=jnp.int32) + shift, inputs.shape[:2]
    )
    out = call(inputs, positions=at(0))
    differ = {f"positions + {s}": _difference(call(inputs, positions=at(s)), out) for s in shifts}
    relative = max(differ.values()) <= tolerance
    finding = "relative" if relative else "not relative: outputs change when all positions shift"
    return Check("relative", *_told(relative == expect, finding, differ), differ, tolerance)


def check_cache_equivalence(
    fn: Callable,
    inputs: Any = None,
    *,
    vocab_size: int | None = None,
    init_cache: Callable | None = None,
    step: Callable | None = None,
    calls: Sequence[Sequence[int]] | None = None,
    tolerance: float = TOLERANCE,
) -> Check:
    """Whether decoding from a cache gives what the whole sequence at once gives.

    Args:
      fn: whole sequences, `fn(inputs)`.
      inputs, vocab_size: as in `check_position_sensitivity`.
      init_cache: `init_cache(batch, size)` gives an empty cache; None: `fn.init_cache`.
      step: `step(inputs, cache)` gives outputs and cache; None: `fn(inputs, cache=cache)`.
      calls: ways to cut the sequence into calls, each a list of lengths; None: all at once, one by
        one, all but the last, and uneven pieces.
    """
    inputs = _inputs(fn, inputs, vocab_size)
    whole, length = _callable(fn), inputs.shape[1]
    if step is None:
        one = _callable(fn, "cache")
        step = lambda x, cache: one(x, cache=cache)
    init_cache = init_cache or getattr(fn, "init_cache", None)
    if init_cache is None:
        raise ValueError("fn has no init_cache(batch, size); pass init_cache=")
    if calls is None:
        third = max(length // 3, 1)
        calls = ([length], [1] * length, [length - 1, 1], [third, third, length - 2 * third])
    fits = lambda lengths: lengths and all(_whole(n) and n > 0 for n in lengths)
    calls = _each("calls", map(list, calls), fits, "lists of lengths of at least 1")
    out = whole(inputs)
    differ, faults = {}, []
    for lengths in calls:
        if sum(lengths) != length:
            raise ValueError(f"calls {lengths} do not add up to the {length} tokens of inputs")
        cache, rows, start = init_cache(inputs.shape[0], length), [], 0
        for n in lengths:
            row, cache = step(inputs[:, start : start + n], cache)
            rows.append(row)
            start += n
        got = jnp.concatenate(rows, 1)
        name = "one by one" if set(lengths) == {1} else f"calls of {'+'.join(map(str, lengths))}"
        differ[name] = _difference(got, out)
        if differ[name] > tolerance:
            faults.append(_cache_fault(fn, whole, inputs, got, out, lengths, name, tolerance))
    finding = faults[0] if faults else "decoding equals the whole sequence at once"
    return Check("cache equivalence", *_told(not faults, finding, differ), differ, tolerance)


def _cache_fault(fn, whole, inputs, got, out, lengths, name, tolerance) -> str:
    same = lambda t: _difference(got[:, t], out[:, t], scale=out) <= tolerance
    first = next(t for t in range(inputs.shape[1]) if not same(t))
    fault = f"{name}: outputs differ from token {first} on"
    if _takes(fn, "positions"):
        restart = jnp.concatenate([jnp.arange(n, dtype=jnp.int32) for n in lengths])
        restarted = whole(inputs, positions=jnp.broadcast_to(restart, inputs.shape[:2]))
        if _difference(got, restarted) <= tolerance:
            fault += "; positions start at 0 again in every call (an arange over its tokens?)"
    return fault


def check_left_padding(
    fn: Callable,
    inputs: Any = None,
    *,
    vocab_size: int | None = None,
    pads: Sequence[int] = (1, 5),
    tolerance: float = TOLERANCE,
) -> Check:
    """Whether padding on the left, marked by `mask`, changes the outputs of the real tokens.

    Args:
      fn: must take `mask` (bool `B T`).
      inputs, vocab_size: as in `check_position_sensitivity`.
      pads: how much padding, each at least 1.
    """
    pads = _each("pads", pads, lambda p: _whole(p) and p > 0, "integers of at least 1")
    inputs = _inputs(fn, inputs, vocab_size)
    call = _callable(fn, "mask")
    out = call(inputs, mask=jnp.ones(inputs.shape[:2], bool))
    differ, leaks = {}, False
    for pad in pads:
        mask = jnp.broadcast_to(
            jnp.arange(-pad, inputs.shape[1]) >= 0, (len(inputs), pad + inputs.shape[1])
        )
        fill = [jnp.roll(inputs, shift, 1) for shift in (1, 2)]
        padded = [
            call(jnp.concatenate([_cycle(f, pad), inputs], 1), mask=mask)[:, pad:] for f in fill
        ]
        differ[f"{pad} padded"] = _difference(padded[0], out)
        differ[f"{pad} padded, other content"] = _difference(padded[1], padded[0])
        leaks |= differ[f"{pad} padded, other content"] > tolerance
    ok = max(differ.values()) <= tolerance
    finding = "left padding changes nothing"
    if leaks:
        finding = "padding is seen: what stands there changes the outputs (mask it in attention)"
    elif not ok:
        finding = "padding is counted: positions must come from the mask, not from the column"
    return Check("left padding", *_told(ok, finding, differ), differ, tolerance)


def check_packing(
    fn: Callable,
    inputs: Any = None,
    *,
    vocab_size: int | None = None,
    tolerance: float = TOLERANCE,
) -> Check:
    """Whether documents packed into one row, told apart by `segments`, equal separate runs.

    Args:
      fn: must take `segments` (int32 `B T`, 0 is padding).
      inputs, vocab_size: as in `check_position_sensitivity`; cut into two documents and padding.
    """
    inputs = _inputs(fn, inputs, vocab_size)
    call = _callable(fn, "segments")
    length = inputs.shape[1]
    a, b = length // 3, length - 1
    if not 0 < a < b:
        raise ValueError(f"inputs need at least 3 tokens a row, got {length}")
    number = np.where(np.arange(length) < a, 1, np.where(np.arange(length) < b, 2, 0))
    segments = jnp.broadcast_to(jnp.asarray(number, jnp.int32), inputs.shape[:2])
    out = call(inputs, segments=segments)
    real = out[:, :b]  # whatever stands on padding
    other = call(inputs.at[:, :a].set(inputs[:, -a:]), segments=segments)
    solo = lambda x: call(x, segments=jnp.ones(x.shape[:2], jnp.int32))
    differ = {
        "first document": _difference(out[:, :a], solo(inputs[:, :a]), scale=real),
        "second document": _difference(out[:, a:b], solo(inputs[:, a:b]), scale=real),
        "second document, first one changed": _difference(other[:, a:b], out[:, a:b]),
    }
    first, second, leak = (value > tolerance for value in differ.values())
    finding = "packed documents equal separate runs"
    if leak:
        finding = "documents see each other: attention must stop at segment borders"
    elif second:
        finding = "positions run on: they must restart in each segment"
    elif first:
        finding = "the first document differs from a run of its own"
    told = _told(not (first or second or leak), finding, differ)
    return Check("packing", *told, differ, tolerance)


# Helpers ---------------------------------------------------------------------------------------


def _inputs(fn: Callable, inputs: Any, vocab_size: int | None) -> jax.Array:
    if inputs is not None:
        inputs = jnp.asarray(inputs)
        if inputs.ndim < 2 or inputs.shape[1] < 3:
            raise ValueError(
                f"inputs must have the axes B T ..., with at least 3 tokens, got {inputs.shape}"
            )
        return inputs
    if vocab_size is None:
        vocab_size = getattr(getattr(fn, "config", None), "vocab_size", None)
    if vocab_size is None:
        raise ValueError("pass inputs= (ids B T or vectors B T D), or vocab_size= for random ids")
    if vocab_size < 3:
        raise ValueError(f"vocab_size={vocab_size} is too small for 3 different tokens")
    rng = np.random.default_rng(0)
    rows = [rng.choice(vocab_size, min(10, vocab_size), replace=False) for _ in range(2)]
    return jnp.asarray(np.stack(rows), jnp.int32)


def _shuffled(n: int) -> np.ndarray:
    """0 .. n - 1 out of order, and no shift or mirror image of it."""
    return np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)[::-1]])


def _cycle(x: jax.Array, n: int) -> jax.Array:
    """n columns of x, starting over as often as needed."""
    return x[:, np.arange(n) % x.shape[1]]


def _takes(fn: Callable, name: str) -> bool:
    parameters = inspect.signature(fn).parameters
    kinds = [p.kind for p in parameters.values()]
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _callable(fn: Callable, needs: str | None = None) -> Callable:
    """`fn`, compiled if it is a module; plain functions run as they are."""
    if needs is not None and not _takes(fn, needs):
        raise TypeError(f"this check calls fn(inputs, {needs}=...), but fn takes no {needs!r}")
    if not isinstance(fn, nnx.Module):
        return fn
    run = jax.jit(lambda fn, inputs, options: fn(inputs, **options))
    return lambda inputs, **options: run(fn, inputs, options)


def _difference(a: jax.Array, b: jax.Array, *, scale: jax.Array | None = None) -> float:
    if a.shape != b.shape:
        raise ValueError(f"outputs have shapes {a.shape} and {b.shape}; one per token is needed")
    x, y, z = (np.asarray(v, np.float64) for v in (a, b, b if scale is None else scale))
    if not all(np.isfinite(v).all() for v in (x, y, z)):
        return math.inf
    gap, unit = float(np.max(np.abs(x - y))), float(np.std(z))
    return gap / unit if unit > 0 else gap


def _told(ok: bool, finding: str, differ: dict[str, float]) -> tuple[bool, str]:
    """Result and finding: no finding is worth anything where outputs are not finite."""
    bad = ", ".join(name for name, value in differ.items() if math.isinf(value))
    return (False, f"the output is not finite (NaN or infinity): {bad}") if bad else (ok, finding)


def _each(name: str, values: Any, good: Callable[[Any], bool], rule: str) -> list:
    values = list(values)
    if values and all(map(good, values)):
        return values
    raise ValueError(f"{name} must be {rule}, got {values}")


__all__ = [
    "Check",
    "PositionCheckError",
    "PositionSensitivity",
    "check_cache_equivalence",
    "check_left_padding",
    "check_packing",
    "check_position_sensitivity",
    "check_relative",
]
