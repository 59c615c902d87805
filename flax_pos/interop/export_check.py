"""Does an artefact say what its source says, at every position? If not, which of the classic
faults is it?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.checks import TOLERANCE, Check
from flax_pos.functional.rope import (
    LAYOUTS,
    Default,
    RopeSpec,
    Scaling,
    rope_tables,
    rotate_tables,
)
from flax_pos.interop.artefact import load_artefact
from flax_pos.interop.positions import map_schemes, spelled_out
from flax_pos.nnx.causal_lm import CausalLM
from flax_pos.scheme import Scheme
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.rope import Rope


def check_export(
    artefact: Any,
    model: CausalLM,
    *,
    limit: int | None = None,
    tokens: int | None = None,
    rows: int = 2,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> Check:
    """Compares an artefact with the model that it was made from, at positions from 0 to the limit.

    Tokens are put at positions that spread over the whole range, dense at its start, so that
    relative schemes see every distance as well. Where the two differ, the source is run with each
    of the classic faults; the one that explains the difference is named: rotations lost, positions
    ignored, frequencies or tables in half precision, another pair layout, scaling or its factor on
    cos and sin dropped, a default base.

    Args:
      artefact: a directory of `export_model`, an `Artefact`, or any function from ids `B T` and
        `positions=` to logits `B T V`, such as a call into another runtime.
      model: the source.
      limit: number of positions; None: the model's `max_len`.
      tokens: how many positions, per row, to look at; None: 32, or all where there are fewer.
      rows: how many rows of random tokens.
      seed: for them.
      tolerance: largest difference that counts as none, as part of the standard deviation of the
        source's logits.

    Returns:
      A `Check`, true where they agree. `differences` holds the artefact's distance from the
      source, and from the source with each fault.

    Raises:
      ValueError: fewer positions than tokens.
    """
    limit = limit or model.config.max_len
    tokens = min(32, limit) if tokens is None else tokens
    if not 2 <= tokens <= limit:
        raise ValueError(f"tokens={tokens} must be at least 2 and at most the limit, {limit}")
    if isinstance(artefact, str | Path):
        artefact = load_artefact(artefact)
    rng = np.random.default_rng(seed)
    ids = jnp.asarray(rng.integers(0, model.config.vocab_size, (rows, tokens)), jnp.int32)
    at = jnp.broadcast_to(jnp.asarray(spread(limit, tokens)), ids.shape)
    got = np.asarray(artefact(ids, positions=at), np.float64)
    want = _logits(model, ids, at, None)
    scale = want.std()
    apart = np.abs(got - want).max((0, 2)) / scale
    differences = {"the source": float(_worst(apart))}
    ok = differences["the source"] <= tolerance
    if ok:
        finding = f"equal to its source at {tokens} positions from 0 to {limit - 1}"
        return Check("export", True, finding, differences, tolerance)
    for fault, scheme in faults(model):
        guess = _logits(model, ids, at, scheme)
        differences[fault] = float(_worst(np.abs(got - guess) / scale))
    guess = _logits(model, ids, jnp.broadcast_to(jnp.arange(tokens), ids.shape), None)
    differences["positions are ignored"] = float(_worst(np.abs(got - guess) / scale))
    best = min(differences, key=differences.__getitem__)
    first = int(at[0, np.argmax(~(apart <= tolerance))])
    finding = f"it differs from its source from position {first} on"
    if best != "the source" and differences[best] <= max(tolerance, differences["the source"] / 10):
        finding = f"{best} (it differs from position {first} on)"
    return Check("export", False, finding, differences, tolerance)


def spread(limit: int, count: int) -> np.ndarray:
    """`count` rising positions from 0 to `limit - 1`, dense at the start.

    >>> spread(1000, 8).tolist()
    [0, 1, 3, 10, 31, 100, 316, 999]
    """
    at = np.rint(np.geomspace(1, limit, count)).astype(np.int64) - 1
    for i in range(1, count):  # rounding makes the first ones equal
        at[i] = max(at[i], at[i - 1] + 1)
    return np.minimum(at, np.arange(limit - count, limit)).astype(np.int32)


def _worst(apart: np.ndarray) -> float:
    return float(np.where(np.isfinite(apart), apart, np.inf).max())


def _logits(model: CausalLM, ids, positions, scheme: Scheme | None) -> np.ndarray:
    run = jax.jit(lambda model, ids, at: model(ids, positions=at, scheme=scheme))
    return np.asarray(run(model, ids, positions), np.float64)


# Faults -------------------------------------------------------------------------------------------


def faults(model: CausalLM) -> Iterator[tuple[str, Scheme]]:
    """The classic faults, each with the scheme of a model that has it; those that would change
    nothing in this model are left out."""
    source = spelled_out(model.scheme, model.config.dims.head_dim)
    for name, change in _CHANGES:

        def broken(own: Scheme, change=change) -> Scheme:
            changed = change(own.spec) if isinstance(own, Rope) and own.spec else None
            return own if changed is None else changed

        scheme = map_schemes(source, broken)
        if scheme != source:
            yield name, scheme


def _with_spec(**changes: Any) -> Callable[[RopeSpec], Scheme | None]:
    def change(spec: RopeSpec) -> Scheme | None:
        new = replace(spec, **changes)
        return None if new == spec else Rope(spec=new)

    return change


def _without_factor(spec: RopeSpec) -> Scheme | None:
    if not hasattr(spec.scaling, "attention_factor"):
        return None
    scaling: Scaling = replace(spec.scaling, attention_factor=1.0)  # type: ignore[call-arg]
    return Rope(spec=replace(spec, scaling=scaling))


@dataclass(frozen=True, kw_only=True)
class _Rounded(Scheme):
    """RoPE whose frequencies or tables went through a 16-bit dtype."""

    spec: RopeSpec
    dtype: str
    tables: bool

    @property
    def depends_on_length(self) -> bool:  # type: ignore[override]
        return self.spec.depends_on_length

    def features(self, pos, dims):
        length = dims.length if self.spec.depends_on_length else None
        inv_freq = self.spec.frequencies(length, head_dim=dims.head_dim)[0]
        if not self.tables:
            inv_freq = self._round(inv_freq)
        cos, sin = rope_tables(
            pos, self.spec, head_dim=dims.head_dim, seq_len=length, inv_freq=jnp.float32(inv_freq)
        )
        if self.tables:
            cos, sin = self._round(cos), self._round(sin)
        return {"cos": cos, "sin": sin}

    def rotate(self, params, x, at, side):
        return rotate_tables(x, at.feats["cos"], at.feats["sin"], self.spec)

    def _round(self, x):
        return jnp.asarray(x, jnp.float32).astype(self.dtype).astype(jnp.float32)


def _rounded(dtype: str, *, tables: bool = False) -> Callable[[RopeSpec], Scheme | None]:
    return lambda spec: _Rounded(spec=spec, dtype=dtype, tables=tables)


_CHANGES: tuple[tuple[str, Callable[[RopeSpec], Scheme | None]], ...] = (
    ("rotations are lost", lambda spec: NoPE()),
    ("frequencies are in half precision (bfloat16)", _rounded("bfloat16")),
    ("frequencies are in half precision (float16)", _rounded("float16")),
    ("cos and sin are in half precision (bfloat16)", _rounded("bfloat16", tables=True)),
    ("cos and sin are in half precision (float16)", _rounded("float16", tables=True)),
    *((f"the layout is wrong: it is {name!r}", _with_spec(layout=name)) for name in LAYOUTS),
    ("the scaling is dropped", _with_spec(scaling=Default())),
    ("the scaling's factor on cos and sin is dropped", _without_factor),
    ("the base is the default, 10000", _with_spec(theta=10000.0)),
    ("it turns the other way", lambda spec: _with_spec(reverse=not spec.reverse)(spec)),
    ("the factor on the softmax scale is dropped", _with_spec(softmax_scale_multiplier=1.0)),
)

__all__ = ["check_export", "faults", "spread"]
