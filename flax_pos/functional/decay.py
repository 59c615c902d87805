"""What tokens sum up along the sequence: running totals whose differences stay exact, suffix sums
over the keys of a block, and the last few tokens before each."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flax_pos.functional.shapes import slots


def running_total(
    steps: Float[Array, "*B T N"],
    real: Bool[Array, "*B T"],
    before: Float[Array, "*B 1 N 2"] | None = None,
) -> Float[Array, "*B T N 2"]:
    """Sum of all steps up to and including each token, as a pair of float32 numbers.

    One float32 holds a total of a million to 0.06 only. The pair (their sum is the total) holds
    it to about 1e-8, so differences between neighbours stay right however long the sequence is.

    Args:
      steps: what each token adds, per head.
      real: False on padding, which adds nothing.
      before: the total of the last token before these, or None.
    """
    steps = jnp.where(real[..., None], steps.astype(jnp.float32), 0.0)
    if before is None:
        blank = jnp.zeros_like(steps.sum(-2, keepdims=True))
        before = jnp.stack([blank, blank], -1)
    return _total(steps, before)


@jax.custom_jvp
def _total(steps, before):
    axis = steps.ndim - 2
    high, low = jax.lax.associative_scan(_add, (steps, jnp.zeros_like(steps)), axis=axis)
    return jnp.stack(_add((before[..., 0], before[..., 1]), (high, low)), -1)


@_total.defjvp
def _total_jvp(primals, tangents):
    # Rounding errors have no derivative: the total is a plain sum.
    out = _total(*primals)
    steps, before = tangents
    high = jnp.cumsum(steps, -2) + before[..., 0]
    return out, jnp.stack([high, jnp.broadcast_to(before[..., 1], high.shape)], -1)


def _add(a, b):
    """Sum of two pairs; the rounding error of the high parts goes to the low part (Knuth)."""
    high = a[0] + b[0]
    part = high - a[0]
    error = (a[0] - (high - part)) + (b[0] - part)
    return high, a[1] + b[1] + error


def cos_sin_of_total(
    turns: Float[Array, "*B T F 2"],
) -> tuple[Float[Array, "*B T F"], Float[Array, "*B T F"]]:
    """Cosine and sine of a running total of turns: whole turns are taken off without rounding."""
    high, low = turns[..., 0], turns[..., 1]
    angle = ((high - jax.lax.stop_gradient(jnp.round(high))) + low) * jnp.float32(2 * jnp.pi)
    return jnp.cos(angle), jnp.sin(angle)


def decay_bias(
    q_total: Float[Array, "*B T N 2"], k_total: Float[Array, "*B S N 2"]
) -> Float[Array, "*B N T S"]:
    """total[query] - total[key]: the sum of the steps after the key up to the query."""
    q, q_low, k, k_low = (
        jnp.swapaxes(total[..., part], -1, -2) for total in (q_total, k_total) for part in range(2)
    )
    # A product: where both differences are plain, XLA on CPU takes a third longer for the gradient.
    rows = jnp.stack([q_low, jnp.ones_like(q_low)], -1)
    columns = jnp.stack([jnp.ones_like(k_low), -k_low], -1)
    low = jnp.einsum("...ti,...si->...ts", rows, columns, precision="highest")
    # The low parts are rounding errors: the high ones carry the whole derivative.
    return (q[..., :, None] - k[..., None, :]) + jax.lax.stop_gradient(low)


def suffix_sums(
    x: Float[Array, "*S"], carry: Float[Array, "*R"] | None
) -> tuple[Float[Array, "*S"], Float[Array, "*R"]]:
    """Sums over each key and all keys to its right (last axis), those of later blocks included,
    and the carry for the block to the left."""
    sums = jax.lax.cumsum(x, x.ndim - 1, reverse=True)
    if carry is not None:
        sums += carry[..., None]
    return sums, sums[..., 0]


def recent(
    x: Float[Array, "*B T F"],
    index: Int[Array, "*B T"],
    count: int,
    before: Float[Array, "*B 1 P F"] | None = None,
) -> Float[Array, "*B T C F"]:
    """x of each token itself and of the `count - 1` tokens before it, padding left out; zeros
    where there are none (index 0 starts a sequence).

    Args:
      x: `*B T F`.
      index: order of the tokens, -1 on padding.
      count: C.
      before: the result of this function for the last token before these, of which the first
        `count - 1` entries are read; or None.
    """
    axis = index.ndim - 1
    slot = slots(index)
    last = jax.lax.cummax(jnp.where(index >= 0, slot, -1), axis=axis)
    source = jnp.concatenate([jnp.full_like(last[..., :1], -1), last[..., :-1]], -1)
    out = [x]
    for c in range(count - 1):
        here = out[-1]
        moved = jnp.take_along_axis(here, jnp.maximum(source, 0)[..., None], axis)
        if before is None:
            first = jnp.zeros_like(jax.lax.slice_in_dim(here, 0, 1, axis=axis))
        else:
            first = jax.lax.index_in_dim(before, c, axis + 1, keepdims=False)
        moved = jnp.where(source[..., None] >= 0, moved, first.astype(here.dtype))
        out.append(jnp.where(index[..., None] == 0, jnp.zeros((), here.dtype), moved))
    return jnp.stack(out, axis + 1)


__all__ = ["cos_sin_of_total", "decay_bias", "recent", "running_total", "suffix_sums"]
