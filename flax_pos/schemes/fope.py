"""RoPE whose cosines and sines are mixtures over frequencies."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.functional.angles import cos_sin_at, rotate_heads
from flax_pos.functional.fields import check_flag, check_number
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.rotation import Layout, check_layout
from flax_pos.functional.shapes import beside
from flax_pos.scheme import Scheme, register


@register("fope")
@dataclass(frozen=True, kw_only=True)
class Fope(Scheme):
    """Pair m is turned by a Fourier series instead of one wave: its cosine is
    `sum_f a[f, m] cos(p w_f)` and its sine a mixture of its own, per key/value head.

    Frequencies too slow for one turn within `max_len` tokens are left out, and their pairs keep
    cos 0 = 1 and sin 0 = 0. (The paper's code pads the sine with ones as well, which
    multiplies the products of those channels by two.)
    """

    theta: float = 10000.0
    gain: float = 0.3
    """Mixtures start as the identity plus Xavier noise with this gain."""
    trainable: bool = False
    """The paper keeps the mixtures as they start."""
    layout: Layout = "half"

    paper = "Hua et al. 2024, arXiv:2412.17739"
    formula = "cos'_m(p) = sum_f a_fm cos(p w_f), sin'_m(p) = sum_f b_fm sin(p w_f), w_f > 2 pi / L"
    relative = False

    def __post_init__(self):
        check_theta(self.theta)
        check_number("gain", self.gain, at_least=0)
        check_flag("trainable", self.trainable)
        check_layout(self.layout)

    def init_model(self, key, dims):
        inv_freq = ladder(self.theta, dims.head_dim)
        fast = int((inv_freq > 2 * np.pi / dims.max_len).sum())
        shape = (2, dims.kv_heads, fast, fast)
        noise = self.gain * max(fast, 1) ** -0.5 * jax.random.normal(key, shape, jnp.float32)
        cos, sin = beside(jnp.eye(fast), noise) + noise
        return {"cos": cos, "sin": sin}

    def features(self, pos, dims):
        cos, sin = cos_sin_at(pos, ladder(self.theta, dims.head_dim))
        return {"fope_cos": cos, "fope_sin": sin}

    def rotate(self, params, x, at, side):
        return rotate_heads(
            x,
            self._mix(params["cos"], at.feats["fope_cos"], 1.0),
            self._mix(params["sin"], at.feats["fope_sin"], 0.0),
            layout=self.layout,
        )

    def _mix(self, mixture, waves, slow):
        """`*B T K F`, F = H / 2: mixtures of the fast waves, then what slow pairs keep."""
        mixture = mixture.astype(jnp.float32)
        mixture = mixture if self.trainable else jax.lax.stop_gradient(mixture)
        fast = mixture.shape[-1]
        mixed = jnp.einsum("...tf,kfm->...tkm", waves[..., :fast], mixture, precision="highest")
        pad = [(0, 0)] * (mixed.ndim - 1) + [(0, waves.shape[-1] - fast)]
        return jnp.pad(mixed, pad, constant_values=slow)
