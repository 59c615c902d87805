"""RoPE whose frequencies the tokens themselves choose, head by head."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flax_pos.functional.angles import rotate_heads
from flax_pos.functional.decay import cos_sin_of_total, running_total
from flax_pos.functional.rope.rotation import Layout, check_layout
from flax_pos.scheme import Scheme, register


@register("carope")
@dataclass(frozen=True, kw_only=True)
class CARoPE(Scheme):
    """Each token moves pair m on by `f ** m` radians, f between 0 and 1 from its content, per
    key/value head; a token's angles are the sums up to it, which the cache keeps."""

    layout: Layout = "half"

    paper = "Veisi et al. 2025, arXiv:2507.23083"
    formula = "angle_m(i) = sum_{t <= i} f_t^m, f_t = 1 / (1 + softplus(w_n . x_t)), m < H/2"

    def __post_init__(self):
        check_layout(self.layout)

    def init_layer(self, key, dims):
        w = jax.random.normal(key, (dims.width, dims.kv_heads), jnp.float32)
        return {"w": w * dims.width**-0.5}

    def features(self, pos, dims):
        exponents = jnp.arange(dims.head_dim // 2, dtype=jnp.float32)
        return {"exponents": jnp.broadcast_to(exponents, (*pos.shape, exponents.size))}

    def coords(self, params, x, at, prev):
        chosen = x.astype(jnp.float32) @ params["w"].astype(jnp.float32)
        f = 1 / (1 + jax.nn.softplus(chosen))
        steps = f[..., None] ** at.feats["exponents"][..., None, :] / jnp.float32(2 * jnp.pi)
        flat = steps.reshape(*steps.shape[:-2], -1)
        before = None if prev is None else prev.feats["turns"]
        total = running_total(flat, at.index >= 0, before)
        return at._replace(feats={**at.feats, "turns": total})

    def rotate(self, params, x, at, side):
        pairs = at.feats["exponents"].shape[-1]
        tables = (t.reshape(*t.shape[:-1], -1, pairs) for t in cos_sin_of_total(at.feats["turns"]))
        return rotate_heads(x, *tables, layout=self.layout)
