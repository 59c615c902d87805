"""Another scheme for one call of a model: the parameters it takes, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import mixed, run, run_with, some_ids, tiny

from flax_pos import from_dict, get_scheme


def test_swept_settings_equal_separate_models():
    model, ids = tiny("rope"), some_ids(2, 6)
    rope = get_scheme("rope")()
    thetas = jnp.array([100.0, 1e4, 1e6])
    sweep = lambda theta: model(ids, scheme=dataclasses.replace(rope, theta=theta))
    got = jax.jit(jax.vmap(sweep))(thetas)
    for theta, row in zip((100.0, 1e4, 1e6), got, strict=True):
        want = run_with(model, ids, get_scheme("rope")(theta=theta))
        np.testing.assert_allclose(row, want, atol=1e-4)
    assert np.abs(got[0] - got[2]).max() > 1e-3


def test_override_takes_the_same_parameters():
    model, ids = tiny(mixed(), layers=4), some_ids(1, 6)
    want = run(model, ids)
    equal = from_dict({"name": "by_layer", **_parts(("rope", "alibi", "t5"), (0, 1, 0, 2))})
    np.testing.assert_array_equal(run_with(model, ids, equal), want)
    # Layer 3 keeps its T5 biases; the others lose their positions.
    got = run_with(
        model, ids, from_dict({"name": "by_layer", **_parts(("none", "t5"), (0, 0, 0, 1))})
    )
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() > 1e-3


def _parts(names, pattern):
    return {"parts": [{"name": name} for name in names], "pattern": list(pattern)}


def test_override_of_some_layers_takes_their_rows():
    """T5 has biases for each of four layers... of which an override may use those of two."""
    own = from_dict({"name": "by_layer", **_parts(("fire", "none"), (0, 1))})
    model, ids = tiny("fire", layers=4), some_ids(1, 6)
    got = run_with(model, ids, own)
    blank = jax.tree.map(lambda a: a, model)
    layers = blank.position.params["0"]["layers"]
    for leaf in jax.tree.leaves(layers, is_leaf=lambda v: isinstance(v, nnx.Param)):
        leaf[...] = leaf[...].at[jnp.array([1, 3])].set(jnp.nan)
    np.testing.assert_array_equal(run_with(blank, ids, own), got)
    assert np.isnan(run(blank, ids)).any()


def test_override_without_its_parameters():
    with pytest.raises(
        ValueError, match=r"'learned' needs the parameters .*table.*, but the model"
    ):
        tiny("rope")(some_ids(1, 6), scheme=get_scheme("learned")())
