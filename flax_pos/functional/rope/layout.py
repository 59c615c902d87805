"""Moving weights between the layouts of rotary pairs."""

import numpy as np

from flax_pos.functional.rope.rotation import Layout, check_layout


def permute_layout(
    weight,
    *,
    heads: int,
    source: Layout,
    target: Layout,
    rotary_dim: int | None = None,
    trailing: bool = False,
    axis: int = 0,
):
    """Reorders the channels of a q or k projection (weight or bias) for another pair layout.

    A model with the result in layout `target` computes the same scores as before in layout
    `source`. Do q (with its number of heads) and k (with the number of key/value heads), weights,
    biases and per-channel norm scales; never v.

    Args:
      weight: NumPy or JAX array whose `axis` runs over `heads * H` output channels, head by head.
        Where heads have an axis of their own, give the channel axis and `heads=1`.
      heads: number of heads along `axis`.
      source, target: layouts; `interleaved_in_half_out` reads its input as `interleaved`.
      rotary_dim: number of rotated channels of each head; None: all. The others stay.
      trailing: the rotated channels are the last of a head.
      axis: the axis of the output channels (0 in PyTorch's `out x in`, -1 in Flax kernels).

    Raises:
      ValueError: sizes that do not fit, an unknown layout.

    Examples:
      >>> permute_layout(np.arange(8), heads=2, source="interleaved", target="half").tolist()
      [0, 2, 1, 3, 4, 6, 5, 7]
    """
    for layout in (source, target):
        check_layout(layout)
    size = weight.shape[axis]
    if heads < 1 or size % heads:
        raise ValueError(f"axis {axis} of length {size} does not hold {heads} heads")
    head_dim = size // heads
    width = head_dim if rotary_dim is None else rotary_dim
    if width % 2 or not 2 <= width <= head_dim:
        raise ValueError(
            f"rotary_dim must be even and between 2 and the head width {head_dim}, got {width}"
        )
    pairs = np.arange(width)
    if (source == "half") != (target == "half"):
        pairs = pairs.reshape((2, -1) if source == "half" else (-1, 2)).T.reshape(-1)
    channels = np.arange(head_dim)
    start = head_dim - width if trailing else 0
    channels[start : start + width] = start + pairs
    order = (np.arange(heads)[:, None] * head_dim + channels).reshape(-1)
    return weight.take(order, axis=axis)
