"""One description of a rotary embedding, in which all its variants combine."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from flax_pos.functional.rope import phase as phases
from flax_pos.functional.rope.axes import Axes
from flax_pos.functional.rope.frequencies import check_theta, ladder, reference_ladder
from flax_pos.functional.rope.rotation import LAYOUTS, Layout
from flax_pos.functional.rope.scaling import (
    Default,
    LongRope,
    Scaling,
    array_module,
    scaling_from_plain,
    scaling_to_plain,
)
from flax_pos.functional.rope.settings import as_length, flag, number


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """What a config says about its rotary embedding; frozen and hashable.

    Fields combine freely; sizes that do not fit raise `ValueError` when the spec is made.
    """

    head_dim: int | None = None
    """Head width H; None takes it from the arrays."""
    theta: float = 10000.0
    """Base of the frequencies."""
    partial_rotary_factor: float = 1.0
    """Part of the head that is rotated: `int(H * factor)` channels; the rest pass through."""
    rotary_slice: Literal["leading", "trailing"] = "leading"
    """Which end of the head the rotated channels are at."""
    layout: Layout = "half"
    """Which channels form a pair."""
    scaling: Scaling = Default()  # noqa: RUF009 - frozen
    """The law that changes the frequencies."""
    axes: Axes | None = None
    """How pairs are shared between several position axes."""
    resonance: bool = False
    """Round every wavelength to a whole number of tokens (Wang et al. 2024, arXiv:2403.00071)."""
    max_wavelength: float | None = None
    """Pairs with a longer wavelength stand still (HoPE, Chen et al. 2024, arXiv:2410.21216: the
    training length)."""
    reverse: bool = False
    """Turn the other way (nanochat)."""
    learnable: bool = False
    """Frequencies are parameters, the given ones their initial value."""
    softmax_scale_multiplier: float = 1.0
    """Multiplies the softmax scale, besides the factor on cos and sin (DeepSeek's YaRN)."""
    phase: Literal["exact", "float32"] = "exact"
    """`float32` rounds positions, frequencies and their product as the reference does."""
    cast_early: bool = False
    """Round cos and sin to a 16-bit input's dtype and rotate in it, as the reference does."""

    def __post_init__(self):
        object.__setattr__(self, "theta", check_theta(self.theta))
        number(self, "partial_rotary_factor", above=0, at_most=1)
        number(self, "softmax_scale_multiplier", above=0)
        if self.max_wavelength is not None:
            number(self, "max_wavelength", above=0)
        for name in ("resonance", "reverse", "learnable", "cast_early"):
            flag(self, name)
        for name, known in (
            ("layout", LAYOUTS),
            ("rotary_slice", ("leading", "trailing")),
            ("phase", ("exact", "float32")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        for name, kind in (("scaling", Scaling), ("axes", Axes | None)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be a {kind}, got {getattr(self, name)!r}")
        if self.head_dim is not None:
            object.__setattr__(self, "head_dim", as_length(self.head_dim, "head_dim"))
            if self.head_dim > 2**16:
                raise ValueError(f"head_dim must be at most 65536, got {self.head_dim}")
            self.rotary_dim_of(self.head_dim)

    @property
    def depends_on_length(self) -> bool:
        """Whether frequencies depend on the length of the sequence."""
        return self.scaling.depends_on_length

    def rotary_dim_of(self, head_dim: int | None = None) -> int:
        """Number of rotated channels in a head of width `head_dim`.

        Raises:
          ValueError: the widths do not fit.
        """
        if head_dim is None:
            head_dim = self.head_dim
            if head_dim is None:
                raise ValueError("this spec has no head_dim; give it as an argument")
        elif self.head_dim not in (None, head_dim):
            raise ValueError(f"this spec is for head_dim {self.head_dim}, got {head_dim}")
        width = int(head_dim * self.partial_rotary_factor)
        if width < 2 or width % 2:
            raise ValueError(
                f"the rotary width must be even and at least 2, got {width} = "
                f"int(head_dim {head_dim} * partial_rotary_factor {self.partial_rotary_factor})"
            )
        if self.axes is not None and self.axes.pairs != width // 2:
            raise ValueError(
                f"sections {self.axes.sections} sum to {self.axes.pairs} pairs, but a rotary "
                f"width of {width} has {width // 2}"
            )
        self.scaling.check(self.theta, width)
        return width

    def frequencies(self, seq_len=None, *, head_dim: int | None = None):
        """`(inv_freq, attention_factor, softmax_scale_multiplier)`.

        Args:
          seq_len: total length, an int or a traced scalar; None is the length that the model was
            made for. Only dynamic NTK and LongRoPE read it.
          head_dim: where the spec has none.

        Returns:
          inv_freq: radians per token of each pair; NumPy float64, or traced float32 where `theta`
            or a `seq_len` that matters is traced.
          attention_factor: multiplies cos and sin.
          softmax_scale_multiplier: multiplies the softmax scale.

        Examples:
          >>> spec = RopeSpec(head_dim=8)
          >>> spec.frequencies()[0].tolist()
          [1.0, 0.1, 0.01, 0.001]
        """
        seq_len = checked_seq_len(seq_len)
        inv_freq = self._inv_freq(seq_len, head_dim, ladder)
        return inv_freq, self.scaling.cos_sin_factor(seq_len), self.softmax_scale_multiplier

    def _inv_freq(self, seq_len, head_dim, make_ladder):
        width = self.rotary_dim_of(head_dim)
        law = lambda w: self.scaling.inv_freq(self.theta, w, seq_len, make_ladder)
        w = law(width) if self.axes is None else self.axes.frequencies(law)
        xp = array_module(w)
        turn = 2 * np.pi
        if self.resonance:
            safe = xp.where(w == 0, 1.0, w)
            w = xp.where(w == 0, w, turn / xp.maximum(xp.round(turn / safe), 1.0))
        if self.max_wavelength is not None:
            w = xp.where(w * self.max_wavelength < turn, 0.0, w)
        return w.astype(xp.float32) if xp is jnp else w

    def tables(self, positions, seq_len, head_dim, inv_freq=None, dtype=jnp.float32):
        """cos and sin `*B T F`; see `rope_tables`, which checks the arguments."""
        at = positions[..., None] if self.axes is None else self.axes.positions_of_pairs(positions)
        if self.phase == "float32":
            if inv_freq is None:
                inv_freq = self._inv_freq(seq_len, head_dim, reference_ladder)
            cos, sin = phases.float32_cos_sin(at, inv_freq)
        elif inv_freq is not None or not isinstance(seq_len, jax.Array):
            if inv_freq is None:
                inv_freq = self._inv_freq(seq_len, head_dim, ladder)
            cos, sin = phases.exact_cos_sin(at, inv_freq, dtype)
        elif isinstance(self.scaling, LongRope) and not isinstance(self.theta, jax.Array):
            # Both regimes are known now, so a traced length costs no precision.
            original = self.scaling.original_max_position_embeddings
            short, long = (
                phases.turn_words(self._inv_freq(n, head_dim, ladder))
                for n in (original, original + 1)
            )
            words = jnp.where(seq_len > original, jnp.asarray(long), jnp.asarray(short))
            cos, sin = phases.cos_sin_of_words(at, words, dtype)
        else:
            inv_freq = jnp.asarray(self._inv_freq(seq_len, head_dim, ladder), jnp.float32)
            cos, sin = phases.exact_cos_sin(at, inv_freq, dtype)
        factor = self.scaling.cos_sin_factor(seq_len)
        if isinstance(factor, jax.Array) or factor != 1:
            factor = jnp.asarray(factor, cos.dtype)
            cos, sin = cos * factor, sin * factor
        return cos, -sin if self.reverse else sin

    # Plain data ---------------------------------------------------------------------------------

    def to_plain(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts, without the settings that equal their default."""
        out: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if isinstance(value, Scaling):
                value = scaling_to_plain(value)
            elif isinstance(value, Axes):
                value = {
                    f.name: list(v) if isinstance(v, tuple) else v
                    for f in dataclasses.fields(value)
                    if (v := getattr(value, f.name)) != f.default
                }
            out[field.name] = value
        return out

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "RopeSpec":
        """The inverse of `to_plain`.

        Raises:
          ValueError: an unknown key or an impossible value; it is named.
        """
        return plain if isinstance(plain, cls) else cls(**settings_from_plain(plain))

    # Configs ------------------------------------------------------------------------------------

    @classmethod
    def from_hf_config(cls, config: dict, layer_type: str | None = None) -> "RopeSpec":
        """Reads a Hugging Face style config; see `flax_pos.functional.rope.hf_config.read`."""
        from flax_pos.functional.rope.hf_config import read

        return read(config, layer_type)

    def to_hf_config(self) -> dict[str, Any]:
        """The config keys that `from_hf_config` reads back as an equal spec."""
        from flax_pos.functional.rope.hf_config import write

        return write(self)


def checked_seq_len(seq_len):
    """`seq_len` as None, an int, or a traced integer scalar."""
    if seq_len is None or isinstance(seq_len, Tracer):
        return seq_len
    if isinstance(seq_len, bool) or np.ndim(seq_len) or int(seq_len) != seq_len or seq_len < 1:
        raise ValueError(f"seq_len must be a positive whole number, got {seq_len!r}")
    return int(seq_len)


def settings_from_plain(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a RopeSpec out of plain data.

    Raises:
      ValueError: an unknown key or an impossible value; it is named.
    """
    settings = dict(plain)
    known = [f.name for f in dataclasses.fields(RopeSpec)]
    for name in settings:
        if name not in known:
            raise ValueError(f"a RopeSpec has no key {name!r}; keys: {', '.join(known)}")
    for name, make in (("scaling", scaling_from_plain), ("axes", _axes_from_plain)):
        if settings.get(name) is not None:
            if not isinstance(settings[name], Mapping):
                raise ValueError(f"{name} must be a mapping, got {settings[name]!r}")
            settings[name] = make(settings[name])
    return settings


def _axes_from_plain(plain: Mapping[str, Any]) -> Axes:
    known = [f.name for f in dataclasses.fields(Axes)]
    for name in plain:
        if name not in known:
            raise ValueError(f"axes have no key {name!r}; keys: {', '.join(known)}")
    if plain.get("sections") is None:
        raise ValueError("axes need the key 'sections'")
    return Axes(**plain)
