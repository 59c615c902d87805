"""`attend`: one entry to all implementations, and the one rule that chooses among them."""

import functools
import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flax_pos.attention.blockwise import attend_blockwise
from flax_pos.attention.dense import attend_dense
from flax_pos.attention.kernels import attend_library, attend_splash, refusal
from flax_pos.attention.mask import Reach
from flax_pos.functional.embedding import check_cap
from flax_pos.functional.fields import check_scalar
from flax_pos.functional.positions import holds_positions
from flax_pos.scheme import Scheme, check_scheme
from flax_pos.types import Coords, Params

Implementation = Literal["auto", "dense", "blockwise", "xla", "cudnn", "splash", "tokamax"]

CACHED_SCORES = 2**22
"""From this many scores on (16 MiB), over all rows and heads, the dense form is slower than the
blockwise one on a CPU: they no longer stay in its cache."""
FEW_PAIRS = 256 * 256
"""With fewer query-key pairs than this there are too few blocks to skip any."""


def attend(
    scheme: Scheme,
    params: Params,
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K Hv"],
    q_at: Coords,
    k_at: Coords,
    *,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    scale=None,
    softcap=None,
    sinks: jax.Array | None = None,
    implementation: Implementation = "auto",
    contiguous: bool = False,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Float[Array, "*B T N Hv"]:
    """Attention with the bias and the scores of a position scheme.

    weights = softmax(scores) over the keys that a query may see, where scores are
    softcap(scale * q.k) + bias, or what `scheme.scores` makes of them. Softmax and all sums are
    float32. A query that sees no key, such as padding, gets zeros.

    Neither does this rotate, nor does it compute what tokens carry: `prepare` does, and q, k and
    coords that did not go through it are attended to without positions under schemes such as RoPE.

    Args:
      scheme: the layer's scheme (`for_layer` already applied).
      params: its parameters, shared and own merged.
      q, k: as `prepare` returns them. v: values. N must be a multiple of K (grouped-query heads).
      q_at, k_at: coords of queries and keys, leaves `*B T ...` and `*B S ...`; batch axes of
        length 1 stand for all rows.
      causal: a query sees keys with index <= its own; otherwise all.
      window: sliding window: the query itself and window - 1 keys before it (without a causal
        mask, as many after it too). None: what the scheme prescribes.
      chunk: only keys with the same index // chunk. None: what the scheme prescribes.
      scale: one number, multiplies q.k. None: 1 / sqrt(H), H the width of a query.
      softcap: c in c * tanh(logits / c), before bias. None: no cap.
      sinks: `N`: one logit per head that takes part in the normaliser and has no value.
      implementation: see below.
      contiguous: the caller's word that index is 0, 1, 2, ... in queries and keys of every row,
        without padding and without segments. Library kernels then need no T x S mask.
      block_q, block_k: block sizes of the blockwise form. None: chosen here.

    Implementations:
      dense: the whole T x S matrix. Any scheme; derivatives of any order, forward and reverse.
      blockwise: memory linear in T, blocks that cannot be seen are skipped. Any scheme; reverse
        mode only.
      xla, cudnn: `jax.nn.dot_product_attention`. For schemes that act on q and k alone, without
        soft cap, sinks or a value width of its own; cudnn needs 16-bit inputs.
      splash: the Pallas kernel for TPU that ships with JAX, for the same schemes; it has soft cap
        and sinks, needs `contiguous` and multiples of 128 tokens, and under a mesh of devices a
        `shard_map` around the call. On other platforms it is interpreted.
      tokamax: `tokamax.dot_product_attention`, where installed; no sinks.
      auto: cudnn on a GPU where it can serve and `contiguous` says that it needs no mask; else
        dense for fewer than 256 x 256 query-key pairs, for fewer than 2^22 scores over all rows
        and heads, and where the scores are no more than the numbers in k (as in decoding); else
        blockwise.

    Raises:
      ValueError: shapes that do not fit, a scheme that needs a causal mask and gets none, or an
        implementation that cannot do the job; the message says why.
      TypeError: q, k and v of different dtypes, or not of floats; a scheme that is a name or a
        class, or coords that are none; an index that is not int32, positions of 16 bits or fewer,
        segments on one side only; a window, chunk or block size that is not an integer; a scale
        or soft cap that is not one number.

    >>> from flax_pos import Coords, Dims, get_scheme, prepare
    >>> rope, at = get_scheme("rope")(), Coords(jnp.arange(5), jnp.arange(5))
    >>> x, q, k, v = jnp.ones((5, 8)), *jnp.ones((3, 5, 2, 4))
    >>> dims = Dims(width=8, heads=2, kv_heads=2, head_dim=4, layers=1, max_len=5)
    >>> q, k, at = prepare(rope, {}, x, q, k, at, rope.features(at.pos, dims))
    >>> attend(rope, {}, q, k, v, at, at).shape
    (5, 2, 4)
    """
    check_scheme(scheme)
    one_layer = scheme.for_layer(0)
    if one_layer is not scheme and one_layer != scheme:
        raise ValueError(f"scheme {scheme.name!r} differs by layer: give scheme.for_layer(layer)")
    _check_coords("q_at", q_at)
    _check_coords("k_at", k_at)
    _check(q, k, v, q_at, k_at, sinks)
    if not isinstance(causal, bool | np.bool_):
        raise TypeError(f"causal must be True or False, known when traced; got {causal!r}")
    if scale is not None:
        check_scalar("scale", scale)
    if softcap is not None:
        check_scalar("softcap", softcap)
        check_cap(softcap, "softcap")
    if scheme.causal_only and not causal:
        raise ValueError(
            f"scheme {scheme.name!r} has no meaning without a causal mask: causal=True"
        )
    reach = Reach(
        causal,
        _positive("window", scheme.window if window is None else window),
        _positive("chunk", scheme.chunk if chunk is None else chunk),
    )
    if sinks is not None and not scheme.normalized:
        raise ValueError(f"sinks join a softmax, and scheme {scheme.name!r} does without one")

    refuses = functools.partial(
        refusal,
        scheme=scheme,
        q=q,
        k=k,
        v=v,
        reach=reach,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        contiguous=contiguous,
    )
    if implementation == "auto":
        if jax.default_backend() == "gpu" and contiguous and refuses("cudnn") is None:
            implementation = "cudnn"
        else:
            implementation = "dense" if _small(q, k) else "blockwise"
    elif implementation not in get_args(Implementation):
        raise ValueError(
            f"implementation must be one of {get_args(Implementation)}, got {implementation!r}"
        )

    if 0 in (q.shape[-3], k.shape[-3]):
        return jnp.zeros((*q.shape[:-1], v.shape[-1]), v.dtype)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    args = (scheme, params, q, k, v, q_at, k_at)
    if implementation == "dense":
        return attend_dense(*args, reach=reach, scale=scale, softcap=softcap, sinks=sinks)
    if implementation == "blockwise":
        return attend_blockwise(
            *args,
            reach=reach,
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            block_q=_positive("block_q", block_q),
            block_k=_positive("block_k", block_k),
        )
    reason = refuses(implementation)
    if reason is not None:
        raise ValueError(
            f"implementation={implementation!r} cannot do this: {reason}; "
            "'dense', 'blockwise' and 'auto' can"
        )
    if implementation == "splash":
        return attend_splash(q, k, v, reach=reach, scale=scale, softcap=softcap, sinks=sinks)
    return attend_library(
        implementation, q, k, v, q_at, k_at,
        reach=reach, scale=scale, softcap=softcap, contiguous=contiguous,
    )  # fmt: skip


def _small(q: jax.Array, k: jax.Array) -> bool:
    """Whether the dense form is the better one."""
    pairs = q.shape[-3] * k.shape[-3]
    scores = math.prod(q.shape[:-3]) * q.shape[-2] * pairs
    return pairs < FEW_PAIRS or scores < CACHED_SCORES or scores <= k.size


def _positive(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    # Anything else is an integer, or the length of an axis that an exported program leaves open.
    if isinstance(value, bool | str | float | np.floating | jax.Array | tuple | list):
        raise TypeError(f"{name} must be an integer (tokens) or None, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def _check_coords(name: str, at: Coords) -> None:
    if not isinstance(at, Coords):
        raise TypeError(
            f"{name} must be Coords(index, pos), as `prepare` returns them for a scheme such as "
            f"get_scheme('rope')(); got {type(at).__name__}"
        )
    for part in ("index", "pos"):
        if not hasattr(getattr(at, part), "dtype"):
            raise TypeError(f"{name}.{part} must be an array, got {getattr(at, part)!r}")
    index, pos = at.index.dtype, at.pos.dtype
    if not jnp.issubdtype(index, jnp.signedinteger) or index.itemsize < 4:
        raise TypeError(
            f"{name}.index must be int32, the order of the tokens and -1 on padding; got {index}"
        )
    if not holds_positions(pos):
        raise TypeError(
            f"{name}.pos must be int32, or float32 for tokens placed at real numbers; got {pos}"
        )
    if at.segment is not None and not jnp.issubdtype(at.segment.dtype, jnp.signedinteger):
        raise TypeError(
            f"{name}.segment must be int32, the packed document of each token; got "
            f"{at.segment.dtype}"
        )


def _check(q, k, v, q_at: Coords, k_at: Coords, sinks) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 3:
            raise ValueError(f"{name} must be *B, tokens, heads, width; got shape {x.shape}")
        if x.shape[:-3] != q.shape[:-3]:
            raise ValueError(
                f"{name} has batch axes {x.shape[:-3]} and q has {q.shape[:-3]}; they must agree"
            )
        if x.dtype != q.dtype:
            raise TypeError(f"{name} is {x.dtype} and q is {q.dtype}; cast them to one dtype")
    if not jnp.issubdtype(q.dtype, jnp.floating):
        raise TypeError(f"q, k and v must be floats, such as bfloat16; got {q.dtype}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k is {k.shape[-1]} wide and q is {q.shape[-1]}; they must agree")
    if k.shape[-2] < 1 or q.shape[-2] % k.shape[-2]:
        raise ValueError(
            f"{q.shape[-2]} query heads cannot share {k.shape[-2]} key/value heads evenly"
        )
    if v.shape[-3:-1] != k.shape[-3:-1]:
        raise ValueError(
            f"v has {v.shape[-3:-1]} (tokens, heads) and k has {k.shape[-3:-1]}; they must agree"
        )
    for name, at, x in (("q_at", q_at, q), ("k_at", k_at, k)):
        for part in ("index", "pos", "segment"):
            given = getattr(at, part)
            if given is None:
                continue
            shape = given.shape
            fits = len(shape) == x.ndim - 2 and shape[-1] == x.shape[-3]
            fits &= all(a in (1, b) for a, b in zip(shape[:-1], x.shape, strict=False))
            if not fits:
                raise ValueError(
                    f"{name}.{part} has shape {shape}, but {name[0]} has tokens {x.shape[:-2]}"
                )
    if (q_at.segment is None) != (k_at.segment is None):
        there, missing = ("k_at", "q_at") if q_at.segment is None else ("q_at", "k_at")
        raise TypeError(
            f"{there} has segments and {missing} has none: give both, or tokens of different "
            "documents would see each other"
        )
    if sinks is not None and jnp.shape(sinks) != q.shape[-2:-1]:
        raise ValueError(
            f"sinks must have one logit per query head, {q.shape[-2:-1]}; got {jnp.shape(sinks)}"
        )


__all__ = ["Implementation", "attend"]
