"""Attention kernels of other libraries, for schemes that act on q and k alone."""

import importlib
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp

from flax_pos.attention.mask import Reach
from flax_pos.scheme import Scheme
from flax_pos.types import Coords

SPLASH_BLOCK = 128
"""The TPU kernel works on multiples of this many tokens."""


def refusal(
    implementation: str,
    *,
    scheme: Scheme,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    reach: Reach,
    scale,
    softcap,
    sinks,
    contiguous: bool,
) -> str | None:
    """Why a kernel cannot do the job; None if it can."""
    for hook, when in (
        ("bias", "between q.k and softmax"),
        ("scores", "between q.k and softmax"),
        ("mix", "after softmax"),
    ):
        if hook in scheme.uses:
            return f"scheme {scheme.name!r} has a {hook} hook, which runs {when}"
    if not scheme.normalized:
        return f"scheme {scheme.name!r} does without softmax"
    if implementation == "splash":
        return _splash_refusal(q, k, reach, softcap, contiguous)
    if sinks is not None:
        return "it has no sinks"
    if implementation == "tokamax":
        if importlib.util.find_spec("tokamax") is None:
            return "it is not installed (pip install tokamax)"
        return _static("scale", scale) or _static("softcap", softcap)
    if softcap is not None:
        return f"it has no soft cap (softcap={softcap})"
    if v.shape[-1] != q.shape[-1]:
        return f"values are {v.shape[-1]} wide and keys {q.shape[-1]}; it wants one width"
    return _cudnn_refusal(q, reach, scale) if implementation == "cudnn" else None


def _cudnn_refusal(q: jax.Array, reach: Reach, scale) -> str | None:
    if q.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it needs bfloat16 or float16, got {q.dtype}"
    if q.shape[-1] % 8 or q.shape[-1] > 128:
        return f"it needs a head width that is a multiple of 8 up to 128, got {q.shape[-1]}"
    if reach.window is not None and not reach.causal:
        return "its sliding window needs causal=True"
    return _static("scale", scale)


def _splash_refusal(q, k, reach: Reach, softcap, contiguous: bool) -> str | None:
    if not contiguous:
        return "its masks go by slots, which only contiguous=True allows"
    for name, x in (("queries", q), ("keys", k)):
        if x.shape[-3] % SPLASH_BLOCK:
            return f"it needs a multiple of {SPLASH_BLOCK} {name}, got {x.shape[-3]}"
    if reach.chunk is not None and not reach.causal:
        return "its chunks need causal=True"
    return _static("softcap", softcap)


def _static(name: str, value) -> str | None:
    if value is None or isinstance(value, int | float):
        return None
    return f"its {name} must be a Python number, got {type(value).__name__}"


def attend_library(
    implementation: str, q, k, v, q_at: Coords, k_at: Coords, *, reach: Reach, scale, softcap,
    contiguous: bool,
) -> jax.Array:  # fmt: skip
    """`jax.nn.dot_product_attention` (xla, cudnn) or tokamax's, which know one batch axis and no
    rows that see nothing."""
    *batch, t, heads, _ = q.shape
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    options: dict[str, Any] = {"scale": scale}
    seen = None
    if contiguous and reach.chunk is None:
        options["is_causal"] = reach.causal
        if reach.window is not None:
            before = reach.window - 1
            options["local_window_size"] = (before, 0 if reach.causal else before)
    else:
        shape = (*batch, 1, t, k.shape[-3])
        mask = jnp.broadcast_to(reach.allowed(q_at, k_at), shape).reshape(-1, *shape[-3:])
        options["mask"] = mask
        seen = jnp.swapaxes(mask.any(-1), -1, -2)[..., None]
    if implementation == "tokamax":
        out = load_tokamax().dot_product_attention(q, k, v, logits_soft_cap=softcap, **options)
    else:
        attend: Any = jax.nn.dot_product_attention
        out = attend(q, k, v, implementation=implementation, **options)
    if seen is not None:
        out = jnp.where(seen, out, jnp.zeros((), out.dtype))
    return out.reshape(*batch, t, heads, v.shape[-1])


def load_tokamax() -> Any:
    """The module, ready to be called in a program that has a command line of its own."""
    flags: Any = importlib.import_module("absl.flags")
    if not flags.FLAGS.is_parsed():
        # Else tokamax parses the command line of whatever program this is, and chokes on it.
        flags.FLAGS.mark_as_parsed()
    return importlib.import_module("tokamax")


def attend_splash(q, k, v, *, reach: Reach, scale, softcap, sinks) -> jax.Array:
    """The Pallas kernel for TPU that ships with JAX; elsewhere it is interpreted, slowly."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = (q.shape[-3], k.shape[-3])
    mask = masks.CausalMask(shape) if reach.causal else masks.FullMask(shape)
    if reach.window is not None:
        before = reach.window - 1
        after = 0 if reach.causal else before
        mask = masks.LocalMask(shape, (before, after), 0)
    if reach.chunk is not None:
        chunks = masks.ChunkedCausalMask(shape, reach.chunk)
        mask = chunks if reach.window is None else masks.LogicalAnd(mask, chunks)
    kernel: Any = splash.make_splash_mha(
        masks.MultiHeadMask([mask] * q.shape[-2]),
        attn_logits_soft_cap=softcap,
        head_shards=1,
        q_seq_shards=1,
        interpret=jax.default_backend() != "tpu",
    )
    q = (q.astype(jnp.float32) * jnp.asarray(scale, jnp.float32)).astype(q.dtype)
    run = lambda q, k, v: kernel(q, k, v, sinks=sinks)
    for _ in range(q.ndim - 3):
        run = jax.vmap(run)
    out = run(*(jnp.swapaxes(x, -2, -3) for x in (q, k, v)))
    return jnp.swapaxes(out, -2, -3)


__all__ = ["attend_library", "attend_splash", "load_tokamax", "refusal"]
