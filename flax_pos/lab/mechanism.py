"""What a trained model does with positions: where it looks, how far it reads, which bands it uses.

Everything takes a `CausalLM` as it is, with any scheme.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_pos.attention.place import LayerPositions
from flax_pos.functional.dot import mix_values
from flax_pos.functional.rope import RopeSpec
from flax_pos.nnx import CausalLM
from flax_pos.nnx.causal_lm import restack
from flax_pos.scheme import Wrapper


class LayerView(NamedTuple):
    """What the attention of one layer did, all float32."""

    weights: jax.Array
    """`*B N T S`: how much of each value each query took; zero where it must not look."""
    q: jax.Array
    """`*B T N H`, before rotation."""
    k: jax.Array
    """`*B T K H`, before rotation."""


class _PlainSums(Wrapper):
    """A scheme whose weights sum up the values as they are."""

    def mix(self, params, weights, v, q_at, k_at):
        return mix_values(weights, v)


class _Watch:
    """Stands in for a layer's positions and notes what attention is given and does."""

    def __init__(self, here: LayerPositions, views: list[LayerView]):
        self._here = here
        self._views = views

    def __getattr__(self, name):
        return getattr(self._here, name)

    def attend(self, x, q, k, v, cache=None, **options):
        q32, k32 = q.astype(jnp.float32), k.astype(jnp.float32)
        # Values that are unit vectors, one for each key, come out as the weights themselves.
        keys, shape = k.shape[-3], k.shape[:-1]
        unit = jnp.broadcast_to(jnp.eye(keys, dtype=jnp.float32)[:, None], (*shape, keys))
        dense: Any = options | {"implementation": "dense"}
        here = self._here._replace(scheme=_PlainSums(inner=self._here.scheme))
        weights, _ = here.attend(x, q32, k32, unit, **dense)
        self._views.append(LayerView(jnp.swapaxes(weights, -2, -3), q32, k32))
        return self._here.attend(x, q, k, v, cache, **options)


class _WatchedBlock(nnx.Module):
    def __init__(self, block, views: list[LayerView]):
        self.block = block
        self.watch = lambda here: _Watch(here, views)

    def __call__(self, x, here, cache=None):
        return self.block(x, self.watch(here), cache)


class _MovedEmbed(nnx.Module):
    """An embedding with something added to each token."""

    def __init__(self, embed, offset):
        self.embed = embed
        self.offset = nnx.data(offset)

    def __call__(self, ids):
        x = self.embed(ids)
        return x + self.offset.astype(x.dtype)

    def attend(self, *args, **options):
        return self.embed.attend(*args, **options)


def _apart(model: CausalLM) -> CausalLM:
    """A copy with its layers one by one, free to be taken apart."""
    return nnx.merge(*nnx.split(restack(model, scan_layers=False)))


def watch(model: CausalLM, ids: jax.Array, **options) -> tuple[jax.Array, tuple[LayerView, ...]]:
    """The logits of a forward pass and what each layer's attention did.

    Args:
      model: a model; a copy of it runs layer by layer.
      ids: `*B T`.
      options: `positions`, `mask`, `segments`, `length` and `scheme`, as for the model.
    """
    views: list[LayerView] = []
    model = _apart(model)
    model.blocks = nnx.data([_WatchedBlock(block, views) for block in model.blocks])
    return model(ids, **options), tuple(views)


# Where it looks --------------------------------------------------------------------------------


def attention_by_distance(weights: jax.Array, index: jax.Array | None = None) -> jax.Array:
    """Mean weight at each distance, over the queries that have a token at that distance.

    Args:
      weights: `*B N T S` with as many keys as queries, from `watch`.
      index: int32 `*B T`, order of the tokens, -1 on padding; None: no padding.

    Returns:
      float32 `N T`: by head, distances 0 .. T - 1; NaN where no query has one.
    """
    *batch, heads, length, keys = weights.shape
    if keys != length:
        raise ValueError(f"weights have {length} queries and {keys} keys; give a whole sequence")
    if index is None:
        index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (*batch, length))
    distance = index[..., :, None] - index[..., None, :]
    real = (distance >= 0) & (index[..., None, :] >= 0)
    at = jnp.where(real, distance, length).reshape(-1)  # one bin past the end for the rest
    by_head = jnp.moveaxis(weights, -3, 0).reshape(heads, -1)
    total = jax.vmap(lambda w: jnp.zeros(length + 1, jnp.float32).at[at].add(w))(by_head)
    count = jnp.zeros(length + 1, jnp.float32).at[at].add(1.0)
    return (total / jnp.where(count > 0, count, jnp.nan)[None])[:, :-1]


def attention_entropy(weights: jax.Array) -> jax.Array:
    """Entropy in nats of each query's weights, `*B N T`; log n for n keys taken alike."""
    return -jnp.where(weights > 0, weights * jnp.log(jnp.where(weights > 0, weights, 1.0)), 0).sum(
        -1
    )


def sink_share(weights: jax.Array) -> jax.Array:
    """Mean weight that queries after the first give to the first token, `N`."""
    share = weights[..., 1:, 0]
    return jnp.moveaxis(share, -2, 0).reshape(share.shape[-2], -1).mean(-1)


# How far it reads ------------------------------------------------------------------------------


def receptive_field(model: CausalLM, ids: jax.Array, label: jax.Array, **options) -> jax.Array:
    """Share of the gradient that comes from the last 1, 2, .. T tokens, averaged over the batch.

    The gradient is that of the log likelihood of `label` after the last token, with respect to
    the token embeddings; its norm is taken by token (as the cumulative normalised gradient of
    Chi et al. 2023, arXiv 2212.10356).

    Args:
      model: a model.
      ids: `B T`, without padding.
      label: int32 `B`.
      options: as for `watch`.

    Returns:
      float32 `T`, rising to 1.
    """

    def likelihood(offset):
        moved = _apart(model)
        moved.embed = cast(Any, _MovedEmbed(moved.embed, offset))
        chosen = jax.nn.log_softmax(moved(ids, **options)[:, -1], -1)
        return jnp.take_along_axis(chosen, label[:, None], -1).sum()

    none = jnp.zeros((*ids.shape, model.config.width), jnp.float32)
    gradient = jax.grad(likelihood)(none)
    norms = jnp.linalg.norm(gradient, axis=-1)
    cumulative = jnp.cumsum(norms[:, ::-1], axis=-1)
    return (cumulative / cumulative[:, -1:]).mean(0)


def reach_of(cumulative: np.ndarray | jax.Array, share: float = 0.99) -> int:
    """How many of the last tokens hold `share` of the gradient, out of `receptive_field`."""
    if not 0 < share <= 1:
        raise ValueError(f"share={share} must lie above 0 and be at most 1")
    return int(np.searchsorted(np.asarray(cumulative), share - 1e-6) + 1)


# Shifts ----------------------------------------------------------------------------------------


class ShiftChange(NamedTuple):
    """What changes when all positions shift by the same amount."""

    loss: jax.Array
    """Scalar: mean loss after minus before, in nats."""
    largest: jax.Array
    """Scalar: largest absolute change of any log probability."""


def shift_change(
    model: CausalLM, ids: jax.Array, labels: jax.Array, shift: int, **options
) -> ShiftChange:
    """The change of loss and predictions when tokens 0 .. T - 1 are said to be at
    shift .. shift + T - 1. Zero, up to rounding, for relative schemes.

    Args:
      model: a model.
      ids, labels: int32 `B T`, without padding.
      shift: places.
      options: `scheme`, as for the model.
    """
    at = jnp.broadcast_to(jnp.arange(ids.shape[-1], dtype=jnp.int32), ids.shape)
    length = ids.shape[-1]
    logs = [
        jax.nn.log_softmax(model(ids, positions=at + s, length=length, **options), -1)
        for s in (0, shift)
    ]
    before, after = (jnp.take_along_axis(log, labels[..., None], -1).mean() for log in logs)
    return ShiftChange(before - after, jnp.abs(logs[1] - logs[0]).max())


# Bands of RoPE ---------------------------------------------------------------------------------


def band_use(q: jax.Array, k: jax.Array, spec: RopeSpec) -> jax.Array:
    """How much of the logits each rotated pair of channels can make: mean |q_m| times mean |k_m|
    over all tokens (Barbero et al. 2024, arXiv 2410.06205).

    Args:
      q: `*B T N H`, k: `*B T K H`, before or after rotation, which changes no norm.
      spec: says which channels are pairs.

    Returns:
      float32 `N R/2`, highest frequency first.
    """
    sides = [_pair_norms(side, spec) for side in (q, k)]
    q_norm, k_norm = (n.reshape(-1, *n.shape[-2:]).mean(0) for n in sides)
    return q_norm * jnp.repeat(k_norm, q_norm.shape[0] // k_norm.shape[0], axis=0)


def _pair_norms(x, spec: RopeSpec):
    rotary = spec.rotary_dim_of(x.shape[-1])
    x = x[..., :rotary] if spec.rotary_slice == "leading" else x[..., -rotary:]
    if spec.layout == "half":
        first, second = jnp.split(x, 2, axis=-1)
    else:
        first, second = x[..., ::2], x[..., 1::2]
    return jnp.hypot(first, second)


def unseen_phases(
    trained: np.ndarray | jax.Array,
    trained_length: int,
    used: np.ndarray | jax.Array,
    length: int,
) -> np.ndarray:
    """For each pair of channels the share of distances 0 .. length - 1 at which it stands at an
    angle that training never showed.

    In training a pair turned from 0 to `(trained_length - 1) * frequency`: past a full turn it
    has been everywhere (up to the gaps between neighbouring tokens).

    Args:
      trained: frequencies in training, radians per token, `R/2`.
      trained_length: tokens.
      used: frequencies in use, such as those of a context extension, `R/2`.
      length: tokens.
    """
    trained, used = (np.abs(np.asarray(f, np.float64)) for f in (trained, used))
    if trained.shape != used.shape:
        raise ValueError(f"{trained.shape} frequencies in training, {used.shape} in use")
    seen_to = (trained_length - 1) * trained
    angle = np.arange(length)[:, None] * used
    around = np.mod(angle, 2 * np.pi)
    unseen = (around > seen_to * (1 + 1e-9)) & (seen_to < 2 * np.pi)
    return unseen.mean(axis=0)


__all__ = [
    "LayerView",
    "ShiftChange",
    "attention_by_distance",
    "attention_entropy",
    "band_use",
    "reach_of",
    "receptive_field",
    "shift_change",
    "sink_share",
    "unseen_phases",
    "watch",
]
