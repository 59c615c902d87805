"""What happens to every pair of channels when a text grows past the trained length."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flax_pos.functional.rope import (
    Default,
    DynamicNTK,
    Linear,
    NTKAware,
    RopeSpec,
    Scaling,
    Yarn,
)
from flax_pos.functional.rope.hf_config import read_kinds
from flax_pos.functional.rope.hf_keys import get, text_config
from flax_pos.lab.errors import UserError

LARGEST_FILE = 16 << 20
DYNAMIC = 2.0
"""Factor that configs give to dynamic NTK, which finds by itself how far to stretch."""


@dataclass(frozen=True)
class Case:
    """One rotary embedding of a config, looked at from one length."""

    kind: str | None
    """The kind of layer; None: all layers."""
    spec: RopeSpec
    trained: int
    """The length that the unscaled frequencies were trained for."""
    length: int

    @property
    def plain(self) -> np.ndarray:
        """Radians per token without the law that changes them, `F`."""
        return np.asarray(replace(self.spec, scaling=Default()).frequencies()[0])

    @property
    def own(self) -> np.ndarray:
        """Radians per token as the config has them at this length."""
        return np.asarray(self.spec.frequencies(self.length)[0])

    @property
    def factor(self) -> float:
        """Multiplier on cos and sin."""
        return float(self.spec.frequencies(self.length)[1])

    @property
    def turns(self) -> np.ndarray:
        """Turns of the unscaled pair within the trained length."""
        return self.plain * self.trained / (2 * np.pi)

    def leaves(self, inv_freq: np.ndarray) -> np.ndarray:
        """Whether each pair meets angles that training did not show: less than a turn then, and
        now more than it made."""
        seen = self.plain * self.trained
        return (seen < 2 * np.pi) & (inv_freq * self.length > seen * (1 + 1e-9))

    @property
    def stretch(self) -> float:
        """The factor that this length needs."""
        return max(self.length / self.trained, 1.0)

    def others(self) -> dict[str, np.ndarray]:
        """Frequencies under the usual laws with the factor that this length needs; dynamic NTK,
        which finds its own, with `DYNAMIC`."""
        factor = self.stretch
        if factor == 1:
            return {}
        original = self.trained
        laws: dict[str, Scaling] = {
            "linear": Linear(factor=factor),
            "NTK": NTKAware(alpha=factor),
            "dynamic": DynamicNTK(factor=DYNAMIC, original_max_position_embeddings=original),
            "YaRN": Yarn(factor=factor, original_max_position_embeddings=original),
        }
        found = {}
        for name, law in laws.items():
            try:
                spec = replace(self.spec, scaling=law)
            except ValueError:  # a law that does not fit this width or base
                continue
            found[name] = np.asarray(spec.frequencies(self.length)[0])
        return found


def read_cases(path: Path, length: int | None, trained: int | None) -> list[Case]:
    """The rotary embeddings of a `config.json`, those of equal layers once.

    Raises:
      UserError: the file cannot be read, its config is refused, or a length is missing.
    """
    config = _load(path)
    try:
        kinds = read_kinds(config)
        text = text_config(config)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {error}") from error
    maximum = get(text, "max_position_embeddings")
    cases = []
    for kind, spec in kinds.items():
        if spec is None:
            continue
        before = trained
        if before is None:
            before = getattr(spec.scaling, "original_max_position_embeddings", maximum)
        if before is None:
            raise UserError(f"{path} does not say the trained length; give --trained")
        after = length if length is not None else maximum or before
        for name, value in (("--trained", before), ("--length", after)):
            if not isinstance(value, int) or not 2 <= value <= 2**31:
                raise UserError(f"{name} must be a whole number from 2 to 2**31, got {value!r}")
        cases.append(Case(kind, spec, before, after))
    if not cases:
        raise UserError(f"{path}: this model has no rotary embedding")
    return cases


def _load(path: Path) -> Mapping[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"{path} is larger than a config can be")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} holds no JSON object")
    return config


def treatment(plain: float, changed: float) -> str:
    """What a law did to one frequency, in a word."""
    if changed == 0:
        return "stands still"
    ratio = plain / changed
    if math.isclose(ratio, 1, rel_tol=1e-9):
        return "kept"
    return f"/ {ratio:.3g}" if ratio > 1 else f"x {1 / ratio:.3g}"


def score_by_distance(inv_freq: np.ndarray, factor: float, distances: np.ndarray) -> np.ndarray:
    """Mean over pairs of the cosine of their angle at each distance, times factor squared: the
    score of a query with an equal key, in multiples of its score at distance 0 unscaled."""
    return factor**2 * np.cos(distances[:, None] * inv_freq).mean(1)
