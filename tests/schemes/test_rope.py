"""RoPE as a scheme: the same rotation as the functions, from any spec."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal

from flax_pos import Coords, Dims, from_dict, to_dict
from flax_pos.functional.rope import (
    Axes,
    DynamicNTK,
    Linear,
    LongRope,
    Proportional,
    RopeSpec,
    Yarn,
    apply_rope,
    rotate,
)
from flax_pos.schemes.rope import Rope

DIMS = Dims(width=32, heads=4, kv_heads=2, head_dim=8, layers=3, max_len=64)
X = normal((1, 5, 4, 8))
POS = jnp.array([[0, 1, 7, 300, 2**20]])


def rotated(scheme, x=X, pos=POS, side="k", params=None, length=None):
    dims = DIMS._replace(length=length)
    at = Coords(index=pos, pos=pos, feats=scheme.features(pos, dims))
    return scheme.rotate(params or {}, x, at, side)


SPECS = [
    RopeSpec(theta=5e5, layout="interleaved", partial_rotary_factor=0.5),
    RopeSpec(scaling=Linear(factor=4)),
    RopeSpec(scaling=Yarn(factor=4, original_max_position_embeddings=64), resonance=True),
    RopeSpec(scaling=Proportional(partial_rotary_factor=0.5)),
    RopeSpec(max_wavelength=64),
    RopeSpec(rotary_slice="trailing", partial_rotary_factor=0.5),
    RopeSpec(axes=Axes(sections=(2, 1, 1))),
    RopeSpec(head_dim=8, layout="interleaved_in_half_out"),
    RopeSpec(phase="float32", reverse=True),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: json.dumps(s.to_plain()))
def test_the_scheme_does_what_the_function_does(spec):
    np.testing.assert_allclose(rotated(Rope(spec=spec)), rotate(X, POS, spec), atol=5e-7)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: json.dumps(s.to_plain()))
def test_settings_round_trip(spec):
    scheme = Rope(spec=spec)
    back = from_dict(json.loads(json.dumps(to_dict(scheme))))
    assert back == scheme
    assert hash(back) == hash(scheme)


def test_settings_of_its_own():
    scheme = Rope(theta=500, layout="interleaved", partial_rotary_factor=0.5)
    want = apply_rope(X, POS, 500, layout="interleaved", rotary_dim=4)
    np.testing.assert_allclose(rotated(scheme), want, atol=5e-7)
    np.testing.assert_allclose(rotated(Rope()), apply_rope(X, POS), atol=5e-7)


def test_early_cast():
    x, spec = X.astype(jnp.bfloat16), RopeSpec(cast_early=True)
    np.testing.assert_array_equal(rotated(Rope(spec=spec), x), rotate(x, POS, spec))


def test_a_swept_base():
    sums = lambda theta: jax.vmap(lambda t: rotated(Rope(theta=t)))(jnp.asarray(theta))
    got = sums([1e3, 1e4])
    np.testing.assert_allclose(got[1, :, :4], apply_rope(X, POS)[:, :4], atol=1e-4)
    assert np.abs(got[0] - got[1]).max() > 0.1


@pytest.mark.parametrize(
    "law",
    [
        DynamicNTK(factor=2, original_max_position_embeddings=16),
        LongRope(
            short_factor=(1,) * 4, long_factor=(2,) * 4, factor=4,
            original_max_position_embeddings=16,
        ),
    ],
    ids=lambda law: law.rope_type,
)  # fmt: skip
def test_the_length_decides(law):
    """Frequencies follow `dims.length`, so keys must be cached unrotated."""
    scheme = Rope(spec=RopeSpec(scaling=law))
    assert scheme.depends_on_length
    assert not Rope().depends_on_length
    short, long = (rotated(scheme, pos=POS % 16, length=n) for n in (16, 64))
    assert np.abs(short - long).max() > 0.01
    traced = jax.jit(lambda n: rotated(scheme, pos=POS % 16, length=n))(64)
    np.testing.assert_allclose(traced, long, atol=1e-5)


def test_softmax_multiplier_is_on_queries_only():
    scheme = Rope(spec=RopeSpec(softmax_scale_multiplier=1.5))
    np.testing.assert_allclose(rotated(scheme, side="q"), 1.5 * apply_rope(X, POS), rtol=1e-6)
    np.testing.assert_allclose(rotated(scheme, side="k"), apply_rope(X, POS), atol=5e-7)


def test_learned_frequencies():
    scheme = Rope(spec=RopeSpec(learnable=True, partial_rotary_factor=0.5))
    params = scheme.init(jax.random.key(0), DIMS)
    assert jax.tree.map(jnp.shape, params) == {"model": {}, "layers": {"rope_log_scale": (3, 2)}}
    own = scheme.layer_params(params, 1)
    fixed = Rope(partial_rotary_factor=0.5)
    near = POS % 512
    np.testing.assert_allclose(
        rotated(scheme, pos=near, params=own), rotated(fixed, pos=near), atol=1e-4
    )
    own = {"rope_log_scale": jnp.log(jnp.array([2.0, 2.0]))}
    np.testing.assert_allclose(
        rotated(scheme, pos=near, params=own), rotated(fixed, pos=2 * near), atol=1e-4
    )
    small = POS % 8  # where differences resolve the angle
    loss = jax.jit(lambda a: (rotated(scheme, pos=small, params={"rope_log_scale": a}) ** 3).sum())
    exact = jax.jit(jax.grad(loss))(jnp.zeros(2))
    step = 1e-2 * np.eye(2, dtype=np.float32)
    numeric = [(loss(d) - loss(-d)) / 2e-2 for d in step]
    np.testing.assert_allclose(exact, numeric, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Rope(theta=0), ValueError, "theta must be positive"),
        (lambda: Rope(layout="neox"), ValueError, "layout must be one of"),
        (lambda: Rope(partial_rotary_factor=2), ValueError, "at most 1"),
        (lambda: Rope(spec={"theta": 1e4}), TypeError, "spec must be a RopeSpec"),
        (
            lambda: Rope(theta=5e5, spec=RopeSpec()),
            ValueError,
            "with a spec, set theta in the spec",
        ),
        (lambda: rotated(Rope(spec=RopeSpec(head_dim=16))), ValueError, "head_dim 16, got 8"),
        (lambda: rotated(Rope(), pos=POS.astype(jnp.int16)), TypeError, "at least 32 bits"),
        (
            lambda: from_dict({"name": "rope", "spec": {"scaling": {"rope_type": "spiral"}}}),
            ValueError,
            "unknown rope_type 'spiral'",
        ),
    ],
)
def test_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
