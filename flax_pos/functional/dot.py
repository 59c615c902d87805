"""The two products of attention, for grouped-query heads and without repeating keys, and the
product of tokens with a matrix.

Query head n belongs to key/value head n // (N / K).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_pos.functional.embedding import soft_cap


def dot_logits(
    q: Float[Array, "*B T N H"], k: Float[Array, "*B S K H"], *, scale, softcap=None
) -> Float[Array, "*B N T S"]:
    """Scaled q.k, float32 sums whatever the inputs are.

    Args:
      q: queries. k: keys.
      scale: multiplies the products (a number, or a traced scalar).
      softcap: c in c * tanh(logits / c); None for none.

    Raises:
      ValueError: `softcap` is not positive.
    """
    logits = jnp.einsum(
        "...kgth,...skh->...kgts", _group(q, k.shape[-2]), k, preferred_element_type=jnp.float32
    )
    logits = _ungroup(logits) * jnp.asarray(scale, jnp.float32)
    return logits if softcap is None else soft_cap(logits, softcap)


def mix_values(
    weights: Float[Array, "*B N T S"], v: Float[Array, "*B S K Hv"]
) -> Float[Array, "*B N T Hv"]:
    """Sums of values, in float32; heads come before queries, as in the weights."""
    kv_heads = v.shape[-2]
    shape = weights.shape
    weights = weights.reshape(*shape[:-3], kv_heads, shape[-3] // kv_heads, *shape[-2:])
    out = jnp.einsum(
        "...kgts,...skh->...kgth", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
    )
    return _ungroup(out)


def token_dot_general(x, kernel, dimension_numbers, **options):
    """`jax.lax.dot_general` of `*B T D` with `D F`, as one plain matrix product on a CPU.

    XLA's CPU backend takes twice as long for the gradient of the kernel where it sums over two
    axes. Elsewhere the axes stay apart: merging them would gather a sequence that is sharded.
    """
    (contracted, others), batch = dimension_numbers
    plain = tuple(contracted) == (x.ndim - 1,) and not any(map(len, batch))
    sharded = options.get("out_sharding") is not None
    if not plain or sharded or x.ndim < 3 or jax.default_backend() != "cpu":
        return jax.lax.dot_general(x, kernel, dimension_numbers, **options)
    rows = x.reshape(-1, x.shape[-1])
    out = jax.lax.dot_general(rows, kernel, (((1,), tuple(others)), batch), **options)
    return out.reshape(*x.shape[:-1], *out.shape[1:])


def _group(x: jax.Array, kv_heads: int) -> jax.Array:
    """`*B T N H` to `*B K G T H`: the order in which the product needs no T x S transpose."""
    *batch, t, heads, width = x.shape
    return jnp.moveaxis(x.reshape(*batch, t, kv_heads, heads // kv_heads, width), -4, -2)


def _ungroup(x: jax.Array) -> jax.Array:
    *batch, kv_heads, group, rows, columns = x.shape
    return x.reshape(*batch, kv_heads * group, rows, columns)


__all__ = ["dot_logits", "mix_values", "token_dot_general"]
