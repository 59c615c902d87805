"""Wrappers, stacks and layers compose: a walk over a sample of their products."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import DIMS, T, case, close, weights

from flax_pos import from_dict, get_scheme, to_dict
from flax_pos.scheme import plan_layers
from flax_pos.schemes.by_layer import ByLayer
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.stack import Stack


def toy(name, **settings):
    cls = get_scheme(name)
    return cls(**{**cls.toy, **settings})


POSITIONS = ["randomized", "pose", "shape"]
INNER = ["rope", "alibi", "t5", "kerple_log", "fire", "fox", "xpos", "rerope", "pope", "cope"]
RANDOM = [
    toy(outer, inner=toy(inner))
    for number, (inner, outer) in enumerate(itertools.product(INNER, POSITIONS))
    if number % 3 == 0 or inner in ("rope", "fox")
]
REAL = [
    toy("interpolated", inner=toy(inner))
    for inner in ("rope", "alibi", "t5", "kerple_power", "fire", "sandwich", "sinusoidal", "xpos")
]
DEEP = [
    toy("interpolated", inner=toy("randomized", inner=toy("rope"))),
    toy("dape", inner=toy("interpolated", inner=toy("alibi"))),
    toy("drope", inner=toy("window", inner=toy("randomized", inner=toy("learnable_rope")))),
    toy("abacus", inner=toy("randomized", inner=toy("fire"))),
    toy("bipe", inner=toy("alibi")),
    Stack(parts=(toy("randomized", inner=toy("rope")), toy("fox"))),
    Stack(parts=(toy("log_n"), toy("rerope"))),
    Stack(parts=(toy("rope"), toy("ssmax"), toy("cope"))),
    Stack(parts=(toy("qk_norm"), toy("selective_rope"), toy("fox"), toy("alibi"))),
    Stack(parts=(toy("sinusoidal"), toy("stick_breaking"))),
]
SCHEMES = [*RANDOM, *REAL, *DEEP]


def label(scheme):
    inner = getattr(scheme, "inner", None)
    parts = getattr(scheme, "parts", ())
    if inner is not None:
        return f"{scheme.name}-{label(inner)}"
    return "+".join(map(label, parts)) if parts else scheme.name


IDS = jnp.asarray(np.random.default_rng(0).integers(0, 8, (1, T)), jnp.int32)


def placed(scheme, key=None):
    c = case(scheme)
    return c._replace(pos=scheme.positions(c.index, length=T, ids=IDS, key=key))


@pytest.mark.parametrize("scheme", SCHEMES, ids=label)
def test_products_attend_alike_in_both_forms(scheme):
    assert from_dict(to_dict(scheme)) == scheme
    c = placed(scheme, jax.random.key(1))
    dense = weights(scheme, c)
    assert np.isfinite(dense).all()
    close(weights(scheme, c, implementation="blockwise", block_q=4, block_k=5), dense, 1e-5)
    c.params and scheme.embed(c.params, c.x, c.pos)


@pytest.mark.parametrize("inner", INNER)
def test_a_wrapper_moves_positions_and_changes_nothing_else(inner):
    """randomized(x) at its draw is x there."""
    plain, moved = toy(inner), toy("randomized", inner=toy(inner), range=60)
    c = placed(moved)
    assert plain.uses | {"positions"} == moved.uses
    close(weights(moved, c), weights(plain, c))
    assert c.pos.tolist() != c.index.tolist()


def test_stacks_of_wrappers_keep_parts_apart():
    both = Stack(parts=(toy("dape"), toy("learnable_rope"), toy("fox")))
    c = case(both)
    assert set(c.params) == {"0_dape", "1_learnable_rope", "2_fox"}
    without = dataclasses.replace(both, parts=both.parts[:2])
    cut = {k: v for k, v in c.params.items() if k != "2_fox"}
    difference = weights(both, c) - weights(without, c._replace(params=cut))
    assert np.abs(difference).max() > 1e-2


def test_layers_mix_wrapped_schemes():
    parts = (toy("window", inner=toy("fox")), toy("interpolated", inner=toy("rope")), NoPE())
    scheme = ByLayer(parts=parts, pattern=(0, 1, 0, 2))
    plan = plan_layers(scheme, 8)
    assert plan.parts == parts
    assert plan.part_of == (0, 1, 0, 2, 0, 1, 0, 2)
    assert DIMS.layers == 2
