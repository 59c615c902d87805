"""RoPE with angles that each token moves on by as much as its content says."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.angles import rotate_heads
from flax_pos.functional.decay import cos_sin_of_total, recent, running_total
from flax_pos.functional.fields import check_integer
from flax_pos.functional.rope.frequencies import check_theta, ladder
from flax_pos.functional.rope.rotation import Layout, check_layout
from flax_pos.functional.shapes import beside
from flax_pos.scheme import Scheme, register


@register("selective_rope")
@dataclass(frozen=True, kw_only=True)
class SelectiveRope(Scheme):
    """A low-rank map of the normalised input, convolved over the last `kernel` tokens, gives each
    pair its step, which RoPE's frequency multiplies; angles are sums of steps. Per key/value
    head. The cache keeps the sums and the low-rank vectors of the last tokens."""

    theta: float = 500000.0
    rank: int = 16
    kernel: int = 4
    layout: Layout = "half"

    paper = "Movahedi et al. 2025, arXiv:2511.17388"
    formula = "angle_m(i) = w_m sum_{t <= i} sum_c a_c,m (B A x_{t-c} / |x_{t-c}|)_m"

    def __post_init__(self):
        check_theta(self.theta)
        check_integer("rank", self.rank)
        check_integer("kernel", self.kernel)
        check_layout(self.layout)

    def init_layer(self, key, dims):
        pairs = dims.head_dim // 2
        down, up, conv = jax.random.split(key, 3)
        draw = lambda key, shape, fan_in: jax.random.uniform(
            key, shape, jnp.float32, -(fan_in**-0.5), fan_in**-0.5
        )
        return {
            "down": draw(down, (dims.width, self.rank), dims.width),
            "up": draw(up, (self.rank, dims.kv_heads, pairs), self.rank),
            "conv": draw(conv, (self.kernel, dims.kv_heads, pairs), self.kernel),
        }

    def coords(self, params, x, at, prev):
        down, up, conv = (params[name].astype(jnp.float32) for name in ("down", "up", "conv"))
        x = x.astype(jnp.float32)
        x *= jax.lax.rsqrt(jnp.sum(jnp.square(x), -1, keepdims=True) + 1e-6)
        low_rank = jnp.where(at.index[..., None] >= 0, x @ down, 0.0)
        before = (None, None) if prev is None else (prev.feats["turns"], prev.feats["recent"])
        last = recent(low_rank, at.index, self.kernel, before[1])
        steps = jnp.einsum("...tcr,rkf,ckf->...tkf", last, up, conv)
        turns = jnp.asarray(ladder(self.theta, 2 * up.shape[-1]) / (2 * jnp.pi))
        steps *= beside(turns, steps)
        flat = steps.reshape(*steps.shape[:-2], -1)
        total = running_total(flat, at.index >= 0, before[0])
        kept = {"turns": total, "recent": last[..., : self.kernel - 1, :]}
        return at._replace(feats={**at.feats, **kept})

    def rotate(self, params, x, at, side):
        shape = params["up"].shape[1:]
        tables = (t.reshape(*t.shape[:-1], *shape) for t in cos_sin_of_total(at.feats["turns"]))
        return rotate_heads(x, *tables, layout=self.layout)
