"""The suite, which knows no formula, catches mistakes that people make: each planted bug below must
fail the check named beside it. The controls are in `test_conformance.py`: every healthy scheme
passes every check."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos import Scheme, get_scheme
from flax_pos.functional.rope import rope_tables
from flax_pos.testing import layer, modules, settings

Alibi, Cope, Fox, Learned, Randomized, Rope, Shaw, T5 = map(
    get_scheme, ("alibi", "cope", "fox", "learned", "randomized", "rope", "shaw", "t5")
)
MUTANTS = []


def caught_by(check):
    """Plants a bug."""

    def plant(cls):
        cls = dataclass(frozen=True, kw_only=True)(cls)
        MUTANTS.append(pytest.param(cls, check, id=cls.__name__))
        return cls

    return plant


@pytest.mark.parametrize(("mutant", "check"), MUTANTS)
def test_mutant_is_caught(mutant, check):
    with pytest.raises((AssertionError, jax.errors.UnexpectedTracerError)):
        check(mutant(**mutant.toy))


# Ten classics ------------------------------------------------------------------------------------


@caught_by(layer.check_cache)
class BiasCountsSlots(Alibi):
    def bias(self, params, q_at, k_at, heads):
        count = lambda at: at._replace(
            pos=jnp.broadcast_to(jnp.arange(at.pos.shape[-1]), at.pos.shape)
        )
        return super().bias(params, count(q_at), count(k_at), heads)


@caught_by(layer.check_claims)
class KeyNotRotated(Rope):
    def rotate(self, params, x, at, side):
        return super().rotate(params, x, at, side) if side == "q" else x


@caught_by(layer.check_cache)
class ForgetsPrev(Fox):
    def coords(self, params, x, at, prev):
        return super().coords(params, x, at, None)


@caught_by(layer.check_blockwise)
class DropsCarry(Cope):
    def scores(self, params, pair, carry):
        return super().scores(params, pair, None)


@caught_by(layer.check_positions)
class RedrawsPerCall(Randomized):
    def positions(self, index, *, length, key=None, ids=None, prev=None):
        key = jax.random.key(0) if key is None else key
        drawn = jnp.sort(jax.random.permutation(key, self.range)[: index.shape[-1]])
        return jnp.broadcast_to(drawn.astype(jnp.int32), index.shape)


FREQUENCIES: dict[int, Any] = {}


@caught_by(settings.check_fields)
class GlobalTable(Rope):
    def features(self, pos, dims):
        half = dims.head_dim // 2
        ladder = np.float32(self.theta) ** -(np.arange(half, dtype=np.float32) / half)
        phase = pos[..., None].astype(jnp.float32) * FREQUENCIES.setdefault(half, ladder).reshape(
            (1,) * pos.ndim + (half,)
        )
        return {"rope_cos": jnp.cos(phase), "rope_sin": jnp.sin(phase)}


@caught_by(layer.check_dtype)
class Upcasts(Rope):
    def rotate(self, params, x, at, side):
        return super().rotate(params, x.astype(jnp.float32), at, side)


@caught_by(layer.check_memory)
class GathersFromSquare(Alibi):
    def bias(self, params, q_at, k_at, heads):
        n = 320
        square = jnp.abs(jnp.arange(n)[:, None] - jnp.arange(n)[None]).astype(jnp.float32)
        return -0.5 * square[q_at.pos[..., :, None], k_at.pos[..., None, :]][..., None, :, :]


@caught_by(settings.check_fields)
class DeadField(Rope):
    unused: float = 3.0


@caught_by(layer.check_claims)
class FalselyAbsolute(Rope):
    relative = False


# One for each hook -------------------------------------------------------------------------------


@caught_by(settings.check_parameters)
class UnseededParameters(T5):
    def init_model(self, key, dims):
        table = super().init_model(key, dims)["table"]
        return {"table": jnp.asarray(np.random.normal(size=table.shape), jnp.float32)}  # noqa: NPY002


@caught_by(settings.check_parameters)
class NarrowParameters(Fox):
    def init_layer(self, key, dims):
        return jax.tree.map(lambda a: a.astype(jnp.bfloat16), super().init_layer(key, dims))


@caught_by(layer.check_positions)
class PlacesByNeighbours(Scheme):
    def positions(self, index, *, length, key=None, ids=None, prev=None):
        return index - index.min(-1, keepdims=True)


@caught_by(layer.check_cache)
class EmbedsByRow(Learned):
    def embed(self, params, x, pos):
        return super().embed(params, x, pos - pos[:, :1])


@caught_by(layer.check_cache)
class FeaturesBySlot(Rope):
    def features(self, pos, dims):
        slots = jnp.arange(pos.shape[-1], dtype=pos.dtype)
        return super().features(jnp.broadcast_to(slots, pos.shape), dims)


@caught_by(layer.check_padding)
class CountsPadding(Fox):
    def coords(self, params, x, at, prev):
        return super().coords(params, x, at._replace(index=jnp.abs(at.index)), prev)


@caught_by(layer.check_claims)
class KeysTurnTheOtherWay(Rope):
    def rotate(self, params, x, at, side):
        if side == "k":
            feats = {**at.feats, "rope_sin": -at.feats["rope_sin"]}
            at = at._replace(feats=feats)
        return super().rotate(params, x, at, side)


@caught_by(layer.check_dtype)
class NarrowBias(Alibi):
    def bias(self, params, q_at, k_at, heads):
        return super().bias(params, q_at, k_at, heads).astype(jnp.bfloat16)


@caught_by(layer.check_dtype)
class RoundsPositions(Rope):
    """To the dtype of x, which holds the first 256 of them."""

    def rotate(self, params, x, at, side):
        rounded = at.pos.astype(x.dtype).astype(jnp.int32)
        cos, sin = rope_tables(rounded, self.full_spec, head_dim=x.shape[-1])
        feats = {"rope_cos": cos, "rope_sin": sin}
        return super().rotate(params, x, at._replace(feats=feats), side)


@caught_by(layer.check_dtype)
class SumsInTheDtypeOfX(Fox):
    def coords(self, params, x, at, prev):
        at = super().coords(params, x, at, prev)
        narrow = lambda a: a.astype(x.dtype).astype(a.dtype)
        return at._replace(feats=jax.tree.map(narrow, at.feats))


@caught_by(layer.check_blockwise)
class CarryCountsMasked(Cope):
    def scores(self, params, pair, carry):
        return super().scores(params, pair._replace(mask=jnp.ones_like(pair.mask)), carry)


@caught_by(layer.check_grouped_heads)
class TilesHeads(Scheme):
    def scores(self, params, pair, carry):
        copies = pair.q.shape[-2] // pair.k.shape[-2]
        keys = jnp.tile(pair.k, (1, 1, copies, 1))  # head n takes key n % K, not n // (N / K)
        return jnp.einsum("btnh,bsnh->bnts", pair.q, keys).astype(jnp.float32), carry


@caught_by(layer.check_blockwise)
class MixesNotLinearly(Scheme):
    def mix(self, params, weights, v, q_at, k_at):
        return super().mix(params, jnp.square(weights), v, q_at, k_at)


@caught_by(layer.check_cache)
class MixCountsSlots(Shaw):
    def mix(self, params, weights, v, q_at, k_at):
        slots = jnp.arange(k_at.pos.shape[-1], dtype=k_at.pos.dtype)
        k_at = k_at._replace(pos=jnp.broadcast_to(slots, k_at.pos.shape))
        return super().mix(params, weights, v, q_at, k_at)


# One for each claim, and for what else is promised -----------------------------------------------


@caught_by(layer.check_claims)
class FalselyRelative(Learned):
    relative = True


@caught_by(layer.check_claims)
class RoundsFarPositions(Alibi):
    def bias(self, params, q_at, k_at, heads):
        far = lambda at: 0.3 * at.pos.astype(jnp.float32)
        return far(k_at)[..., None, None, :] - far(q_at)[..., None, :, None]


@caught_by(layer.check_rows)
class RowsSeeEachOther(Scheme):
    def coords(self, params, x, at, prev):
        crowd = jnp.broadcast_to(x.astype(jnp.float32).mean(0, keepdims=True), x.shape)
        return at._replace(feats={**at.feats, "crowd": crowd[..., 0]})

    def bias(self, params, q_at, k_at, heads):
        return k_at.feats["crowd"][..., None, None, :]


@caught_by(layer.check_ring)
class CountsFromTheFirstSlot(Scheme):
    relative = True

    def scores(self, params, pair, carry):
        # The first key handed over was the first token, as long as nothing was dropped.
        start = pair.k_at.pos[..., :1] if carry is None else carry
        far = (pair.k_at.pos - start).astype(jnp.float32)
        return pair.logits + jnp.log1p(jnp.abs(far))[..., None, None, :], start


@caught_by(layer.check_claims)
class FalselyUnbounded(Learned):
    unbounded = True


@caught_by(layer.check_claims)
class FalselyBounded(Alibi):
    unbounded = False


@caught_by(layer.check_claims)
class HidesLength(Scheme):
    def positions(self, index, *, length, key=None, ids=None, prev=None):
        return index

    def features(self, pos, dims):
        return {"strength": jnp.log(jnp.ones(pos.shape) * jnp.asarray(dims.length, jnp.float32))}

    def rotate(self, params, x, at, side):
        return x * at.feats["strength"][..., None, None].astype(x.dtype)


@caught_by(layer.check_claims)
class FalselyLengthDependent(Alibi):
    depends_on_length = True


@caught_by(layer.check_bidirectional)
class NeedsCausalMaskUnsaid(Scheme):
    def scores(self, params, pair, carry):
        # Sums over the keys to the right, but blind to how far right the row goes.
        own = jnp.where(pair.mask, jax.nn.sigmoid(pair.logits), 0.0)
        after = jnp.cumsum(own[..., ::-1], -1)[..., ::-1]
        return pair.logits - after, carry


@caught_by(layer.check_hooks)
class HookWithoutEffect(Scheme):
    def rotate(self, params, x, at, side):
        return x + jnp.zeros_like(x)


@caught_by(settings.check_round_trip)
class Unhashable(Rope):
    __hash__ = None  # type: ignore[assignment]


@caught_by(layer.check_x64)
class WideParameters(T5):
    def init_model(self, key, dims):
        return {"table": jax.random.normal(key, (self.num_buckets, dims.heads))}


@caught_by(settings.check_swept_fields)
class FieldAsConstant(Alibi):
    def bias(self, params, q_at, k_at, heads):
        return float(self.max_bias) * super().bias(params, q_at, k_at, heads)


@caught_by(settings.check_described)
class SaysNothing(Rope):
    formula = ""


@caught_by(layer.check_packing)
class CountsOnAcrossDocuments(Scheme):
    def coords(self, params, x, at, prev):
        count = jnp.cumsum(at.index >= 0, -1, dtype=jnp.float32)
        if prev is not None:
            count = count + prev.feats["count"]
        return at._replace(feats={**at.feats, "count": count})

    def bias(self, params, q_at, k_at, heads):
        q, k = q_at.feats["count"][..., :, None], k_at.feats["count"][..., None, :]
        return 0.1 * (q * k)[..., None, :, :]


@caught_by(layer.check_seeds)
class MemoisesTable(T5):
    def bias(self, params, q_at, k_at, heads):
        return super().bias({"table": MEMO.setdefault(heads, params["table"])}, q_at, k_at, heads)


MEMO: dict[int, Any] = {}


@caught_by(modules.check_modules)
class KeepsStateBetweenCalls(Learned):
    def embed(self, params, x, pos):
        CALLS.append(1)
        return super().embed(params, x, pos) + jnp.asarray(0.01 * len(CALLS), x.dtype)


CALLS: list[int] = []
