"""Laws that change the ladder of frequencies, so that a model reads longer texts.

Field names are those of Hugging Face configs. Every law is a frozen dataclass; the settings are
checked when it is made and every fault is a `ValueError` that names the field.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.functional.rope.frequencies import ladder as exact_ladder
from flax_pos.functional.rope.settings import LARGEST, as_number, flag, length, number


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The plain ladder `theta ** (-2 i / R)`, and the base class of the other laws."""

    rope_type: ClassVar[str] = "default"
    depends_on_length: ClassVar[bool] = False
    """Whether frequencies or the factor on cos and sin depend on the sequence length."""

    def inv_freq(self, theta, rotary_dim: int, seq_len=None, ladder=exact_ladder):
        """Radians per token of the `rotary_dim / 2` pairs.

        Args:
          theta: base of the ladder, a number or a traced scalar.
          rotary_dim: width R of the rotated slice.
          seq_len: total length, an int or a traced scalar; None is the length the model was
            made for. Only laws that depend on it read it.
          ladder: the function that makes the ladder out of a base and a width.
        """
        return ladder(theta, rotary_dim)

    def cos_sin_factor(self, seq_len=None):
        """Multiplies cos and sin (so scores grow by its square)."""
        return 1.0

    def check(self, theta, rotary_dim: int) -> None:
        """Raises ValueError where the law does not fit the width."""


Default = Scaling


@dataclass(frozen=True, kw_only=True)
class Linear(Scaling):
    """Position interpolation: every frequency divided by `factor` (Chen et al. 2023,
    arXiv:2306.15595)."""

    rope_type = "linear"
    factor: float

    def __post_init__(self):
        number(self, "factor", at_least=1, at_most=LARGEST)

    def inv_freq(self, theta, rotary_dim, seq_len=None, ladder=exact_ladder):
        return ladder(theta, rotary_dim) / self.factor


@dataclass(frozen=True, kw_only=True)
class Proportional(Scaling):
    """Only the highest part of the ladder turns, the rest stands still: p-RoPE (Barbero et al.
    2024, arXiv:2410.06205) and the full-attention layers of Gemma 4.

    Unlike a partial rotary slice, the exponents and the pairing span the whole width.
    """

    rope_type = "proportional"
    partial_rotary_factor: float = 1.0
    """Part of the pairs that turn."""
    factor: float = 1.0

    def __post_init__(self):
        number(self, "partial_rotary_factor", above=0, at_most=1)
        number(self, "factor", at_least=1, at_most=LARGEST)

    def inv_freq(self, theta, rotary_dim, seq_len=None, ladder=exact_ladder):
        turning = int(self.partial_rotary_factor * rotary_dim // 2)
        w = ladder(theta, rotary_dim, turning) / self.factor
        xp = array_module(w)
        return xp.concatenate([w, xp.zeros(rotary_dim // 2 - turning, w.dtype)])


@dataclass(frozen=True, kw_only=True)
class NTKAware(Scaling):
    """Base multiplied by `alpha ** (R / (R - 2))`: the lowest frequency is divided by alpha, the
    highest kept (bloc97 2023; HunYuan's `alpha`). The static NTK-aware scaling by a factor."""

    rope_type = "ntk_alpha"
    alpha: float

    def __post_init__(self):
        number(self, "alpha", at_least=1, at_most=LARGEST)

    def check(self, theta, rotary_dim):
        check_width_for_ntk(self, rotary_dim)

    def inv_freq(self, theta, rotary_dim, seq_len=None, ladder=exact_ladder):
        return ladder(theta * self.alpha ** (rotary_dim / (rotary_dim - 2)), rotary_dim)


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(Scaling):
    """NTK-aware scaling that grows with the length (emozilla 2023).

    At a length N above the original L the base is multiplied by
    `(factor N / L - factor + 1) ** (R / (R - 2))`; up to L this is plain RoPE. A pure function of
    `seq_len`: keys cached under one length are inconsistent with queries of another, so keep
    cached keys unrotated, or pass one fixed `seq_len` for a whole generation.
    """

    rope_type = "dynamic"
    depends_on_length = True
    factor: float
    original_max_position_embeddings: int

    def __post_init__(self):
        number(self, "factor", at_least=1, at_most=LARGEST)
        length(self, "original_max_position_embeddings")

    def check(self, theta, rotary_dim):
        check_width_for_ntk(self, rotary_dim)

    def inv_freq(self, theta, rotary_dim, seq_len=None, ladder=exact_ladder):
        original = self.original_max_position_embeddings
        if seq_len is None:
            return ladder(theta, rotary_dim)
        if isinstance(seq_len, jax.Array):
            # Written as stretch - 1 times the excess, so that it is exactly 1 up to L.
            excess = jnp.maximum(seq_len - original, 0).astype(jnp.float32) / original
            stretch = 1 + np.float32(self.factor) * excess
            powers = -np.arange(0, rotary_dim, 2, dtype=np.float64) / (rotary_dim - 2)
            plain = jnp.asarray(ladder(theta, rotary_dim), jnp.float32)
            return plain * stretch ** jnp.asarray(powers, jnp.float32)
        stretch = 1 + self.factor * max(seq_len - original, 0) / original
        return ladder(theta * stretch ** (rotary_dim / (rotary_dim - 2)), rotary_dim)


@dataclass(frozen=True, kw_only=True)
class Yarn(Scaling):
    """Frequencies with many turns in the original length are kept, those with few divided by
    `factor`, with a ramp between (NTK-by-parts), and cos and sin grow with the factor (Peng et
    al. 2023, arXiv:2309.00071).

    `attention_factor`, where given, is the final multiplier on cos and sin; otherwise
    `g(mscale) / g(mscale_all_dim)` when both are given and not 0, else `g(1)`, with
    `g(m) = 0.1 m ln(factor) + 1`.
    """

    rope_type = "yarn"
    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    """Turns within the original length above which a frequency is kept."""
    beta_slow: float = 1.0
    """Turns below which a frequency is divided."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    """Round the ends of the ramp outward to whole pairs."""

    def __post_init__(self):
        number(self, "factor", at_least=1, at_most=LARGEST)
        length(self, "original_max_position_embeddings")
        if self.attention_factor is not None:
            number(self, "attention_factor", above=0, at_most=LARGEST)
        for name in ("mscale", "mscale_all_dim"):
            if getattr(self, name) is not None:
                number(self, name, at_least=0, at_most=LARGEST)
        number(self, "beta_fast", above=0)
        number(self, "beta_slow", above=0)
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                f"yarn: beta_fast must not be below beta_slow (the paper has 32 and 1), got "
                f"beta_fast={self.beta_fast}, beta_slow={self.beta_slow}"
            )
        flag(self, "truncate")

    def check(self, theta, rotary_dim):
        if not isinstance(theta, jax.Array) and theta == 1:
            raise ValueError("yarn: theta must not be 1, where all frequencies are equal")

    def ramp(self, theta, rotary_dim: int):
        """0 for pairs that are kept, 1 for those divided by `factor`."""
        low, high = (
            self._pair_with_turns(b, theta, rotary_dim) for b in (self.beta_fast, self.beta_slow)
        )
        xp = array_module(low)
        if self.truncate:
            low, high = xp.floor(low), xp.ceil(high)
        low, high = xp.maximum(low, 0.0), xp.minimum(high, rotary_dim - 1.0)
        high = xp.where(low == high, high + 0.001, high)
        pair = xp.arange(rotary_dim // 2, dtype=high.dtype)
        return xp.clip((pair - low) / (high - low), 0, 1)

    def _pair_with_turns(self, turns: float, theta, rotary_dim: int):
        wanted = math.log(self.original_max_position_embeddings / (turns * 2 * math.pi))
        return rotary_dim * wanted / (2 * array_module(theta).log(theta))

    def inv_freq(self, theta, rotary_dim, seq_len=None, ladder=exact_ladder):
        w = ladder(theta, rotary_dim)
        ramp = self.ramp(theta, rotary_dim).astype(w.dtype)
        return w / self.factor * ramp + w * (1 - ramp)

    def cos_sin_factor(self, seq_len=None):
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.mscale and self.mscale_all_dim:
            return self.magnitude(self.mscale) / self.magnitude(self.mscale_all_dim)
        return self.magnitude(1.0)

    def magnitude(self, mscale: float) -> float:
        """`0.1 mscale ln(factor) + 1` (Peng et al. 2023, equation 22)."""
        return 0.1 * mscale * math.log(self.factor) + 1.0


def ntk_by_parts(*, factor: float, original_max_position_embeddings: int, **settings: Any) -> Yarn:
    """YaRN's frequencies without its factor on cos and sin (bloc97 2023)."""
    return Yarn(
        factor=factor,
        original_max_position_embeddings=original_max_position_embeddings,
        attention_factor=1.0,
        **settings,
    )


@dataclass(frozen=True, kw_only=True)
class LongRope(Scaling):
    """One searched divisor per pair: `short_factor` up to the original length, `long_factor`
    above it (Ding et al. 2024, arXiv:2402.13753; Phi-3).

    cos and sin are multiplied by `sqrt(1 + ln(factor) / ln(original length))` at every length, or
    by `attention_factor`, or by `short_mscale` and `long_mscale` (Phi-3.5-MoE). A pure function
    of `seq_len`, with the same consequence for caches as dynamic NTK.
    """

    rope_type = "longrope"
    depends_on_length = True
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float = 1.0
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None

    def __post_init__(self):
        length(self, "original_max_position_embeddings", at_least=2)
        for name in ("short_factor", "long_factor"):
            values = getattr(self, name)
            if not isinstance(values, list | tuple):
                raise ValueError(f"longrope: {name} must be a list of numbers, got {values!r}")
            values = tuple(as_number(v, f"longrope: {name}[{i}]") for i, v in enumerate(values))
            if not all(1 / LARGEST <= v <= LARGEST for v in values):
                raise ValueError(
                    f"longrope: {name} must hold positive numbers, got {min(values)} to "
                    f"{max(values)}"
                )
            object.__setattr__(self, name, values)
        number(self, "factor", above=0, at_most=LARGEST)
        for name in ("attention_factor", "short_mscale", "long_mscale"):
            if getattr(self, name) is not None:
                number(self, name, above=0, at_most=LARGEST)
        if (self.short_mscale is None) != (self.long_mscale is None):
            raise ValueError("longrope: short_mscale and long_mscale must be given together")

    def check(self, theta, rotary_dim):
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != rotary_dim // 2:
                raise ValueError(
                    f"longrope: {name} must have one number per pair, {rotary_dim // 2}, "
                    f"got {len(getattr(self, name))}"
                )

    def inv_freq(self, theta, rotary_dim, seq_len=None, ladder=exact_ladder):
        w = ladder(theta, rotary_dim)
        short, long = (
            w / array_module(w).asarray(f, w.dtype) for f in (self.short_factor, self.long_factor)
        )
        return self._choose(seq_len, short, long)

    def cos_sin_factor(self, seq_len=None):
        if self.short_mscale is not None:
            return self._choose(seq_len, self.short_mscale, self.long_mscale)
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        return math.sqrt(
            1 + math.log(self.factor) / math.log(self.original_max_position_embeddings)
        )

    def _choose(self, seq_len, short, long):
        if isinstance(seq_len, jax.Array):
            to = lambda a: jnp.asarray(a, jnp.float32)
            return jnp.where(seq_len > self.original_max_position_embeddings, to(long), to(short))
        if seq_len is not None and seq_len > self.original_max_position_embeddings:
            return long
        return short


@dataclass(frozen=True, kw_only=True)
class Llama3(Scaling):
    """Wavelengths above `original / low_freq_factor` are multiplied by `factor`, those below
    `original / high_freq_factor` kept, with a smooth passage between (Llama 3.1)."""

    rope_type = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self):
        number(self, "factor", at_least=1, at_most=LARGEST)
        number(self, "low_freq_factor", above=0)
        number(self, "high_freq_factor", above=0)
        length(self, "original_max_position_embeddings")
        if self.high_freq_factor < self.low_freq_factor:
            raise ValueError(
                "llama3: high_freq_factor must not be below low_freq_factor, got "
                f"{self.high_freq_factor} and {self.low_freq_factor}"
            )

    def inv_freq(self, theta, rotary_dim, seq_len=None, ladder=exact_ladder):
        w = ladder(theta, rotary_dim)
        xp = array_module(w)
        low, high = self.low_freq_factor, self.high_freq_factor
        turns = self.original_max_position_embeddings * w / (2 * np.pi)
        # Equal bounds leave no passage: every pair is on one side.
        between = (high - low) or 1.0
        kept = xp.clip((turns - low) / between, 0, 1)
        kept = xp.where(turns > high, 1, xp.where(turns < low, 0, kept)).astype(w.dtype)
        return (1 - kept) * w / self.factor + kept * w


SCALINGS: dict[str, type[Scaling]] = {
    cls.rope_type: cls
    for cls in (Default, Linear, Proportional, NTKAware, DynamicNTK, Yarn, LongRope, Llama3)
}


def array_module(value):
    return jnp if isinstance(value, jax.Array) else np


def check_width_for_ntk(scaling: Scaling, rotary_dim: int) -> None:
    if rotary_dim <= 2:
        raise ValueError(
            f"{scaling.rope_type}: needs a rotary width above 2 (its exponent is R / (R - 2)), "
            f"got {rotary_dim}"
        )


def scaling_from_plain(plain: Mapping[str, Any]) -> Scaling:
    """The law named by `rope_type` with its settings.

    Raises:
      ValueError: unknown type, unknown or missing key, impossible value; the key is named.
    """
    settings = dict(plain)
    rope_type = settings.pop("rope_type", "default")
    cls = SCALINGS.get(rope_type) if isinstance(rope_type, str) else None
    if cls is None:
        raise ValueError(f"unknown rope_type {rope_type!r}; known: {', '.join(sorted(SCALINGS))}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name in settings:
        if name not in fields:
            raise ValueError(
                f"rope_type {rope_type!r} has no key {name!r}; its keys: "
                f"{', '.join(fields) or 'none'}"
            )
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and settings.get(name) is None:
            raise ValueError(f"rope_type {rope_type!r} needs the key {name!r}")
    return cls(**settings)


def scaling_to_plain(scaling: Scaling) -> dict[str, Any]:
    """The inverse of `scaling_from_plain`; settings that equal the default are left out."""
    out: dict[str, Any] = {"rope_type": scaling.rope_type}
    for field in dataclasses.fields(scaling):
        value = getattr(scaling, field.name)
        if value != field.default:
            out[field.name] = list(value) if isinstance(value, tuple) else value
    return out
