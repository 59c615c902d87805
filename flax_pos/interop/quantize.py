"""Weight-only quantisation of a model's matrices, by the qwix library."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int8

from flax_pos.interop.errors import require
from flax_pos.interop.surgery import params_of
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
      ValueError: another number of bits, or a group that does not divide a matrix's inputs.
      ImportError: qwix is not installed.
    """
    if bits not in (8, 4):
        raise ValueError(f"bits must be 8 or 4, got {bits!r}")
    qwix = require("qwix", "quantising weights", extra="quantize")
    rule = qwix.QuantizationRule(
        module_path=r"blocks/.*", weight_qtype=f"int{bits}", tile_size=group
    )
    apart = restack(model, scan_layers=False)
    for path, value in params_of(apart).items():
        if group and path[0] == "blocks" and path[-1] == "kernel" and len(value) % group:
            name = ".".join(map(str, path))
            raise ValueError(f"group={group} must divide the {len(value)} inputs of {name}")
    ids = jnp.zeros((1, 2), jnp.int32)
    # All that has matrices of blocks in it runs inside `hidden`.
    new = qwix.quantize_model(apart, qwix.PtqProvider([rule]), ids, methods=("hidden",))
    new.origin = None  # foreign formats hold no such weights
    return new


def is_quantized(model: CausalLM) -> bool:
    """Whether a model comes from `quantize_weights`."""
    return any(leaf.dtype.name in ("int4", "int8") for leaf in jax.tree.leaves(nnx.state(model)))


def pack_int4(whole: np.ndarray) -> np.ndarray:
    """int4 `in out` as int8 `ceil(in / 2) out`, for files, which know no int4: the first half of
    the rows is in the low four bits, the second in the high ones."""
    rows = -(-len(whole) // 2)
    low, high = whole[:rows].astype(np.int8), np.zeros_like(whole[:rows], np.int8)
    high[: len(whole) - rows] = whole[rows:].astype(np.int8)
    return low & 15 | high << 4


def unpack_int4(packed: Int8[Array, "half out"], rows: int) -> Array:
    """The inverse of `pack_int4`.

    >>> print(unpack_int4(jnp.asarray(pack_int4(np.array([[1], [-8], [7]]))), 3)[:, 0])
    [1 -8 7]
    """
    low, high = jnp.right_shift(jnp.left_shift(packed, 4), 4), jnp.right_shift(packed, 4)
    return jnp.concatenate([low, high])[:rows].astype(jnp.int4)


__all__ = ["is_quantized", "pack_int4", "quantize_weights", "unpack_int4"]
