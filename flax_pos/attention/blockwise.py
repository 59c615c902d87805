"""Blockwise attention: online softmax over key blocks, memory linear in T, for any scheme.

Forward keeps the output and the logarithm of each row's normaliser. Backward computes the scores
of each block again and pulls their gradient through the scheme's own hooks with `jax.vjp`. Key
blocks are visited right to left, so that what a scheme sums over later keys is a plain carry;
backward finds the carries in one more sweep and comes back left to right with their gradients.
Blocks that no query can see are not computed.

First-order gradients in reverse mode are what this is made for. Reverse over reverse works but
keeps every step of the loops; `jax.jvp` does not work: the dense form has both.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_pos.attention.blocks import (
    add_to,
    blank_rows,
    hoist,
    merge,
    nth,
    pad,
    pad_coords,
    per_head,
    split_floats,
    take,
    zeros_for,
)
from flax_pos.attention.dense import LOWEST, block_scores, block_sums
from flax_pos.attention.mask import Reach
from flax_pos.functional.shapes import shapes_inside
from flax_pos.scheme import Scheme
from flax_pos.types import Coords, Params


class Operands(NamedTuple):
    """All arrays that the output depends on."""

    env: Any
    """What scores and sums of values close over: parameters, and traced settings of the scheme."""
    queries: tuple[jax.Array, Coords]
    keys: tuple[jax.Array, Coords]
    v: Any
    first: Any
    """For each block of queries, the carry that its rightmost key block is given."""
    sinks: Any


def attend_blockwise(
    scheme: Scheme,
    params: Params,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_at: Coords,
    k_at: Coords,
    *,
    reach: Reach,
    scale,
    softcap,
    sinks,
    block_q: int | None,
    block_k: int | None,
) -> jax.Array:
    """`attend` by blocks of `block_q` queries and `block_k` keys (None: chosen here); arguments as
    resolved by it."""

    def score(queries, keys, mask, carry):
        (q, q_at), (k, k_at) = queries, keys
        return block_scores(
            scheme, params, q, k, q_at, k_at, mask, carry, scale=scale, softcap=softcap
        )

    axis, t = q.ndim - 3, q.shape[-3]
    if block_q is None or block_k is None:
        default_q, default_k = _block_sizes(score, reach, (q, q_at), (k, k_at), axis)
        block_q, block_k = block_q or default_q, block_k or default_k
    block_q, block_k = min(block_q, t), min(block_k, k.shape[-3])
    queries = pad(q, block_q, axis), pad_coords(q_at, block_q, axis)
    keys = pad(k, block_k, axis), pad_coords(k_at, block_k, axis)
    v = pad(v, block_k, axis)

    def mix(queries, keys, weights, v):
        return block_sums(scheme, params, weights, v, queries[1], keys[1])

    def first_carry(i):
        # A block that no query sees leaves the carry as it was, here as it is at first.
        rows, columns = take(queries, i, block_q, axis), take(keys, 0, block_k, axis)
        mask = jnp.zeros_like(reach.allowed(rows[1], columns[1]))
        mask = jax.lax.optimization_barrier(mask)  # XLA would work the carry out as it compiles
        return score(rows, columns, mask, None)[1]

    def example(first):
        rows = take(queries, 0, block_q, axis)
        columns, values = take((keys, v), 0, block_k, axis)
        mask, blank = reach.allowed(rows[1], columns[1]), blank_rows(rows[0])
        weights = jnp.broadcast_to(blank[..., None], (*blank.shape, block_k))
        return (rows, columns, mask, nth(first, 0)), (rows, columns, weights, values)

    first_carry = jax.checkpoint(first_carry, prevent_cse=False)
    first = jax.lax.map(first_carry, jnp.arange(queries[0].shape[axis] // block_q))
    of_scores, of_mix = jax.eval_shape(example, first)
    scores, scores_env = hoist(score, *of_scores)
    sums, sums_env = hoist(mix, *of_mix)
    engine = _Engine(scores, sums, reach, scheme.normalized, block_q, block_k, axis)
    env = scores_env, sums_env
    out = _differentiable(engine, Operands(env, queries, keys, v, first, sinks))
    return jax.lax.slice_in_dim(out, 0, t, axis=axis)


def _block_sizes(score: Callable, reach: Reach, queries, keys, axis: int) -> tuple[int, int]:
    """Block sizes (queries, keys) when none are given: large enough to keep the matrix products
    busy, and smaller by as much as a scheme's hooks hold at once beside the scores, such as the
    hidden layer of a network for each pair of tokens."""
    block_q, block_k = (512, 256) if jax.default_backend() == "cpu" else (512, 512)
    pair = min(block_q, queries[0].shape[axis]), min(block_k, keys[0].shape[axis])

    def one_block(queries, keys):
        rows, columns = take(queries, 0, pair[0], axis), take(keys, 0, pair[1], axis)
        return score(rows, columns, reach.allowed(rows[1], columns[1]), None)[0]

    def size(shape):
        """Numbers held for all pairs of tokens; an exported program leaves its batch open."""
        of_pairs = not Counter(pair) - Counter(shape)
        return math.prod(n for n in shape if isinstance(n, int)) if of_pairs else 0

    traced, scores = jax.make_jaxpr(one_block, return_shape=True)(queries, keys)
    load = max(map(size, shapes_inside(traced.jaxpr))) / size(scores.shape)
    while load >= 2 and block_q > 64:
        block_q, block_k = (block_q // 2, block_k) if block_q > block_k else (block_q, block_k // 2)
        load /= 2
    return block_q, block_k


def _differentiable(engine: "_Engine", operands: Operands) -> jax.Array:
    """`engine.forward` with `engine.backward` as its gradient.

    Every array is an argument of the differentiated function, none a closure: an outer `grad` or
    `vmap` may have traced any of them.
    """
    floats, others, join = split_floats(operands)

    @jax.custom_vjp
    def run(floats, others):
        return engine.forward(join(floats, others))[0]

    def forward(floats, others):
        out, log_total = engine.forward(join(floats, others))
        return out, (floats, others, out, log_total)

    def backward(saved, d_out):
        floats, others, out, log_total = saved
        grads = jax.tree.leaves(engine.backward(join(floats, others), out, log_total, d_out))
        return [g.astype(x.dtype) for g, x in zip(grads, floats, strict=True)], None

    run.defvjp(forward, backward)
    return run(floats, others)


class _Engine(NamedTuple):
    """The loops, as pure functions of `Operands`; every field is static."""

    scores_of: Callable
    mix_of: Callable
    reach: Reach
    normalized: bool
    block_q: int
    block_k: int
    axis: int

    def scores(self, env, *args):
        return self.scores_of(env[0], *args)

    def mix(self, env, *args):
        return self.mix_of(env[1], *args)

    def forward(self, x: Operands) -> tuple[jax.Array, jax.Array]:
        """Output `*B T N Hv`, and float32 `*B N T`: the logarithm of each row's normaliser."""
        visible = self._visible(x)

        def rows(i):
            queries, first = self._queries(x, i), nth(x.first, i)
            blank = blank_rows(queries[0])
            top = jnp.full_like(blank, LOWEST if self.normalized else 0.0)
            out = jnp.broadcast_to(blank[..., None], (*blank.shape, x.v.shape[-1]))

            def visit(state, j):
                out, top, total, carry = state
                keys, v = self._keys(x, j)
                mask = self.reach.allowed(queries[1], keys[1])
                scores, carry = self.scores(x.env, queries, keys, mask, carry)
                scores = jnp.where(mask, scores, LOWEST)
                new_top = jnp.maximum(top, scores.max(-1)) if self.normalized else top
                weights = jnp.where(mask, jnp.exp(scores - new_top[..., None]), 0.0)
                shrink = jnp.exp(top - new_top)
                out = out * shrink[..., None] + self.mix(x.env, queries, keys, weights, v)
                return out, new_top, total * shrink + weights.sum(-1), carry

            def step(state, j):
                return jax.lax.cond(visible[i, j], visit, lambda s, j: s, state, j), None

            state = (out, top, jnp.zeros_like(top), first)
            blocks = jnp.arange(visible.shape[1])
            (out, top, total, _), _ = jax.lax.scan(step, state, blocks, reverse=True)
            if not self.normalized:
                return jnp.swapaxes(out, -2, -3).astype(x.v.dtype), jnp.zeros_like(top)
            if x.sinks is not None:
                sinks = per_head(x.sinks, top)
                new_top = jnp.maximum(top, sinks)
                shrink = jnp.exp(top - new_top)
                out, top = out * shrink[..., None], new_top
                total = total * shrink + jnp.exp(sinks - top)
            total = jnp.where(total > 0, total, 1.0)  # rows that see nothing: zeros
            out = jnp.swapaxes(out / total[..., None], -2, -3)
            return out.astype(x.v.dtype), top + jnp.log(total)

        out, log_total = jax.lax.map(rows, jnp.arange(visible.shape[0]))
        return merge(out, self.axis), merge(log_total, self.axis + 1)

    def backward(self, x: Operands, out, log_total, d_out) -> Operands:
        """The gradient in float32, as `Operands` with None in place of integer arrays."""
        visible = self._visible(x)
        # What softmax subtracts from each gradient of a row: sum over keys of weight * gradient.
        centre = jnp.zeros_like(log_total)
        if self.normalized:
            products = out.astype(jnp.float32) * d_out.astype(jnp.float32)
            centre = jnp.swapaxes(products.sum(-1), -1, -2)

        def rows(sums, i):
            queries = self._queries(x, i)
            d_rows = jnp.swapaxes(take(d_out, i, self.block_q, self.axis), -2, -3)
            d_rows = d_rows.astype(jnp.float32)
            row_log_total, row_centre = (
                take(a, i, self.block_q, self.axis + 1)[..., None] for a in (log_total, centre)
            )
            carries = self._carries(x, queries, nth(x.first, i), visible[i])

            def visit(state, j, carry):
                keys, v = self._keys(x, j)
                mask = self.reach.allowed(queries[1], keys[1])
                floats, others, join = split_floats((x.env, queries, keys, carry))

                def scores_of(floats):
                    env, queries, keys, carry = join(floats, others)
                    scores, carry = self.scores(env, queries, keys, mask, carry)
                    return scores, split_floats(carry)[0]

                def mix_of(floats, weights, v):
                    env, queries, keys, _ = join(floats, others)
                    return self.mix(env, queries, keys, weights, v)

                (scores, _), pull = jax.vjp(scores_of, floats)
                scores = jnp.where(mask, scores, LOWEST)  # before exp: a masked one may overflow
                weights = jnp.where(mask, jnp.exp(scores - row_log_total), 0.0)
                _, pull_mix = jax.vjp(mix_of, floats, weights, v)
                of_mix, d_weights, d_v = pull_mix(d_rows)
                *sums, d_carry = state
                # Computed once: fused into each sum over it, XLA would compute it for each.
                d_scores = jax.lax.optimization_barrier(weights * (d_weights - row_centre))
                (grads,) = pull((d_scores, split_floats(d_carry)[0]))
                grads = jax.tree.map(jnp.add, grads, of_mix)
                d_env, d_queries, d_keys, d_carry = join(grads, [None] * len(others))
                sums = jax.tree.map(add_to, tuple(sums), (d_env, d_queries, d_keys, d_v))
                return *sums, d_carry

            def step(state, scanned):
                j, carry = scanned
                d_env, d_queries, d_keys, d_v, d_carry = state
                columns = take((d_keys, d_v), j, self.block_k, self.axis)
                d_env, d_queries, *columns, d_carry = jax.lax.cond(
                    visible[i, j],
                    visit,
                    lambda state, j, carry: state,
                    (d_env, d_queries, *columns, d_carry),
                    j,
                    carry,
                )
                d_keys, d_v = self._put((d_keys, d_v), tuple(columns), j)
                return (d_env, d_queries, d_keys, d_v, d_carry), None

            d_env, d_keys, d_v = sums
            state = (d_env, zeros_for(queries), d_keys, d_v, zeros_for(nth(x.first, i)))
            blocks = jnp.arange(visible.shape[1])
            state, _ = jax.lax.scan(step, state, (blocks, carries))
            d_env, d_queries, d_keys, d_v, d_first = state
            return (d_env, d_keys, d_v), (d_queries, d_first)

        sums, (d_queries, d_first) = jax.lax.scan(
            rows, zeros_for((x.env, x.keys, x.v)), jnp.arange(visible.shape[0])
        )
        d_env, d_keys, d_v = sums
        d_queries = jax.tree.map(lambda a: merge(a, self.axis), d_queries)
        d_sinks = None
        if x.sinks is not None:
            d_rows = -jnp.exp(per_head(x.sinks, log_total) - log_total) * centre
            d_sinks = d_rows.sum((*range(self.axis), -1))
        return Operands(d_env, d_queries, d_keys, d_v, d_first, d_sinks)

    def _carries(self, x: Operands, queries, first, visible):
        """The carry that each key block is given, stacked."""
        if not jax.tree.leaves(first):
            return first

        def visit(carry, j):
            keys, _ = self._keys(x, j)
            mask = self.reach.allowed(queries[1], keys[1])
            return self.scores(x.env, queries, keys, mask, carry)[1]

        def step(carry, j):
            return jax.lax.cond(visible[j], visit, lambda c, j: c, carry, j), carry

        return jax.lax.scan(step, first, jnp.arange(visible.shape[0]), reverse=True)[1]

    def _visible(self, x: Operands) -> jax.Array:
        return self.reach.visible(x.queries[1], x.keys[1], self.block_q, self.block_k)

    def _queries(self, x: Operands, i):
        return take(x.queries, i, self.block_q, self.axis)

    def _keys(self, x: Operands, j):
        return take((x.keys, x.v), j, self.block_k, self.axis)

    def _put(self, tree, block, j):
        """`tree` with `block` as its block j of keys."""
        put = jax.lax.dynamic_update_slice_in_dim
        start = j * self.block_k
        return jax.tree.map(lambda whole, part: put(whole, part, start, self.axis), tree, block)


__all__ = ["attend_blockwise"]
