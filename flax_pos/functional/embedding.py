"""Token embeddings and the output head: one table each, or one for both."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Integer

from flax_pos.functional.lookup import OutOfRange, lookup

EmbeddingParams = dict[str, jax.Array]
"""`{"embedding": V x D}`, beside it `{"head": D x V}` where the head is not tied and
`{"head_bias": V}` where it has a bias."""


class Nearest(NamedTuple):
    """The result of `nearest_tokens`, best first."""

    values: Float[Array, "*B k"]
    ids: Int[Array, "*B k"]


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `n`.

    >>> round_up(128, 64), round_up(129, 64), round_up(50257, 128)
    (128, 192, 50304)
    """
    if multiple < 1:
        raise ValueError(f"multiple must be at least 1, got {multiple}")
    return -(-n // multiple) * multiple


def id_dtype(vocab_size: int) -> np.dtype:
    """The narrowest unsigned type that stores the ids 0 .. vocab_size - 1 in a file.

    Count added tokens: an id past the type's end wraps to a legal wrong one.

    >>> str(id_dtype(65536)), str(id_dtype(65537))
    ('uint16', 'uint32')
    """
    return np.min_scalar_type(_positive(vocab_size, "vocab_size") - 1)


def init_embedding(
    key: jax.Array,
    vocab_size: int,
    width: int,
    *,
    tied: bool = True,
    stddev: float = 0.02,
    dtype: Any = jnp.float32,
    pad_to_multiple: int = 1,
    head_bias: bool = False,
) -> EmbeddingParams:
    """Parameters for `embed` and `unembed`, normal with deviation `stddev`.

    With a normalised residual of unit RMS the logits start with deviation `stddev * sqrt(width)`,
    so that the first loss exceeds ln V by half its square (0.013 at width 64, 0.15 at 768).

    Args:
      key: a PRNG key.
      vocab_size: V, the number of ids in use.
      width: D.
      tied: whether the head is the table itself; otherwise it gets its own entry, `"head"`.
      stddev: of both tables.
      dtype: of both tables.
      pad_to_multiple: the table gets `round_up(V, pad_to_multiple)` rows, the surplus zero: a mesh
        shards rows evenly or not at all. Pass the true `vocab_size` to `embed`, `unembed` and the
        loss, and no surplus row is ever read.
      head_bias: the head gets the entry `"head_bias"`, zeros, one for each row of the table.
    """
    rows = round_up(_positive(vocab_size, "vocab_size"), pad_to_multiple)
    _positive(width, "width")
    embedding_key, head_key = jax.random.split(key)
    surplus = ((0, rows - vocab_size), (0, 0))
    draw = lambda k: jnp.pad(
        jnp.asarray(stddev, dtype) * jax.random.normal(k, (vocab_size, width), dtype), surplus
    )
    params = {"embedding": draw(embedding_key)}
    if not tied:
        params["head"] = draw(head_key).T
    if head_bias:
        params["head_bias"] = jnp.zeros(rows, dtype)
    return params


def embed(
    params: EmbeddingParams,
    ids: Integer[ArrayLike, "*B"],
    *,
    scale: float | Array | None = None,
    round_scale: bool = False,
    dtype: Any = None,
    vocab_size: int | None = None,
    out_of_range: OutOfRange = "nan",
) -> Float[Array, "*B D"]:
    """Token embeddings.

    Args:
      params: the result of `init_embedding`.
      ids: integers of any width, 0 .. V - 1.
      scale: factor on the embeddings, such as `math.sqrt(D)` (Vaswani et al. 2017, section 3.4).
        None: none.
      round_scale: round `scale` to the result's dtype before the product, as Gemma does (in
        bfloat16 sqrt(3072) becomes 55.5). Otherwise the product is formed in float32 and rounded
        once.
      dtype: of the result (the compute dtype); None: that of the table.
      vocab_size: number of rows in use, where the table has surplus rows.
      out_of_range: see `lookup`.

    Raises:
      TypeError: ids that are not integers.
      ValueError: a concrete id out of range.

    >>> params = {"embedding": jnp.ones((4, 3072), jnp.bfloat16)}
    >>> float(embed(params, jnp.array([1]), scale=3072**0.5)[0, 0])
    55.5
    """
    table = _embedding(params)
    x = lookup(table, ids, size=vocab_size, out_of_range=out_of_range, name="ids")
    dtype = table.dtype if dtype is None else dtype
    if scale is None:
        return x.astype(dtype)
    if round_scale:
        return x.astype(dtype) * jnp.asarray(scale, dtype)
    wide = np.promote_types(x.dtype, np.float32)
    return (x.astype(wide) * jnp.asarray(scale, wide)).astype(dtype)


def head_table(params: EmbeddingParams) -> Float[Array, "V D"]:
    """The head with one row per token: the embedding itself where it is tied."""
    return params["head"].T if "head" in params else _embedding(params)


def _embedding(params: EmbeddingParams) -> Float[Array, "V D"]:
    if "embedding" not in params:
        raise ValueError(
            f"params has the entries {sorted(params)}; it needs 'embedding' (V x D), as "
            "init_embedding makes it, and an untied 'head' (D x V) beside it"
        )
    return params["embedding"]


def unembed(
    params: EmbeddingParams,
    h: Float[Array, "*B D"],
    *,
    scale: float | Array = 1.0,
    softcap: float | None = None,
    dtype: Any = jnp.float32,
    vocab_size: int | None = None,
) -> Float[Array, "*B V"]:
    """Logits `softcap * tanh((scale * h . row + bias) / softcap)`.

    The head is rounded to the dtype of `h`, products accumulate in float32, and scale and soft
    cap are applied in float32.

    Args:
      params: the result of `init_embedding`; `"head"` is used where present, else the table;
        `"head_bias"` (`V`) is added where present.
      h: the residual, after the last norm.
      scale: factor on the logits, before the soft cap.
      softcap: None: no soft cap.
      dtype: of the result. Losses want float32 whatever `h` is.
      vocab_size: number of rows in use; the logits of surplus rows are left out.
    """
    rows = head_table(params)[:vocab_size]
    if h.shape[-1] != rows.shape[-1]:
        raise ValueError(f"h has width {h.shape[-1]}, the head {rows.shape[-1]}")
    wide = np.promote_types(h.dtype, np.float32)
    logits = jnp.einsum("...d,vd->...v", h, rows.astype(h.dtype), preferred_element_type=wide)
    logits = cap_logits(logits, scale, None)
    if "head_bias" in params:
        bias = params["head_bias"][:vocab_size]
        if bias.shape != rows.shape[:1]:
            raise ValueError(f"head_bias has shape {bias.shape}, the head {rows.shape[0]} tokens")
        logits += bias.astype(wide).reshape((1,) * (logits.ndim - 1) + bias.shape)
    return cap_logits(logits, 1, softcap).astype(dtype)


def cap_logits(logits, scale, softcap):
    """`scale` and then `softcap`, in the dtype of `logits`; both left out where they do nothing."""
    if not (isinstance(scale, int | float) and scale == 1):
        logits = logits * jnp.asarray(scale, logits.dtype)
    return logits if softcap is None else soft_cap(logits, softcap)


def soft_cap(x: Float[Array, "*B"], cap: float | Array) -> Float[Array, "*B"]:
    """`cap * tanh(x / cap)`, in float32, cast back (Gemma 2, arXiv:2408.00118, section 2).

    Raises:
      ValueError: `cap` is not positive.

    >>> round(float(soft_cap(jnp.array(124.0), 30.0)), 5)
    29.98459
    """
    check_cap(cap)
    wide = np.promote_types(x.dtype, np.float32)
    cap = jnp.asarray(cap, wide)
    return (cap * jnp.tanh(x.astype(wide) / cap)).astype(x.dtype)


def check_cap(cap: float | Array, name: str = "cap") -> None:
    """Raises ValueError unless a soft cap is positive; a traced one passes."""
    if not isinstance(cap, Tracer) and not cap > 0:
        raise ValueError(f"{name} must be positive, got {cap}; None leaves the soft cap out")


def nearest_tokens(
    params: EmbeddingParams,
    h: Float[Array, "*B D"],
    k: int = 5,
    *,
    by: Literal["score", "cosine"] = "score",
    table: Literal["head", "embedding"] = "head",
    vocab_size: int | None = None,
) -> Nearest:
    """The `k` tokens whose rows a residual is closest to.

    Args:
      params: the result of `init_embedding`.
      h: residuals, read as they are: apply the model's last norm first for a logit lens.
      k: how many.
      by: `"score"`: the dot product, as the head sees it. `"cosine"`: the angle alone; a zero
        vector has cosine 0 with everything.
      table: `"head"`: what the residual predicts (the embedding where tied). `"embedding"`: what
        it would be as an input.
      vocab_size: number of rows in use.

    Returns:
      `values` (float32) and `ids` (int32), each `*B k`, best first.

    >>> params = {"embedding": jnp.array([[3.0, 0.0], [0.0, 1.0], [1.0, 1.0]])}
    >>> nearest_tokens(params, jnp.array([1.0, 1.0]), 2).ids.tolist()
    [0, 2]
    >>> nearest_tokens(params, jnp.array([1.0, 1.0]), 1, by="cosine").ids.tolist()
    [2]
    """
    if by not in ("score", "cosine"):
        raise ValueError(f"by must be 'score' or 'cosine', got {by!r}")
    if table not in ("head", "embedding"):
        raise ValueError(f"table must be 'head' or 'embedding', got {table!r}")
    rows = (head_table(params) if table == "head" else _embedding(params))[:vocab_size]
    if not 1 <= k <= rows.shape[0]:
        raise ValueError(f"k must be in 1 .. {rows.shape[0]} (the vocabulary), got {k}")
    rows, h = rows.astype(jnp.float32), h.astype(jnp.float32)
    if by == "cosine":
        rows, h = _unit(rows), _unit(h)
    values, ids = jax.lax.top_k(jnp.einsum("...d,vd->...v", h, rows), k)
    return Nearest(values, ids)


def _unit(x):
    norm = jnp.linalg.norm(x, axis=-1, keepdims=True)
    return jnp.where(norm > 0, x / jnp.where(norm > 0, norm, 1), 0)


def _positive(n: int, name: str) -> int:
    if n < 1:
        raise ValueError(f"{name} must be at least 1, got {n}")
    return n
