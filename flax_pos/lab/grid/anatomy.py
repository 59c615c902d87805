"""What a trained model does with positions, as plain data that is kept with its results."""

import math
from typing import Any

import jax
import numpy as np

from flax_pos.functional.rope import RopeSpec
from flax_pos.lab.mechanism import (
    attention_by_distance,
    attention_entropy,
    band_use,
    reach_of,
    receptive_field,
    shift_change,
    sink_share,
    unseen_phases,
    watch,
)
from flax_pos.lab.program import Model, Params
from flax_pos.lab.tasks import Evaluation, Task
from flax_pos.scheme import Scheme
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.window import Window

SEQUENCES = 4
"""Test sequences of each length that are looked at."""
SHARE = 0.99
"""How much of the gradient counts as all of it."""


def anatomy(
    model: Model, params: Params, task: Task, evaluation: Evaluation, trained: Scheme
) -> dict[str, Any]:
    """Where a model's attention looks and what changes when positions do.

    Args:
      model: with the scheme that is tested.
      params: of one trained model.
      task, evaluation: the task and its test sequences.
      trained: the scheme in training, which decides what phases have been seen.

    Returns:
      `lengths`: by length (the trained one and the longest tested) the mean attention by
      distance, its entropy by number of keys, the share of the first token, the share of the
      gradient in the last tokens; `shift`: the change when all positions move by the trained
      length, None for schemes without positions there; `bands`: how much RoPE's pairs are used
      and which angles are new at each tested length, None for other schemes.
    """
    limit = math.inf if model.scheme.unbounded else model.config.max_len
    defined = evaluation.length[evaluation.length <= limit]
    inside = int(evaluation.length[task.inside(evaluation)].max())
    longest = int(defined.max())
    spec = rope_spec(model.scheme)
    lengths, shift, use = {}, None, None
    for length in sorted({inside, longest}):
        rows = np.flatnonzero(evaluation.length == length)[:SEQUENCES]
        ids, labels = evaluation.ids[rows, :length], evaluation.labels[rows, :length]
        shifted = length == inside and model.scheme.unbounded
        found = _look(model, length, spec, shifted)(params, ids, labels)
        found = jax.tree.map(np.asarray, found)
        field = found["field"]
        lengths[str(length)] = {
            "attention by distance": _curve(found["distance"], first=0),
            "entropy": _curve(found["entropy"], first=1),
            "first token": _digits(found["sink"].mean(axis=-1)),
            "receptive field": _curve(field[None], first=1, mean=False),
            "holds all": reach_of(field, SHARE),
        }
        if shifted:
            loss, largest = found["shift"]
            shift = {"by": inside, "loss": _digits(loss), "largest": _digits(largest)}
        use = found.get("bands", use)
    bands = None
    if spec is not None and use is not None:
        tested = sorted({int(n) for n in evaluation.length if inside <= n <= limit})
        bands = _bands(spec, rope_spec(trained), use, inside, tested, model.config.dims.head_dim)
    return {"lengths": lengths, "shift": shift, "bands": bands}


def rope_spec(scheme: Scheme) -> RopeSpec | None:
    """What RoPE (alone or in a window) turns by; None for other schemes and several axes."""
    scheme = scheme.inner if isinstance(scheme, Window) else scheme
    if not isinstance(scheme, Rope):
        return None
    spec = scheme.full_spec
    return None if spec.axes is not None or spec.learnable else spec


def _look(model: Model, length: int, spec: RopeSpec | None, shifted: bool):
    """One compiled program for everything that is measured at a length."""

    def look(params, ids, labels):
        module = model.with_params(params)
        _, views = watch(module, ids, length=length)
        each = lambda function: jax.numpy.stack([function(view) for view in views])
        found: dict[str, Any] = {
            "distance": each(lambda v: attention_by_distance(v.weights).mean(0)),
            "entropy": each(lambda v: attention_entropy(v.weights).mean((0, 1))),
            "sink": each(lambda v: sink_share(v.weights)),
            "field": receptive_field(module, ids, labels[:, -1], length=length),
        }
        if spec is not None:
            found["bands"] = each(lambda v, spec=spec: band_use(v.q, v.k, spec).mean(0))
        if shifted:
            found["shift"] = tuple(shift_change(module, ids, labels, length))
        return found

    return jax.jit(look)


def _bands(spec, trained: RopeSpec | None, use: np.ndarray, inside, tested, head_dim):
    frequencies = lambda s, n: np.asarray(s.frequencies(n, head_dim=head_dim)[0], np.float64)
    seen = frequencies(spec if trained is None else trained, inside)
    unseen = {str(n): _digits(unseen_phases(seen, inside, frequencies(spec, n), n)) for n in tested}
    with np.errstate(divide="ignore"):
        wavelengths = 2 * np.pi / np.abs(seen)
    return {
        "wavelength": _digits(np.where(np.isfinite(wavelengths), wavelengths, 0.0)),
        "use": _digits(use / use.sum(axis=-1, keepdims=True)),
        "unseen": {n: shares for n, shares in unseen.items() if int(n) > inside} or unseen,
    }


def _curve(values: np.ndarray, *, first: int, mean: bool = True) -> dict[str, Any]:
    """`layers n` thinned to places that lie evenly on a logarithmic axis.

    Args:
      first: what the first column stands for.
      mean: take the mean between one place and the next, else the value at the place.
    """
    count = values.shape[-1]
    ends = sorted({min(round(1.25**k), count) for k in range(200)})
    pieces = list(zip([0, *ends[:-1]], ends, strict=True))
    if mean:
        x = [first + (a + b - 1) / 2 for a, b in pieces]
        y = np.stack([values[:, a:b].mean(axis=-1) for a, b in pieces], axis=-1)
    else:
        x = [float(first + b - 1) for _, b in pieces]
        y = values[:, [b - 1 for _, b in pieces]]
    return {"x": x, "y": _digits(y)}


def _digits(values: Any) -> Any:
    """Plain numbers of six digits, which is more than they are good for."""
    array = np.asarray(values, np.float64)
    if array.ndim:
        return [_digits(v) for v in array]
    return float(f"{float(array):.6g}")
