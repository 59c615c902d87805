"""One attention layer around a scheme, from inputs to weights, and its float64 counterpart."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.attention import attend, prepare
from flax_pos.scheme import merge
from flax_pos.types import Coords, Dims

DIMS = Dims(width=12, heads=4, kv_heads=2, head_dim=8, layers=2, max_len=64)
T = 13
TOLERANCE = 3e-6


class Case(NamedTuple):
    """Inputs of a layer, one row of tokens."""

    params: dict
    x: jax.Array
    q: jax.Array
    k: jax.Array
    index: jax.Array
    pos: jax.Array

    def numpy(self):
        """Parameters, x, q and k of the one row in float64."""
        wide = lambda a: np.asarray(a, np.float64)
        return jax.tree.map(wide, self.params), *(wide(a)[0] for a in (self.x, self.q, self.k))


def case(scheme, *, t=T, seed=0, pos=None, noise=0.3, dims=DIMS):
    """Random inputs, and parameters moved off their initial values, which may be zeros."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    keys = jax.random.split(jax.random.key(seed))
    params = merge(scheme.init_model(keys[0], dims), scheme.init_layer(keys[1], dims))
    params = jax.tree.map(lambda a: a + noise * normal(*a.shape), params)
    index = jnp.arange(t, dtype=jnp.int32)[None]
    return Case(
        params,
        normal(1, t, dims.width),
        normal(1, t, dims.heads, dims.head_dim),
        normal(1, t, dims.kv_heads, dims.head_dim),
        index,
        index if pos is None else jnp.asarray(pos)[None],
    )


def weights(scheme, c: Case, *, dims=DIMS, length=None, **options):
    """float64 attention weights `N T S` of the one row: values are unit vectors."""
    dims = dims._replace(length=c.x.shape[-2] if length is None else length)
    return np.asarray(_weights(scheme, c, dims, tuple(options.items())), np.float64)


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _weights(scheme, c: Case, dims, options):
    features = scheme.features(c.pos, dims)
    q, k, at = prepare(scheme, c.params, c.x, c.q, c.k, Coords(c.index, c.pos), features)
    t = c.x.shape[-2]
    v = jnp.broadcast_to(jnp.eye(t)[:, None], (1, t, k.shape[-2], t))
    options = {"implementation": "dense", **dict(options)}
    out = attend(scheme, c.params, q, k, v, at, at, **options)
    return jnp.moveaxis(out[0], 1, 0)


def kv_head(n: int, dims=DIMS) -> int:
    """The key/value head that query head n reads."""
    return n // (dims.heads // dims.kv_heads)


def softmax_rows(score, *, t=T, heads=DIMS.heads, seen=lambda i, j: j <= i):
    """Weights `N T T` from `score(n, i, j)`, by loops."""
    out = np.zeros((heads, t, t))
    for n in range(heads):
        for i in range(t):
            keys = [j for j in range(t) if seen(i, j)]
            row = np.array([score(n, i, j) for j in keys])
            e = np.exp(row - row.max())
            out[n, i, keys] = e / e.sum()
    return out


def dots(q, k):
    """`score(n, i, j)` of plain attention."""
    return lambda n, i, j: q[i, n] @ k[j, kv_head(n)] / np.sqrt(q.shape[-1])


def turned(v, position, inv_freq):
    """`v` turned pair by pair (layout `half`) by `position * inv_freq`."""
    a, b = np.split(np.asarray(v, np.float64), 2)
    cos, sin = np.cos(position * inv_freq), np.sin(position * inv_freq)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin])


def ladder64(theta=10000.0, width=DIMS.head_dim):
    """RoPE's frequencies."""
    return theta ** (-2 * np.arange(width // 2) / width)


def rope_dots(q, k, distance, theta=10000.0):
    """`score(n, i, j)` of RoPE at `distance(i, j)`."""
    w = ladder64(theta, q.shape[-1])
    return lambda n, i, j: (
        turned(q[i, n], distance(i, j), w) @ k[j, kv_head(n)] / np.sqrt(q.shape[-1])
    )


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def softplus(z):
    return np.log1p(np.exp(z))


def close(actual, expected, tolerance=TOLERANCE):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)
