"""A causal language model that takes any position scheme."""

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from flax_pos.attention.cache import KVCache, init_cache
from flax_pos.attention.place import Placement, check_per_token, rank_in_part
from flax_pos.functional.embedding import head_table
from flax_pos.functional.loss import linear_cross_entropy
from flax_pos.nnx.block import Block
from flax_pos.nnx.config import ModelConfig
from flax_pos.nnx.embed import Embed
from flax_pos.nnx.layers import Norm, linear
from flax_pos.nnx.position import PositionEncoding
from flax_pos.scheme import Scheme, plan_layers

Cache = tuple[KVCache, ...]
"""With `scan_layers`, one stacked cache for each layer of the scheme's period; otherwise one for
each layer."""


class CausalLM(nnx.Module):
    """Transformer over tokens, with one position scheme for all layers or one by layer.

    It is a pytree: `jax.jit(lambda model, ids: model(ids))`, `nnx.jit`, `jax.grad` and `jax.vmap`
    take it as it is. Call it compiled: without, every call traces and compiles its layers anew.

    Args:
      config: sizes and options.
      scheme: where tokens are and how attention sees it; may differ by layer.

    >>> from flax_pos import get_scheme
    >>> config = ModelConfig(vocab_size=11, width=16, layers=2, heads=2)
    >>> model = CausalLM(config, get_scheme("none")(), rngs=nnx.Rngs(0))
    >>> model(jnp.array([[1, 2, 3]])).shape
    (1, 3, 11)
    """

    def __init__(self, config: ModelConfig, scheme: Scheme, *, rngs: nnx.Rngs):
        self.config = config
        self.origin: Hashable = None
        """What a model that was loaded remembers of its file, for writing the same format back."""
        width, narrow = config.width, config.embed_width
        self.embed = Embed(
            config.vocab_size,
            narrow or width,
            rows=config.vocab_rows,
            tied=config.tied,
            head_bias=config.head_bias,
            scale=config.embed_scale,
            round_scale=config.round_embed_scale,
            stddev=config.init_std,
            dtype=config.compute_dtype,
            param_dtype=jnp.dtype(config.param_dtype),
            rngs=rngs,
        )
        project = lambda a, b: linear(config, a, b, ("embed", None), rngs=rngs)
        self.embed_in = nnx.data(None if narrow is None else project(narrow, width))
        self.embed_norm = nnx.data(Norm(config, width) if config.embed_norm else None)
        self.position = PositionEncoding(scheme, config.dims, rngs=rngs)
        make = lambda key: Block(config, rngs=nnx.Rngs(key))
        stacked = jax.vmap(make)(jax.random.split(rngs.params(), config.layers))
        stacked = nnx.spmd.add_axis(stacked, 0, _LAYERS)
        self.blocks: Any = nnx.data(stacked if config.scan_layers else _unstack(stacked))
        self.norm = nnx.data(Norm(config, width) if config.final_norm else None)
        self.embed_out = nnx.data(None if narrow is None else project(width, narrow))

    @property
    def scheme(self) -> Scheme:
        """The scheme that the model was built with."""
        return self.position.scheme

    def __call__(
        self,
        ids: Int[Array, "*B T"],
        *,
        positions: Int[Array, "*B T"] | None = None,
        mask: Bool[Array, "*B T"] | None = None,
        segments: Int[Array, "*B T"] | None = None,
        cache: Cache | None = None,
        key: jax.Array | None = None,
        scheme: Scheme | None = None,
        length: Any = None,
    ) -> Any:
        """Logits of the next token.

        Args:
          ids: token ids. What stands on padding does not matter.
          positions: where the tokens are, if that is not their order in the row.
          mask: False on padding, on the left, on the right or between; None: no padding.
          segments: packed documents: tokens of different numbers do not see each other and
            positions restart; 0 is padding.
          cache: from `init_cache` or an earlier call: these tokens continue its rows.
          key: training noise for positions; None means evaluation.
          scheme: another scheme for this call with the same parameters, such as one that extends
            the context or one whose settings are swept as traced numbers.
          length: total length of the sequence, for schemes that depend on it; None: largest
            position + 1.

        Returns:
          float32 `*B T V`; with a cache the pair of logits and cache.

        Raises:
          ValueError: shapes that do not fit; more tokens than the scheme has positions for; an
            override without its parameters; concrete ids out of range.
          TypeError: positions that are not integers of 32 bits, a mask that is not bool.
        """
        h, cache = self.hidden(
            ids,
            positions=positions,
            mask=mask,
            segments=segments,
            cache=cache,
            key=key,
            scheme=scheme,
            length=length,
        )
        logits = self.logits(h)
        return logits if cache is None else (logits, cache)

    def hidden(
        self,
        ids: Int[Array, "*B T"],
        *,
        mask: Bool[Array, "*B T"] | None = None,
        segments: Int[Array, "*B T"] | None = None,
        cache: Cache | None = None,
        scheme: Scheme | None = None,
        **where,
    ) -> tuple[Float[Array, "*B T D"], Cache | None]:
        """What the head reads (after the last norm), and the cache; arguments as for a call.

        With `cross_entropy` this is the way to losses that never build logits.
        """
        for name, given in (("mask", mask), ("segments", segments)):
            check_per_token(name, given, ids.shape)
            ids = ids if given is None else jnp.where(given.astype(bool), ids, 0)
        caches = cache
        if cache is not None and self.config.scan_layers:
            caches = [_row(stack, 0) for stack in cache]
        x = _through(self.embed(ids), self.embed_in, self.embed_norm)
        x, placement = self.position(
            x, scheme=scheme, mask=mask, segments=segments, caches=caches, ids=ids, **where
        )
        run = self._scan if self.config.scan_layers else self._unroll
        x, cache = run(x, placement, cache)
        return _through(x, self.norm, self.embed_out), cache

    def logits(self, h: Float[Array, "*B T D"]) -> Float[Array, "*B T V"]:
        """float32 logits of what `hidden` gives."""
        config = self.config
        return self.embed.attend(h, scale=config.logit_scale, softcap=config.logit_softcap)

    def cross_entropy(
        self, h: Float[Array, "*B T D"], labels: Int[Array, "*B T"], **options
    ) -> jax.Array:
        """Cross entropy of what `hidden` gives, without the logits of all tokens at once.

        Args:
          labels: the token to predict at each place, -100 where there is none.
          options: `mask`, `reduction`, `z_loss`, `chunk`, ... of
            `flax_pos.functional.loss.linear_cross_entropy`.

        Raises:
          ValueError: the head has a bias.
        """
        config = self.config
        if config.head_bias:
            raise ValueError("head_bias=True: this loss has no bias; use the logits")
        return linear_cross_entropy(
            h,
            head_table(self.embed.params()),
            labels,
            vocab_size=config.vocab_size,
            scale=config.logit_scale,
            softcap=config.logit_softcap,
            **options,
        )

    def init_cache(self, batch: int, size: int, *, scheme: Scheme | None = None) -> Cache:
        """An empty cache for `batch` rows of at most `size` tokens.

        Args:
          scheme: the one that the calls will override the model's own with.
        """
        plan, dims = plan_layers(scheme or self.scheme, self.config.layers), self.config.dims
        make = lambda part: init_cache(
            plan.parts[part],
            dims,
            batch,
            size,
            dtype=self.config.compute_dtype,
            value_dim=self.config.value_dim,
        )
        if not self.config.scan_layers:
            return tuple(make(part) for part in plan.part_of)
        steps = self.config.layers // plan.period
        stack = lambda a: jnp.broadcast_to(a, (steps, *a.shape))
        return tuple(jax.tree.map(stack, make(part)) for part in plan.part_of[: plan.period])

    # Layers ------------------------------------------------------------------------------------

    def _scan(self, x, placement: Placement, cache: Cache | None):
        """`period` layers a step, so that each step runs the same program."""
        plan = placement.plan
        period, steps = plan.period, self.config.layers // plan.period
        fold = lambda a: a.reshape(steps, a.shape[0] // steps, *a.shape[1:])
        own = {part: params["layers"] for part, params in placement.params.items()}
        xs = (jax.tree.map(fold, self.blocks), jax.tree.map(fold, own), cache)

        def step(x, slices):
            blocks, own, caches = slices
            out = []
            for i in range(period):
                part, row = plan.part_of[i], rank_in_part(plan, i)
                here = placement.part(part, _row(own[str(part)], row))
                x, new = _row(blocks, i)(x, here, None if caches is None else caches[i])
                out.append(new)
            return x, None if caches is None else tuple(out)

        if self.config.remat:
            step = jax.checkpoint(step, prevent_cse=False)
        return jax.lax.scan(step, x, xs)

    def _unroll(self, x, placement: Placement, cache: Cache | None):
        out = []
        for number, block in enumerate(self.blocks):
            here = placement.layer(number)
            run = lambda block, x, cache, here=here: block(x, here, cache)
            run = jax.checkpoint(run) if self.config.remat else run
            x, new = run(block, x, None if cache is None else cache[number])
            out.append(new)
        return x, None if cache is None else tuple(out)


def restack(model: CausalLM, *, scan_layers: bool) -> CausalLM:
    """The same model with its layers stacked under `lax.scan`, or apart; weights are copied."""
    if scan_layers == model.config.scan_layers:
        return model
    graph, state = nnx.split(model)
    new = nnx.merge(graph, state)
    new.config = model.config.replace(scan_layers=scan_layers)
    change = _stack if scan_layers else _unstack
    new.blocks = nnx.data(change(model.blocks))
    return new


_LAYERS = {nnx.PARTITION_NAME: "layers"}


def _stack(blocks: list[Block]) -> Block:
    stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *blocks)
    return nnx.spmd.add_axis(stacked, 0, _LAYERS)


def _unstack(stacked: Block) -> list[Block]:
    layers = jax.tree.leaves(stacked)[0].shape[0]
    rows = [_row(stacked, i) for i in range(layers)]
    return [nnx.spmd.remove_axis(row, 0, _LAYERS) for row in rows]


def _through(x, *layers):
    for layer in layers:
        x = x if layer is None else layer(x)
    return x


def _row(tree, row: int):
    return jax.tree.map(lambda a: a[row], tree)


__all__ = ["Cache", "CausalLM", "restack"]
