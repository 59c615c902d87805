"""The interface itself: the registry, plain data, wrappers, and hooks with fewer arguments."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_pos import (
    RopeSpec,
    Scheme,
    Wrapper,
    from_dict,
    get_scheme,
    list_schemes,
    register,
    to_dict,
)
from flax_pos.nnx import CausalLM, ModelConfig
from flax_pos.scheme import merge, plan_layers, registry


@dataclass(frozen=True, kw_only=True)
class Doubled(Scheme):
    def positions(self, index, *, length):
        return 2 * index


@dataclass(frozen=True, kw_only=True)
class ReadsIds(Scheme):
    def positions(self, index, *, length, key=None, ids=None):
        return index + ids


@pytest.fixture
def clean_registry(monkeypatch):
    list_schemes()
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def test_positions_may_leave_out_what_it_does_not_read():
    index, ids = jnp.arange(4), jnp.array([3, 0, 0, 1])
    everything = {"length": 4, "key": jax.random.key(0), "ids": ids, "prev": None}
    assert Doubled().positions(index, **everything).tolist() == [0, 2, 4, 6]
    assert ReadsIds().positions(index, **everything).tolist() == [3, 1, 2, 4]
    with pytest.raises(TypeError, match="lenght"):
        Doubled().positions(index, lenght=4)


@pytest.mark.parametrize("scheme", [Doubled(), ReadsIds()])
def test_a_model_takes_hooks_with_fewer_arguments(scheme):
    model = CausalLM(
        ModelConfig(vocab_size=7, width=8, layers=1, heads=2), scheme, rngs=nnx.Rngs(0)
    )
    ids = jnp.array([[1, 2, 3, 4]])
    _, cache = model(ids[:, :2], cache=model.init_cache(1, 8))
    logits, _ = model(ids[:, 2:], cache=cache)
    assert jnp.abs(logits - model(ids)[:, 2:]).max() < 1e-5


def test_register_refuses_what_cannot_be_a_scheme(clean_registry):
    with pytest.raises(TypeError, match="subclasses of Scheme"):
        register("x")(int)
    with pytest.raises(TypeError, match="frozen=True"):
        register("x")(type("NotADataclass", (Scheme,), {}))

    @dataclass(frozen=True, kw_only=True)
    class NeedsWidth(Scheme):
        width: int

    with pytest.raises(TypeError, match=r"\['width'\] need defaults"):
        register("x")(NeedsWidth)
    with pytest.raises(ValueError, match="'rope' is already registered by flax_pos"):
        register("rope")(Doubled)


def test_unknown_names_list_what_there_is():
    with pytest.raises(
        ValueError, match=r"'ropee'; did you mean 'rope'\? registered: .*alibi.*rope"
    ):
        get_scheme("ropee")
    with pytest.raises(ValueError, match=r"has no field 'base'; fields: .*theta"):
        from_dict({"name": "rope", "base": 1.0})
    with pytest.raises(ValueError, match="needs the key 'name'"):
        from_dict({"theta": 1.0})
    with pytest.raises(ValueError, match="Doubled is not registered"):
        to_dict(Doubled())


def test_a_wrapper_hands_on_the_claims_of_what_it_wraps():
    @dataclass(frozen=True, kw_only=True)
    class Plain(Wrapper):
        inner: Scheme = Doubled()

    learned, rope = get_scheme("learned")(), get_scheme("rope")()
    for inner in (learned, rope):
        for claim in ("relative", "unbounded", "depends_on_length", "window", "chunk"):
            assert getattr(Plain(inner=inner), claim) == getattr(inner, claim)
        assert Plain(inner=inner).uses == inner.uses


def test_layer_plans_find_the_shortest_period():
    by_layer = get_scheme("by_layer")
    rope, none = get_scheme("rope")(), get_scheme("none")()
    mixed = by_layer(parts=(rope, none), pattern=(0, 0, 0, 1))
    assert plan_layers(rope, 6)[1:] == ((0,) * 6, 1)
    plan = plan_layers(mixed, 8)
    assert plan.parts == (rope, none)
    assert plan.part_of == (0, 0, 0, 1, 0, 0, 0, 1)
    assert plan.period == 4
    assert plan_layers(mixed, 6).period == 6


def test_layer_plans_do_not_ask_whether_traced_settings_are_equal():
    """Schemes that `for_layer` makes anew, with several traced settings each, in wrappers,
    tuples and settings objects."""
    Rope, Alibi, Stack, ByLayer = map(get_scheme, ("rope", "alibi", "stack", "by_layer"))
    plans = []

    def plan(a, b):
        ropes = Rope(theta=a), Rope(spec=RopeSpec(theta=b))
        mixed = ByLayer(parts=ropes, pattern=(0, 0, 1))
        plans.append(plan_layers(Stack(parts=(Alibi(scale=a, max_bias=b), mixed)), 6))
        plans.append(plan_layers(get_scheme("interpolated")(inner=mixed, factor=a), 6))
        return a

    jax.vmap(plan)(jnp.array([2.0, 3.0]), jnp.array([4.0, 5.0]))
    assert [p.part_of for p in plans] == [(0, 0, 1, 0, 0, 1)] * 2
    assert [p.period for p in plans] == [3, 3]


def test_merge_refuses_a_parameter_on_both_levels():
    assert merge({"a": {"x": 1}}, {"a": {"y": 2}, "b": 3}) == {"a": {"x": 1, "y": 2}, "b": 3}
    with pytest.raises(ValueError, match="parameter 'x' is both"):
        merge({"x": 1}, {"x": 2})
