"""The shared vocabulary: axis letters, sizes, and where a token is.

Axis letters are those of `jax.nn.dot_product_attention`:

`B` batch (any number of leading axes), `T` queries, `S` keys, `N` query heads, `K` key/value
heads, `H` head width, `D` model width, `V` vocabulary, `L` layers.
"""

from typing import Any, Literal, NamedTuple

import jax

Params = dict[str, Any]
"""A plain nested dict of arrays."""

Side = Literal["q", "k"]


class Dims(NamedTuple):
    """Sizes that a scheme may need to create parameters or per-token features.

    All fields but `length` are static Python integers.
    """

    width: int
    """Model width D."""
    heads: int
    """Query heads N."""
    kv_heads: int
    """Key/value heads K; N is a multiple of it."""
    head_dim: int
    """Head width H."""
    layers: int
    """Layers L."""
    max_len: int
    """Number of positions that the model was built for (n_ctx): 0 .. max_len - 1."""
    length: Any = None
    """Total length of the sequence that this forward is part of, an int or a traced int32
    scalar; None means "largest position + 1". Only schemes that claim `depends_on_length` read
    it."""


class Coords(NamedTuple):
    """Where tokens are. Every leaf starts with the same `*B T`, so that slicing, padding and
    caching are one `jax.tree.map`.

    Key-side coords live in the KV cache beside k and v: decoding sees what training saw.
    """

    index: jax.Array
    """int32 `*B T`: order in the sequence, -1 on padding. Masks use this and nothing else."""
    pos: jax.Array
    """`*B T`: where the scheme puts the token (integers, save for schemes that say otherwise).
    Position maths uses this and nothing else."""
    feats: dict[str, jax.Array] = {}  # noqa: RUF012 - never mutated: coords are replaced, not edited
    """Anything else that a token carries, each `*B T ...`."""
    segment: jax.Array | None = None
    """int32 `*B T`: which packed document the token belongs to; tokens of different segments do
    not see each other. None: one document."""


class Pair(NamedTuple):
    """One block of queries against one block of keys, as the `scores` hook sees it."""

    q: jax.Array
    """`*B T N H`, after `rotate`."""
    k: jax.Array
    """`*B S K H`, after `rotate`."""
    logits: jax.Array
    """float32 `*B N T S`: scaled q.k, not masked."""
    bias: jax.Array | None
    """float32, broadcastable to `logits`; None where the scheme has no bias."""
    mask: jax.Array
    """bool, broadcastable to `logits`: True where attention is allowed."""
    q_at: Coords
    k_at: Coords
    scale: Any
    """What multiplied q.k: for schemes that form logits of their own."""
    softcap: Any
    """What capped the logits, or None; pass it on with `scale` to `dot_logits`."""
