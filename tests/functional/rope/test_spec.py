"""RopeSpec: settings that combine, plain data, and what does not fit."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal
from hypothesis import given
from hypothesis import strategies as st

from flax_pos.functional.rope import (
    LAYOUTS,
    Axes,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    NTKAware,
    Proportional,
    RopeSpec,
    Scaling,
    Yarn,
    rotate,
)

LAWS = st.sampled_from(
    [
        Scaling(),
        Linear(factor=2.5),
        Proportional(partial_rotary_factor=0.5, factor=2),
        NTKAware(alpha=4),
        DynamicNTK(factor=2, original_max_position_embeddings=64),
        Yarn(factor=4, original_max_position_embeddings=64, truncate=False, beta_fast=16),
        LongRope(
            short_factor=(1, 1.5, 2, 3), long_factor=(2, 4, 6, 8),
            original_max_position_embeddings=64, factor=1,
        ),
        Llama3(
            factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=64
        ),
    ]
)  # fmt: skip
AXES = st.sampled_from(
    [
        None,
        Axes(sections=(2, 1, 1)),
        Axes(sections=(2, 2), ladder="shared", order=(1, 0)),
        Axes(sections=(2, 1, 1), arrangement="interleaved"),
        Axes(sections=(1, 1, 2), arrangement="alternating", order=(1, 2, 0)),
        Axes(sections=(2, 2), ladder="strided", blocks=True),
    ]
)
SPECS = st.builds(
    RopeSpec,
    head_dim=st.just(16),
    partial_rotary_factor=st.just(0.5),
    theta=st.floats(2, 1e8),
    layout=st.sampled_from(LAYOUTS),
    rotary_slice=st.sampled_from(["leading", "trailing"]),
    scaling=LAWS,
    axes=AXES,
    resonance=st.booleans(),
    max_wavelength=st.none() | st.floats(8, 1e4),
    reverse=st.booleans(),
    learnable=st.booleans(),
    softmax_scale_multiplier=st.sampled_from([1.0, 1.5]),
    phase=st.sampled_from(["exact", "float32"]),
    cast_early=st.booleans(),
)


@given(spec=SPECS)
def test_every_combination_is_written_and_read_back(spec):
    through_json = lambda value: json.loads(json.dumps(value))
    assert RopeSpec.from_plain(through_json(spec.to_plain())) == spec
    config = through_json(spec.to_hf_config())
    back = RopeSpec.from_hf_config(config)
    assert back == spec
    assert hash(back) == hash(spec)
    assert json.dumps(back.to_hf_config()) == json.dumps(spec.to_hf_config())


@given(spec=SPECS)
def test_every_combination_has_frequencies(spec):
    for seq_len in (None, 1, 64, 65):
        inv_freq, factor, multiplier = spec.frequencies(seq_len)
        assert inv_freq.shape == (4,)
        assert inv_freq.dtype == np.float64
        assert np.isfinite(inv_freq).all()
        assert factor > 0
        assert multiplier == spec.softmax_scale_multiplier


X = normal((1, 2, 2, 16))
AT = jnp.array([[5, 90_000]])
BASE = RopeSpec(head_dim=16, partial_rotary_factor=0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"theta": 5e5},
        {"partial_rotary_factor": 0.75},
        {"rotary_slice": "trailing"},
        {"layout": "interleaved"},
        {"layout": "interleaved_in_half_out"},
        {"scaling": Linear(factor=2)},
        {"axes": Axes(sections=(2, 2), ladder="own")},
        {"resonance": True},
        {"max_wavelength": 50},
        {"reverse": True},
        {"phase": "float32"},
        {"cast_early": True},
    ],
    ids=str,
)
def test_every_field_changes_the_rotation(change):
    spec = dataclasses.replace(BASE, **change)
    x = X.astype(jnp.bfloat16) if "cast_early" in change else X
    assert (rotate(x, AT, spec) != rotate(x, AT, BASE)).any()
    assert rotate(x, AT, spec).shape == x.shape


def test_equal_specs_compile_once():
    traces = []

    def turn(x, p, spec):
        traces.append(spec)
        return rotate(x, p, spec)

    turn = jax.jit(turn, static_argnums=2)
    for theta in (10000, 10000.0, np.float64(1e4)):
        turn(
            X,
            AT,
            RopeSpec(theta=theta, scaling=Yarn(factor=4, original_max_position_embeddings=64)),
        )
    assert len(traces) == 1


def test_head_width_from_the_array_or_from_the_spec():
    anywhere = RopeSpec(partial_rotary_factor=0.5)
    assert anywhere.rotary_dim_of(64) == 32
    assert len(anywhere.frequencies(head_dim=64)[0]) == 16
    np.testing.assert_array_equal(rotate(X, AT, anywhere), rotate(X, AT, BASE))
    with pytest.raises(ValueError, match="has no head_dim"):
        anywhere.frequencies()
    with pytest.raises(ValueError, match="give the spec a head_dim"):
        anywhere.to_hf_config()


def test_partial_width_is_truncated_not_rounded():
    for head_dim, factor, width in ((36, 0.9, 32), (192, 0.334, 64), (80, 0.4, 32), (64, 0.25, 16)):
        assert RopeSpec(head_dim=head_dim, partial_rotary_factor=factor).rotary_dim_of() == width


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head_dim": 65}, "rotary width must be even and at least 2, got 65"),
        ({"head_dim": 8, "partial_rotary_factor": 0.1}, "at least 2, got 0"),
        ({"head_dim": 0}, "head_dim must be a whole number"),
        ({"theta": -1}, "theta must be positive"),
        ({"theta": "1e4"}, "theta must be a number, got '1e4'"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor must be above 0"),
        ({"partial_rotary_factor": 1.01}, "partial_rotary_factor must be at most 1"),
        ({"rotary_slice": "middle"}, "rotary_slice must be one of leading, trailing"),
        ({"layout": "neox"}, "layout must be one of half, interleaved"),
        ({"phase": "bfloat16"}, "phase must be one of exact, float32"),
        ({"scaling": "yarn"}, "scaling must be a"),
        ({"axes": (2, 2)}, "axes must be a"),
        ({"max_wavelength": 0}, "max_wavelength must be above 0"),
        ({"softmax_scale_multiplier": 0}, "softmax_scale_multiplier must be above 0"),
        ({"resonance": 1}, "resonance must be true or false, got 1"),
        ({"head_dim": 16, "axes": Axes(sections=(2, 2))}, "sum to 4 pairs, but .* 16 has 8"),
        (
            {"head_dim": 2, "scaling": NTKAware(alpha=2)},
            "ntk_alpha: needs a rotary width above 2",
        ),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RopeSpec(**settings)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"thetta": 1e4}, "a RopeSpec has no key 'thetta'; keys: head_dim, theta"),
        ({"scaling": {"rope_type": "spiral"}}, "unknown rope_type 'spiral'; known: default"),
        ({"scaling": {"rope_type": "linear"}}, "'linear' needs the key 'factor'"),
        ({"scaling": {"rope_type": "linear", "factor": 2, "beta": 1}}, "has no key 'beta'"),
        ({"scaling": "linear"}, "scaling must be a mapping"),
        ({"axes": {"arrangement": "contiguous"}}, "axes need the key 'sections'"),
        ({"axes": {"sections": [2], "sektions": [2]}}, "axes have no key 'sektions'"),
    ],
)
def test_bad_plain_data(plain, message):
    with pytest.raises(ValueError, match=message):
        RopeSpec.from_plain(plain)
