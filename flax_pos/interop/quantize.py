"""Weight-only quantisation of a model's matrices, by the qwix library."""

from typing import Literal

import jax.numpy as jnp

from flax_pos.interop.errors import require
from flax_pos.nnx.causal_lm import CausalLM, restack


def quantize_weights(model: CausalLM, bits: Literal[8, 4] = 8, *, group: int | None = None):
    """The model with the matrices of its blocks as int8 or int4, each with float32 scales.

    They are dequantised where they are used. Everything else is what it was: positions, norms,
    biases, embedding and head, activations, and the dtype of all products.

    Args:
      model: any model; it is not changed. The result has its layers apart.
      bits: 8 or 4.
      group: inputs that share a scale; None: all of an output channel. 32 to 128 is usual for
        4 bits.

    Raises:
      ValueError: another number of bits.
      ImportError: qwix is not installed.
    """
    if bits not in (8, 4):
        raise ValueError(f"bits must be 8 or 4, got {bits!r}")
    qwix = require("qwix", "quantising weights", extra="quantize")
    rule = qwix.QuantizationRule(
        module_path=r"blocks/.*", weight_qtype=f"int{bits}", tile_size=group
    )
    apart = restack(model, scan_layers=False)
    ids = jnp.zeros((1, 2), jnp.int32)
    # All that has matrices of blocks in it runs inside `hidden`.
    new = qwix.quantize_model(apart, qwix.PtqProvider([rule]), ids, methods=("hidden",))
    new.origin = None  # foreign formats hold no such weights
    return new


__all__ = ["quantize_weights"]
