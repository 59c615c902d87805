"""Cross entropy of a linear head without the logits of all tokens at once."""

import math
from functools import partial
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from flax_pos.functional.embedding import cap_logits
from flax_pos.functional.lookup import OutOfRange, resolve_index

HeadAxes = Literal["VD", "DV"]
Reduction = Literal["mean", "sum", "none"]
_LOGITS_AT_ONCE = 1 << 22
_LEAST_CHUNK = 128
"""By default a block of logits has 2**22 numbers (16 MiB in float32), but at least this many
tokens: fewer would read the whole table for too little work."""


def linear_cross_entropy(
    h: Float[Array, "*B D"],
    table: Float[Array, "V D"] | Float[Array, "D V"],
    labels: Integer[Array, "*B"],
    *,
    table_axes: HeadAxes = "VD",
    mask: Bool[Array, "*B"] | None = None,
    ignore_index: int | None = -100,
    vocab_size: int | None = None,
    scale: float | Array = 1.0,
    softcap: float | None = None,
    z_loss: float | Array = 0.0,
    reduction: Reduction = "mean",
    chunk: int | None = None,
    out_of_range: OutOfRange = "nan",
) -> Float[Array, ""] | Float[Array, "*B"]:
    """`-log softmax(softcap * tanh(scale * h . table / softcap))[label]`, in nats.

    Equal to the dense loss in value and gradients, but the N x V logits never exist: a
    `lax.scan` forms the logits of `chunk` tokens, reduces them, and forms them again in the
    backward pass. The gradient of `table` accumulates in float32 over the chunks.

    A chunk takes every (N / chunk)-th token, so that a batch axis which is sharded over devices
    stays so in every chunk.

    Args:
      h: the residual after the last norm; N = the product of its leading axes.
      table: the head; the embedding itself (V x D) where it is tied. Rounded to the dtype of `h`
        for the product, which accumulates in float32.
      labels: the right token at each place.
      table_axes: `"VD"`, or `"DV"` for an untied head as `init_embedding` makes it.
      mask: False where a token does not count.
      ignore_index: a label that does not count either; None: there is none.
      vocab_size: number of rows in use, where the table has surplus rows: those get no
        probability and no gradient.
      scale: factor on the logits, before the soft cap.
      softcap: None: no soft cap.
      z_loss: factor on the squared log of the normaliser (PaLM, arXiv:2204.02311, section 5).
      reduction: `"mean"` over the tokens that count (0 where none does), `"sum"`, or `"none"` for
        one number per token, 0 where it does not count.
      chunk: tokens per step; None: as many as keep a block of logits at 16 MiB, at least 128.
      out_of_range: what a label outside the vocabulary does, see `lookup`; under `"nan"` the loss
        is NaN.

    Raises:
      TypeError: labels that are not integers, or a mask that is not bool.
      ValueError: shapes that do not fit, a concrete label out of range, or an unknown option.

    >>> h, table = jnp.eye(3), jnp.zeros((5, 3))
    >>> round(float(linear_cross_entropy(h, table, jnp.array([0, 4, -100]))), 5)  # ln 5
    1.60944
    """
    if table_axes not in get_args(HeadAxes):
        raise ValueError(f"table_axes must be one of {get_args(HeadAxes)}, got {table_axes!r}")
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {get_args(Reduction)}, got {reduction!r}")
    rows, width = table.shape if table_axes == "VD" else table.shape[::-1]
    if h.shape != (*labels.shape, width):
        raise ValueError(
            f"h must have the axes of labels and the table's width, {(*labels.shape, width)}, "
            f"got {h.shape}"
        )
    if vocab_size is not None and not 0 < vocab_size <= rows:
        raise ValueError(f"vocab_size must be in 1 .. {rows} (the table's rows), got {vocab_size}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    counts = jnp.ones(labels.shape, bool)
    if mask is not None:
        if mask.dtype != jnp.bool_ or mask.shape != labels.shape:
            raise TypeError(
                f"mask must be bool of shape {labels.shape}, got {mask.dtype} {mask.shape}"
            )
        counts, labels = jnp.asarray(mask), jnp.where(mask, labels, 0)
    used = vocab_size or rows
    safe, known, valid = resolve_index(
        labels, used, out_of_range, padding_index=ignore_index, name="label"
    )
    counts = counts if known is None else counts & known

    wide = np.promote_types(h.dtype, np.float32)
    # In the wide dtype outside the loop, so that its gradient accumulates in it.
    head = table.astype(wide)
    product = "cd,vd->cv" if table_axes == "VD" else "cd,dv->cv"

    @partial(jax.checkpoint, prevent_cse=False)
    def one_chunk(h, labels):
        logits = jnp.einsum(product, h, head.astype(h.dtype), preferred_element_type=wide)
        logits = cap_logits(logits, scale, softcap)
        token = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
        if used < rows:
            logits = jnp.where(token < used, logits, -jnp.inf)
        normaliser = jax.nn.logsumexp(logits, axis=-1)
        # A comparison rather than a gather: it also works where the vocabulary is sharded.
        right = jnp.sum(jnp.where(token == labels[:, None], logits, 0), axis=-1)
        return normaliser - right + jnp.asarray(z_loss, wide) * normaliser**2

    count = math.prod(labels.shape)
    steps = max(1, -(-count // (chunk or max(_LEAST_CHUNK, _LOGITS_AT_ONCE // rows))))
    losses = jax.lax.map(
        lambda block: one_chunk(*block),
        (_deal(h.reshape(count, width), steps), _deal(safe.reshape(count), steps)),
    )
    losses = losses.T.reshape(-1)[:count].reshape(labels.shape)
    losses = jnp.where(counts, losses, 0)
    if valid is not None:
        losses = jnp.where(valid, losses, jnp.nan)
    if reduction == "none":
        return losses
    total = jnp.sum(losses)
    return total if reduction == "sum" else total / jnp.maximum(jnp.sum(counts), 1).astype(wide)


def _deal(x, steps: int):
    """`steps` hands of ceil(N / steps) rows: row n goes to hand n % steps; zeros make up."""
    each = -(-x.shape[0] // steps)
    x = jnp.pad(x, ((0, each * steps - x.shape[0]), *[(0, 0)] * (x.ndim - 1)))
    return x.reshape(each, steps, *x.shape[1:]).swapaxes(0, 1)
