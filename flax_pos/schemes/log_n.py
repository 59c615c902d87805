"""Logits that grow with the logarithm of the number of keys beyond the length trained on."""

from dataclasses import dataclass

import jax.numpy as jnp

from flax_pos.functional.fields import check_integer
from flax_pos.scheme import Scheme, register


@register("log_n")
@dataclass(frozen=True, kw_only=True)
class LogN(Scheme):
    """Queries at position i are multiplied by `max(1, log(i + 1) / log L)`, as in Qwen 1."""

    train_len: int | None = None
    """L; None: the model's max_len."""

    paper = "Su 2021, kexue.fm/archives/8823"
    formula = "logits x max(1, log(i + 1) / log L)"
    relative = False
    causal_only = True
    toy = {"train_len": 8}

    def __post_init__(self):
        if self.train_len is not None:
            check_integer("train_len", self.train_len, at_least=2)

    def features(self, pos, dims):
        log_keys = jnp.log1p(jnp.maximum(pos, 0).astype(jnp.float32))
        train_len = jnp.float32(dims.max_len if self.train_len is None else self.train_len)
        return {"log_n": jnp.maximum(log_keys / jnp.log(train_len), 1.0)}

    def rotate(self, params, x, at, side):
        if side == "k":
            return x
        factor = at.feats["log_n"][..., None, None]
        return (x.astype(jnp.float32) * factor).astype(x.dtype)
