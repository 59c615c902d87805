"""Rotary position embedding."""

import dataclasses
from dataclasses import dataclass

import jax.numpy as jnp
from jax.core import Tracer

from flax_pos.functional.angles import fraction_of_turn, turn
from flax_pos.functional.rope import Layout, RopeSpec, rope_tables, rotate_tables
from flax_pos.scheme import Scheme, register


@register("rope")
@dataclass(frozen=True, kw_only=True)
class Rope(Scheme):
    """Turns channel pair i of q and k by `position * theta ** (-2 i / R)` radians.

    Context extensions, other slices, pairs that stand still, several axes and learned frequencies
    are settings of `spec`. A learned frequency is the given one times `exp(a)`, `a` one parameter
    per pair and layer, 0 at the start.
    """

    paper = "Su et al. 2021, arXiv:2104.09864"
    formula = "q_m . k_n = Re sum_i q_i conj(k_i) exp(1j (m - n) theta^(-2i/R))"

    theta: float = 10000.0
    """Base of the frequencies."""
    layout: Layout = "half"
    """Which channels form a pair."""
    partial_rotary_factor: float = 1.0
    """Part of the head width that is rotated; the rest of the channels pass through."""
    spec: RopeSpec | None = None
    """The whole description; the three fields above then keep their defaults."""

    def __post_init__(self):
        # Checks the values; the fields of a sweep's tracers are checked as far as they can be.
        self._of_fields()
        if self.spec is None:
            return
        if not isinstance(self.spec, RopeSpec):
            raise TypeError(f"spec must be a RopeSpec, got {self.spec!r}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "spec" and (isinstance(value, Tracer) or value != field.default):
                raise ValueError(f"with a spec, set {field.name} in the spec, got {value!r}")

    @property
    def depends_on_length(self) -> bool:  # type: ignore[override]
        return self.full_spec.depends_on_length

    @property
    def full_spec(self) -> RopeSpec:
        """The whole description: `spec`, or what the other fields say."""
        return self._of_fields() if self.spec is None else self.spec

    def _of_fields(self) -> RopeSpec:
        return RopeSpec(
            theta=self.theta,
            layout=self.layout,
            partial_rotary_factor=self.partial_rotary_factor,
        )

    def init_layer(self, key, dims):
        if not self.full_spec.learnable:
            return {}
        pairs = self.full_spec.rotary_dim_of(dims.head_dim) // 2
        return {"rope_log_scale": jnp.zeros(pairs, jnp.float32)}

    def features(self, pos, dims):
        spec = self.full_spec
        if spec.learnable:
            return {}
        cos, sin = self._tables(pos, dims.head_dim, dims.length)
        return {"rope_cos": cos, "rope_sin": sin}

    def rotate(self, params, x, at, side):
        spec = self.full_spec
        if spec.learnable:
            base = jnp.asarray(spec.frequencies(head_dim=x.shape[-1])[0], jnp.float32)
            learned = base * jnp.exp(params["rope_log_scale"])
            cos, sin = self._tables(at.pos, x.shape[-1], None, learned)
        else:
            cos, sin = at.feats["rope_cos"], at.feats["rope_sin"]
        x = rotate_tables(x, cos, sin, spec)
        if side == "q" and spec.softmax_scale_multiplier != 1:
            x = (x.astype(jnp.float32) * spec.softmax_scale_multiplier).astype(x.dtype)
        return x

    def _tables(self, pos, head_dim, length, inv_freq=None):
        spec = self.full_spec
        if jnp.issubdtype(pos.dtype, jnp.floating):  # tokens placed at real numbers
            whole = jnp.floor(pos)
            cos, sin = self._tables(whole.astype(jnp.int32), head_dim, length, inv_freq)
            if inv_freq is None:
                inv_freq = spec.frequencies(length, head_dim=head_dim)[0]
            inv_freq = -inv_freq if spec.reverse else inv_freq
            return turn(cos, sin, *fraction_of_turn(pos - whole, inv_freq))
        if spec.axes is not None:  # positions of text: the same on every axis
            pos = jnp.broadcast_to(pos, (spec.axes.count, *pos.shape))
        length = length if spec.depends_on_length else None
        return rope_tables(pos, spec, head_dim=head_dim, seq_len=length, inv_freq=inv_freq)
