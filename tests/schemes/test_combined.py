"""Schemes made of schemes: together in every layer, and different ones by layer."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal

from flax_pos.attention import attend, prepare
from flax_pos.scheme import HOOKS, Scheme, from_dict, plan_layers, to_dict
from flax_pos.schemes.alibi import Alibi
from flax_pos.schemes.by_layer import ByLayer
from flax_pos.schemes.learned import Learned
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.sinusoidal import Sinusoidal
from flax_pos.schemes.stack import Stack
from flax_pos.schemes.stick_breaking import StickBreaking
from flax_pos.schemes.t5 import T5
from flax_pos.types import Coords, Dims, Pair

DIMS = Dims(width=8, heads=4, kv_heads=2, head_dim=4, layers=4, max_len=16)
POS = jnp.arange(5)[None]
AT = Coords(index=POS, pos=POS)
X = normal((1, 5, 8))
Q = normal((1, 5, 4, 4), 1)


@dataclass(frozen=True, kw_only=True)
class Sums(Scheme):
    """A scheme with state: the running sum of x, under a name that every copy shares."""

    name = "sums"
    factor: float = 1.0

    def init_layer(self, key, dims):
        return {"w": jnp.full((), self.factor)}

    def features(self, pos, dims):
        return {"double": 2.0 * pos.astype(jnp.float32)}

    def coords(self, params, x, at, prev):
        total = params["w"] * jnp.cumsum(x[..., 0], -1) + at.feats["double"]
        if prev is not None:
            total = total + prev.feats["total"]
        return at._replace(feats={**at.feats, "total": total})

    def bias(self, params, q_at, k_at, heads):
        assert set(k_at.feats) == {"total"}
        return k_at.feats["total"][:, None, None, :]


@dataclass(frozen=True, kw_only=True)
class Owner(Scheme):
    name = "owner"
    window = 3
    chunk = 8
    causal_only = True
    depends_on_length = True

    def scores(self, params, pair, carry):
        return 10 * pair.logits + pair.bias, carry


# Stack -----------------------------------------------------------------------------------------


def test_parts_add_and_chain_with_their_own_parameters():
    parts = (Learned(), Sinusoidal(), T5(), Alibi(), Rope(), Rope(theta=100.0))
    stack = Stack(parts=parts)
    assert stack.uses == Learned().uses | T5().uses | Rope().uses
    params = stack.layer_params(stack.init(jax.random.key(3), DIMS), 0)
    assert params.keys() == {
        *("0_learned", "1_sinusoidal", "2_t5", "3_alibi", "4_rope", "5_rope"),
    }

    embedded = parts[1].embed({}, parts[0].embed(params["0_learned"], X, POS), POS)
    np.testing.assert_allclose(stack.embed(params, X, POS), embedded, atol=1e-6)

    bias = parts[2].bias(params["2_t5"], AT, AT, 4) + parts[3].bias({}, AT, AT, 4)
    np.testing.assert_allclose(stack.bias(params, AT, AT, 4), bias, atol=1e-6)

    features = stack.features(POS, DIMS)
    at = stack.coords(params, X, AT._replace(feats=features), None)
    rotated = Q
    for part in parts[4:]:
        own = AT._replace(feats=part.features(POS, DIMS))
        rotated = part.rotate({}, rotated, own, "q")
    np.testing.assert_allclose(stack.rotate(params, Q, at, "q"), rotated, atol=1e-6)


def test_parts_with_the_same_feature_names_do_not_mix():
    stack = Stack(parts=(Sums(), Sums(factor=3.0)))
    params = stack.layer_params(stack.init(jax.random.key(0), DIMS), 1)
    features = stack.features(POS, DIMS)
    at = stack.coords(params, X, AT._replace(feats=features), None)
    kept = at._replace(feats={k: v for k, v in at.feats.items() if k not in features})
    sums = jnp.cumsum(X[..., 0], -1)
    bias = stack.bias(params, kept, kept, 4)[0, 0, 0]
    np.testing.assert_allclose(bias, (4 * sums + 4.0 * np.asarray(POS))[0], rtol=1e-5)

    last = jax.tree.map(lambda a: a[:, 2:3], kept)
    rest = jax.tree.map(lambda a: a[:, 3:], AT._replace(feats=features))
    later = stack.coords(params, X[:, 3:], rest, last)
    for i, factor in enumerate((1, 3)):
        own = f"{i}_sums/total"
        want = (
            kept.feats[own][:, 2:3]
            + factor * jnp.cumsum(X[:, 3:, 0], -1)
            + 2.0 * np.asarray(POS[:, 3:])
        )
        np.testing.assert_allclose(later.feats[own], want, rtol=1e-5)


def test_one_part_may_own_the_scores_and_sees_the_sum_of_the_biases():
    stack = Stack(parts=(Alibi(), Owner(), Alibi()))
    bias = stack.bias({"0_alibi": {}, "1_owner": {}, "2_alibi": {}}, AT, AT, 4)
    logits = jnp.ones((1, 4, 5, 5))
    pair = Pair(Q, Q, logits, bias, jnp.ones((1, 1, 5, 5), bool), AT, AT, scale=0.5, softcap=None)
    out, carry = stack.scores({"1_owner": {}}, pair, "carried")
    np.testing.assert_allclose(out, 10 + 2 * Alibi().bias({}, AT, AT, 4), atol=1e-6)
    assert carry == "carried"
    plain, _ = Stack(parts=(Alibi(),)).scores({}, pair, None)
    np.testing.assert_allclose(plain, 1 + bias, atol=1e-6)
    with pytest.raises(ValueError, match=r"at most one part .* scores, got \['owner', 'owner'\]"):
        Stack(parts=(Owner(), Owner()))


def test_a_stack_without_biases_has_none():
    stack = Stack(parts=(Rope(), NoPE(), Learned()))
    params = stack.layer_params(stack.init(jax.random.key(3), DIMS), 0)
    assert stack.bias(params, AT, AT, 4) is None


def test_claims_of_a_stack():
    assert (Stack().relative, Stack().unbounded, Stack().causal_only) == (True, True, False)
    mixed = Stack(parts=(Learned(), Owner()))
    assert (mixed.relative, mixed.unbounded, mixed.causal_only) == (False, False, True)
    assert (mixed.depends_on_length, mixed.window, mixed.chunk) == (True, 3, 8)
    assert (Stack().depends_on_length, Stack().window, Stack().chunk) == (False, None, None)


def test_different_chunks_are_refused():
    @dataclass(frozen=True, kw_only=True)
    class Other(Scheme):
        chunk = 12

    with pytest.raises(ValueError, match=r"different chunks: \[8, 12\]"):
        Stack(parts=(Owner(), Other()))


@pytest.mark.parametrize("cls", [Stack, ByLayer])
def test_parts_are_a_tuple_of_schemes(cls):
    with pytest.raises(TypeError, match="parts must be a tuple of schemes, got"):
        cls(parts=[Alibi(), Rope()])
    with pytest.raises(TypeError, match="parts must be a tuple of schemes"):
        cls(parts=("alibi", "rope"))
    with pytest.raises(ValueError, match="at least one scheme"):
        cls(parts=())


# ByLayer ---------------------------------------------------------------------------------------


def test_pattern_repeats():
    scheme = ByLayer(parts=(Rope(), NoPE(), Alibi()), pattern=(0, 0, 2, 1))
    names = [scheme.for_layer(i).name for i in range(9)]
    assert names == ["rope", "rope", "alibi", "none", *names[:4], "rope"]
    plan = plan_layers(scheme, 8)
    assert (plan.parts, plan.part_of, plan.period) == (
        (Rope(), Alibi(), NoPE()),
        (0, 0, 1, 2, 0, 0, 1, 2),
        4,
    )
    assert plan_layers(scheme, 6).period == 6


def test_the_default_leaves_every_fourth_layer_without_positions():
    assert [ByLayer().for_layer(i).name for i in range(4)] == ["rope", "rope", "rope", "none"]


def test_hooks_of_by_layer_say_where_to_ask_instead():
    for hook in (*HOOKS, "init"):
        with pytest.raises(TypeError, match=rf"by_layer has no {hook} .*for_layer\(layer\)"):
            getattr(ByLayer(), hook)(1, 2)
    assert ByLayer().uses == Rope().uses


def test_claims_of_by_layer():
    scheme = ByLayer(parts=(Learned(), Owner()), pattern=(0, 1))
    assert (scheme.relative, scheme.unbounded, scheme.causal_only) == (False, False, True)
    assert scheme.depends_on_length
    assert [scheme.for_layer(i).window for i in range(2)] == [None, 3]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ((), "pattern must name a part"),
        ((0, 2), r"pattern holds 2, but the parts are 0 \.\. 1"),
        ((0, -1), "pattern holds -1"),
        ((0, 0), r"part 1 \(none\) is in no layer"),
    ],
)
def test_bad_patterns_raise(pattern, message):
    with pytest.raises(ValueError, match=message):
        ByLayer(parts=(Rope(), NoPE()), pattern=pattern)


def test_a_stack_without_softmax_stays_without():
    stick, stack = StickBreaking(), Stack(parts=(Rope(), StickBreaking()))
    assert Stack(parts=(Rope(), Alibi())).normalized
    assert not stack.normalized
    # At position 0 everywhere rotations do nothing, so that the stack is stick-breaking alone.
    at = Coords(POS, jnp.zeros_like(POS))
    features = stack.features(at.pos, DIMS)
    params = {"0_rope": {}, "1_stick_breaking": {}}
    k = Q[..., ::2, :]
    q, turned, own = prepare(stack, params, X, Q, k, at, features)
    out = attend(stack, params, q, turned, k, own, own)
    np.testing.assert_allclose(out, attend(stick, {}, Q, k, k, at, at), atol=1e-6)


# Nested ----------------------------------------------------------------------------------------


def test_nested_schemes_are_data():
    scheme = ByLayer(
        parts=(Stack(parts=(Learned(), T5(num_buckets=8))), ByLayer(pattern=(1, 0))),
        pattern=(0, 1, 1),
    )
    assert from_dict(to_dict(scheme)) == scheme
    assert hash(from_dict(to_dict(scheme))) == hash(scheme)
    assert [scheme.for_layer(i).name for i in range(4)] == ["stack", "rope", "none", "stack"]


def test_a_stack_that_differs_by_layer():
    stack = Stack(parts=(Alibi(), ByLayer(pattern=(0, 1))))
    assert stack.for_layer(0) == Stack(parts=(Alibi(), Rope()))
    assert stack.for_layer(1) == Stack(parts=(Alibi(), NoPE()))
    plain = Stack(parts=(Alibi(), Rope()))
    assert plain.for_layer(3) is plain
    plan = plan_layers(stack, 4)
    assert (len(plan.parts), plan.part_of, plan.period) == (2, (0, 1, 0, 1), 2)
