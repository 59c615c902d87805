"""Reading further than a model was trained to, by every way of scaling its positions, without
training: loss by position."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.functional.rope import (
    Default,
    DynamicNTK,
    Linear,
    Llama3,
    NTKAware,
    RopeSpec,
    Scaling,
    Yarn,
)
from flax_pos.interop.errors import require
from flax_pos.interop.positions import map_schemes, spelled_out
from flax_pos.nnx.causal_lm import CausalLM
from flax_pos.scheme import Scheme
from flax_pos.schemes.dual_chunk import DualChunk
from flax_pos.schemes.leaky_rerope import LeakyReRope
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.rerope import ReRope
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.self_extend import SelfExtend
from flax_pos.schemes.string import ShiftedRope


class Reach(NamedTuple):
    """How far a model was trained to read, and how far it is to."""

    original: int
    length: int
    factor: float
    """length / original, or what was asked for; at least 1."""
    dynamic_factor: float = 2.0
    """Dynamic NTK has the length in its law already; 2 is what its users set."""


def _law(make: Callable[[Reach], Scaling]) -> Callable[[RopeSpec, Reach], Scheme]:
    """A way that changes the frequencies."""
    return lambda spec, reach: Rope(spec=replace(spec, scaling=make(reach)))


def _remap(cls: Any, settings: Callable[[Reach], dict]):
    """A way that reads a distance as another one. Sizes are those of its authors, as parts of the
    original length, and such that no distance is read as one that was never trained."""

    def make(spec: RopeSpec, reach: Reach) -> Scheme:
        if spec.partial_rotary_factor != 1 or spec.scaling != Default():
            raise ValueError(
                f"{cls.name} reads distances of whole heads with plain frequencies; this model has "
                f"{spec.scaling.rope_type!r} ones, of a part of {spec.partial_rotary_factor}"
            )
        return cls(theta=spec.theta, layout=spec.layout, **settings(reach))

    return make


def _slowdown(reach: Reach, near: int, most: int) -> int:
    """Tokens for each step of distance beyond `near`, so that none exceeds `most`."""
    return max(1, math.ceil((reach.length - near) / (most - near)))


SCALINGS: dict[str, Callable[[RopeSpec, Reach], Scheme]] = {
    "none": lambda spec, reach: Rope(spec=spec),
    "linear": _law(lambda reach: Linear(factor=reach.factor)),
    "ntk": _law(lambda reach: NTKAware(alpha=reach.factor)),
    "dynamic": _law(
        lambda r: DynamicNTK(factor=r.dynamic_factor, original_max_position_embeddings=r.original)
    ),
    "yarn": _law(lambda r: Yarn(factor=r.factor, original_max_position_embeddings=r.original)),
    "llama3": _law(
        lambda r: Llama3(
            factor=r.factor,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=r.original,
        )
    ),
    "rerope": _remap(ReRope, lambda r: {"near": max(1, r.original // 2)}),
    "leaky_rerope": _remap(
        LeakyReRope,
        lambda r: {
            "near": max(1, r.original // 2),
            "slowdown": _slowdown(r, r.original // 2, r.original),
        },
    ),
    "self_extend": _remap(
        SelfExtend,
        lambda r: {
            "near": max(1, r.original // 4),
            "group": _slowdown(r, r.original // 4, r.original // 2),
        },
    ),
    "string": _remap(
        ShiftedRope,
        lambda r: {"shift": max(2, r.original // 3), "near": max(1, r.original // 32)},
    ),
    "dual_chunk": _remap(
        DualChunk,
        lambda r: {"span": max(2, 3 * r.original // 4), "local": max(1, r.original // 16)},
    ),
    "drop": lambda spec, reach: NoPE(),
}
"""Ways to read further, by name: from a model's RopeSpec and the reach to the scheme to use.
`none` changes nothing, `drop` takes the positions away."""


def original_length(model: CausalLM) -> int:
    """How many tokens a model was trained to read: its own length, or the one that its scaling
    starts from."""
    found = {model.config.max_len}

    def note(own: Scheme) -> Scheme:
        if isinstance(own, Rope) and own.spec is not None:
            found.add(getattr(own.spec.scaling, "original_max_position_embeddings", max(found)))
        return own

    map_schemes(model.scheme, note)
    return min(found)


def rescale(
    model: CausalLM,
    scaling: str,
    length: int,
    *,
    original: int | None = None,
    factor: float | None = None,
) -> Scheme:
    """The model's scheme with its rotations scaled another way: for `model(ids, scheme=...)`.

    Args:
      scaling: one of `SCALINGS`.
      length: how far it is to read.
      original: how far it was trained to; None: what its config says.
      factor: of the scaling; None: length / original, at least 1 (dynamic NTK: 2).

    Raises:
      ValueError: an unknown scaling, one that does not fit the model's, or a model without RoPE.
    """
    if scaling not in SCALINGS:
        raise ValueError(f"unknown scaling {scaling!r}; known: {', '.join(SCALINGS)}")
    original = original or original_length(model)
    reach = Reach(original, length, factor or max(1.0, length / original), factor or 2.0)
    scheme = spelled_out(model.scheme, model.config.dims.head_dim)
    rotated = []

    def change(own: Scheme) -> Scheme:
        if not isinstance(own, Rope) or own.spec is None:
            return own
        rotated.append(own)
        return SCALINGS[scaling](own.spec, reach)

    scheme = map_schemes(scheme, change)
    if not rotated:
        raise ValueError(f"the model has no RoPE to scale; its scheme is {model.scheme}")
    return scheme


# Loss by position ---------------------------------------------------------------------------------


class Extension(NamedTuple):
    """Loss of one way of scaling at one length."""

    scaling: str
    length: int
    factor: float
    loss: np.ndarray
    """float64 `length - 1`: nats per token by position, 0 at the second token; the mean of all
    windows."""
    windows: int
    """Pieces of the text that were read, one after the other and none twice."""
    original: int

    @property
    def mean(self) -> float:
        """Over all positions."""
        return float(self.loss.mean())

    @property
    def within(self) -> float:
        """Over positions up to the original length."""
        return float(self.loss[: self.original - 1].mean())

    @property
    def beyond(self) -> float:
        """Over positions past the original length; NaN where there are none."""
        rest = self.loss[self.original - 1 :]
        return float(rest.mean()) if rest.size else math.nan


def extend(
    model: CausalLM,
    ids: Sequence[int] | np.ndarray,
    *,
    lengths: Sequence[int],
    scalings: Sequence[str] = ("none", "linear", "ntk", "dynamic", "yarn"),
    windows: int = 1,
    original: int | None = None,
    factor: float | None = None,
    report: Callable[[Extension], None] = lambda found: None,
) -> list[Extension]:
    """Loss by position of a model at lengths that it was not trained for; nothing is trained.

    Args:
      model: one with RoPE.
      ids: token ids of a text that is at least as long as the longest length.
      lengths: how much to read at once.
      scalings: names in `SCALINGS`.
      windows: pieces of the text to average over, as many as it holds at most.
      original, factor: as for `rescale`.
      report: is given each result when it is there.

    Raises:
      ValueError: a text that is too short, lengths below 2, or what `rescale` refuses.
    """
    ids = np.asarray(ids, np.int32)
    if ids.ndim != 1 or not lengths or min(lengths) < 2 or windows < 1:
        raise ValueError("give one row of ids, lengths of at least 2 and at least one window")
    if len(ids) < max(lengths):
        raise ValueError(f"the text has {len(ids)} tokens; a length of {max(lengths)} needs more")
    original = original or original_length(model)
    schemes = {
        (length, name): rescale(model, name, length, original=original, factor=factor)
        for length in lengths
        for name in scalings
    }
    out = []
    for (length, name), scheme in schemes.items():
        count = min(windows, len(ids) // length)
        rows = ids[: count * length].reshape(count, 1, length)
        loss = np.mean([_losses(model, jnp.asarray(row), scheme=scheme) for row in rows], axis=0)
        used = factor or max(1.0, length / original)
        out.append(Extension(name, length, used, loss.astype(np.float64), count, original))
        report(out[-1])
    return out


def draw(found: Sequence[Extension], path: str | os.PathLike, *, bins: int = 64) -> None:
    """A figure of loss by position, one panel for each length: PNG, SVG or PDF by the name.

    Raises:
      ImportError: matplotlib is not installed.
    """
    figure_of = require("matplotlib.figure", "drawing", extra="lab")
    lengths = sorted({one.length for one in found})
    figure = figure_of.Figure(figsize=(5 * len(lengths), 4), layout="constrained")
    panels = figure.subplots(1, len(lengths), squeeze=False, sharey=True)[0]
    for panel, length in zip(panels, lengths, strict=True):
        for one in (one for one in found if one.length == length):
            pieces = np.array_split(one.loss, min(bins, one.loss.size))
            ends = np.cumsum([piece.size for piece in pieces])
            panel.plot(ends, [piece.mean() for piece in pieces], label=one.scaling)
        panel.axvline(found[0].original, color="grey", linestyle=":")
        panel.set(title=f"{length} tokens", xlabel="position")
    panels[0].set(ylabel="loss, nats per token")
    panels[-1].legend()
    figure.savefig(path)


@functools.partial(jax.jit, static_argnames="scheme")
def _losses(model: CausalLM, ids: jax.Array, *, scheme: Scheme) -> jax.Array:
    h, _ = model.hidden(ids[:, :-1], scheme=scheme)
    return model.cross_entropy(h, ids[:, 1:], reduction="none")[0]


__all__ = ["SCALINGS", "Extension", "draw", "extend", "original_length", "rescale"]
