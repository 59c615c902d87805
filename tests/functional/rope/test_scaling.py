"""The scaling laws: published values, edge cases, and what is refused."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal

from flax_pos.functional.rope import (
    SCALINGS,
    Default,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    NTKAware,
    Proportional,
    RopeSpec,
    Yarn,
    ntk_by_parts,
    rotate,
)

PHI = json.loads((Path(__file__).parents[2] / "golden" / "longrope_factors.json").read_text())


def inv_freq(scaling, head_dim, theta=1e4, seq_len=None, **spec):
    return RopeSpec(head_dim=head_dim, theta=theta, scaling=scaling, **spec).frequencies(seq_len)[0]


def phi35():
    return LongRope(**PHI["phi-3.5-mini"], factor=32, original_max_position_embeddings=4096)


def yarn_settings(factor, original, **settings):
    return Yarn(factor=factor, original_max_position_embeddings=original, **settings)


def llama3_settings(factor, low=1.0, high=4.0, original=8192):
    return Llama3(
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=original,
    )


# (law, head_dim, theta, length, {pair: frequency}) as the reference computes them in float32.
CHECK_VALUES = {
    "linear": (
        Linear(factor=8), 256, 1e6, None,
        {0: 0.125, 1: 0.1122108921, 16: 0.02222849242, 127: 1.392467368e-07},
    ),
    "dynamic-8192": (
        DynamicNTK(factor=2, original_max_position_embeddings=4096), 128, 1e4, 8192,
        {1: 0.8509942889, 8: 0.2750509679, 63: 3.849273344e-05},
    ),
    "dynamic-16384": (
        DynamicNTK(factor=2, original_max_position_embeddings=4096), 128, 1e4, 16384,
        {1: 0.8396257758, 8: 0.2469937503, 63: 1.649688602e-05},
    ),
    "llama-3.1": (
        llama3_settings(8), 128, 5e5, None,
        {1: 0.8146172166, 28: 3.211446106e-03, 29: 2.166570630e-03, 30: 1.371893683e-03,
         34: 1.785077911e-04, 35: 9.556212171e-05, 63: 3.068925878e-07},
    ),
    "llama-3.2-1b": (
        llama3_settings(32), 64, 5e5, None,
        {14: 3.211446106e-03, 15: 1.290548011e-03, 16: 4.295567051e-04, 17: 9.708286234e-05,
         31: 9.418306490e-08},
    ),
    "gpt-oss": (
        yarn_settings(32, 4096, truncate=False), 64, 1.5e5, None,
        {8: 0.05081327260, 9: 0.03170569614, 12: 6.794959307e-03, 16: 4.564839182e-04,
         17: 1.293186942e-04, 31: 3.023511397e-07},
    ),
    "deepseek-v3": (
        yarn_settings(40, 4096, mscale=1, mscale_all_dim=1), 64, 1e4, None,
        {10: 0.05623412877, 11: 0.03900692612, 16: 5.500000436e-03, 22: 1.778279402e-04,
         31: 3.333803534e-06},
    ),
    "qwen3-x4": (
        yarn_settings(4, 32768), 128, 1e6, None,
        {23: 6.978305988e-03, 24: 5.375321489e-03, 32: 6.029411452e-04, 40: 4.445698505e-05},
    ),
    "phi-3.5-4096": (
        phi35(), 96, 1e4, 4096, {1: 0.8092197776, 24: 5.025126506e-03, 47: 4.265942698e-05},
    ),
    "phi-3.5-4097": (
        phi35(), 96, 1e4, 4097,
        {0: 0.9259259105, 1: 0.7436072826, 24: 1.986491698e-04, 47: 1.868487857e-06},
    ),
    "gemma-4": (
        Proportional(partial_rotary_factor=0.25), 512, 1e6, None,
        {1: 0.9474635124, 63: 0.03337624669, 64: 0.0, 255: 0.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECK_VALUES)
def test_check_values(name):
    law, head_dim, theta, seq_len, want = CHECK_VALUES[name]
    got = inv_freq(law, head_dim, theta, seq_len)
    assert len(got) == head_dim // 2
    for pair, value in want.items():
        assert got[pair] == pytest.approx(value, rel=1e-6, abs=0)


@pytest.mark.parametrize(
    ("law", "want"),
    [
        (yarn_settings(32, 4096), 1.3465735903),
        (yarn_settings(40, 4096, mscale=1, mscale_all_dim=1), 1.0),
        (yarn_settings(4, 32768), 1.1386294361),
        (yarn_settings(2048, 512, attention_factor=1.0), 1.0),
        (yarn_settings(40, 4096, mscale=0.707), 1 + 0.1 * np.log(40)),  # alone it is ignored
        (yarn_settings(40, 4096, mscale=0.707, mscale_all_dim=0.0), 1 + 0.1 * np.log(40)),
        (phi35(), 1.1902380714),
        (Default(), 1.0),
        (Linear(factor=8), 1.0),
        (llama3_settings(8), 1.0),
    ],
)
def test_factor_on_cos_and_sin(law, want):
    for seq_len in (None, 1, 4096, 4097, 100_000):
        assert law.cos_sin_factor(seq_len) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(
    ("factor", "original", "settings", "theta", "dim", "ends"),
    [
        (32, 4096, {"truncate": False}, 1.5e5, 64, (8.092779, 17.398025)),
        (40, 4096, {}, 1e4, 64, (10, 23)),
        (4, 32768, {}, 1e6, 128, (23, 40)),
        (32, 4096, {"beta_fast": 1, "beta_slow": 1}, 5e4, 64, (19, 20)),
        (16, 16384, {}, 1e6, 128, (20, 37)),
        (128, 8192, {}, 1e4, 64, (12, 25)),
        (2048, 512, {}, 1e4, 64, (3, 16)),
    ],
)
def test_yarn_ramp_ends(factor, original, settings, theta, dim, ends):
    ramp = yarn_settings(factor, original, **settings).ramp(theta, dim)
    low, high = ends
    want = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(ramp, want, atol=1e-6)


def test_softmax_multiplier_of_deepseek():
    for mscale, want in ((1.0, 1.87385), (0.707, 1.5896)):
        config = {
            "model_type": "deepseek_v2",
            "max_position_embeddings": 163840,
            "rope_scaling": {
                "type": "yarn", "factor": 40, "mscale": mscale, "mscale_all_dim": mscale,
                "original_max_position_embeddings": 4096,
            },
        }  # fmt: skip
        _, factor, multiplier = RopeSpec.from_hf_config(config).frequencies()
        assert factor == pytest.approx(1.0)
        assert multiplier == pytest.approx(want, rel=1e-4)


def test_ntk_aware_divides_the_lowest_frequency_by_alpha():
    plain, wide = (inv_freq(law, 64) for law in (Default(), NTKAware(alpha=8)))
    assert wide[0] == plain[0] == 1
    assert plain[-1] / wide[-1] == pytest.approx(8)
    np.testing.assert_allclose(wide, (1e4 * 8 ** (64 / 62)) ** (-np.arange(32) / 32), rtol=1e-12)


def test_ntk_by_parts_is_yarn_without_its_factor():
    settings = {"factor": 4.0, "original_max_position_embeddings": 256}
    parts, yarn = ntk_by_parts(**settings), Yarn(**settings)
    np.testing.assert_array_equal(inv_freq(parts, 64), inv_freq(yarn, 64))
    assert parts.cos_sin_factor() == 1
    assert yarn.cos_sin_factor() > 1


def test_p_rope_keeps_the_highest_part_of_the_ladder():
    got = inv_freq(Proportional(partial_rotary_factor=0.75), 16)
    np.testing.assert_allclose(got, [*1e4 ** -(np.arange(6) / 8), 0, 0], rtol=1e-12)


def test_hope_stops_wavelengths_above_the_training_length():
    got, plain = inv_freq(Default(), 64, max_wavelength=512), inv_freq(Default(), 64)
    np.testing.assert_array_equal(got, np.where(2 * np.pi / plain > 512, 0, plain))
    assert 0 < (got == 0).sum() < 32


@pytest.mark.parametrize("law", [Default(), yarn_settings(4, 256)])
def test_resonance_rounds_wavelengths(law):
    got, plain = inv_freq(law, 64, resonance=True), inv_freq(law, 64)
    wavelengths = 2 * np.pi / got
    np.testing.assert_allclose(wavelengths, np.round(2 * np.pi / plain), rtol=1e-12)
    # Positions one wavelength apart get the same rotation.
    spec = RopeSpec(scaling=law, resonance=True)
    x = normal((1, 1, 64))
    for pair in (0, 5, 20):
        step = round(wavelengths[pair])
        here, there = (rotate(x, jnp.array([p]), spec) for p in (3, 3 + step * 1000))
        np.testing.assert_allclose(here[..., pair::32], there[..., pair::32], atol=2e-6)


# Reports ------------------------------------------------------------------------------------------

TOY_DYNAMIC = DynamicNTK(factor=2, original_max_position_embeddings=64)


def test_dynamic_is_a_pure_function_of_the_length():
    spec = RopeSpec(head_dim=8, scaling=TOY_DYNAMIC)
    long = spec.frequencies(128)[0]
    np.testing.assert_allclose(long, [1, 0.0693361, 0.0048075, 0.0003333], rtol=2e-4)
    np.testing.assert_array_equal(spec.frequencies(32)[0], [1, 0.1, 0.01, 0.001])
    np.testing.assert_array_equal(spec.frequencies(64)[0], [1, 0.1, 0.01, 0.001])
    np.testing.assert_array_equal(spec.frequencies()[0], [1, 0.1, 0.01, 0.001])
    np.testing.assert_array_equal(spec.frequencies(128)[0], long)


def test_dynamic_below_the_original_length_is_plain_rope():
    law = DynamicNTK(factor=6, original_max_position_embeddings=64)
    np.testing.assert_array_equal(inv_freq(law, 8, seq_len=10), [1, 0.1, 0.01, 0.001])
    x = normal((1, 10, 2, 8))
    at = jnp.arange(10)[None]
    np.testing.assert_array_equal(rotate(x, at, RopeSpec(scaling=law)), rotate(x, at, RopeSpec()))


def test_dynamic_with_a_short_length_has_no_nan():
    law = DynamicNTK(factor=4, original_max_position_embeddings=64)
    np.testing.assert_array_equal(inv_freq(law, 8, seq_len=16), [1, 0.1, 0.01, 0.001])
    base = inv_freq(law, 8, seq_len=128)[1] ** -4
    assert base == pytest.approx(85498.80, rel=1e-6)
    traced = jax.jit(lambda n: RopeSpec(head_dim=8, scaling=law).frequencies(n)[0])
    assert np.isfinite(traced(16)).all()


def test_long_factors_only_above_the_original_length():
    law = LongRope(
        short_factor=(1, 1.5), long_factor=(2, 8), original_max_position_embeddings=64, factor=1
    )
    for seq_len, angle in ((64, 0.0466667), (65, 0.00875)):
        assert 7 * inv_freq(law, 4, seq_len=seq_len)[1] == pytest.approx(angle, rel=1e-5)


def test_short_factors_whatever_the_room_for_more():
    """The factors follow the tokens seen, not the cache's capacity."""
    law = LongRope(
        short_factor=(1, 1.5), long_factor=(2, 8), original_max_position_embeddings=64, factor=8
    )
    spec, x = RopeSpec(scaling=law), normal((1, 512, 1, 4))
    small = rotate(x[:, :16], jnp.arange(16)[None], spec, seq_len=10)
    large = rotate(x, jnp.arange(512)[None], spec, seq_len=10)
    np.testing.assert_array_equal(large[:, :16], small)


@pytest.mark.parametrize(
    ("maximum", "original", "given", "want"),
    [(131072, 4096, None, 1.1902381), (512, 64, None, 1.2247449), (64, 64, None, 1.0),
     (512, 64, 1.0, 1.0), (32, 64, None, 1.0)],
)  # fmt: skip
def test_longrope_factor(maximum, original, given, want):
    rope = {"rope_type": "longrope", "short_factor": [1, 1], "long_factor": [2, 2],
            "original_max_position_embeddings": original, "attention_factor": given}  # fmt: skip
    config = {"head_dim": 4, "max_position_embeddings": maximum, "rope_scaling": rope}
    for seq_len in (1, original, original + 1):
        factor = RopeSpec.from_hf_config(config).frequencies(seq_len)[1]
        assert factor == pytest.approx(want, rel=1e-7)


def test_phimoe_mscales_follow_the_length():
    law = LongRope(
        short_factor=(1, 1), long_factor=(2, 2), original_max_position_embeddings=64,
        factor=8, short_mscale=1.25, long_mscale=1.5,
    )  # fmt: skip
    assert [law.cos_sin_factor(n) for n in (None, 64, 65)] == [1.25, 1.25, 1.5]
    assert float(jax.jit(law.cos_sin_factor)(65)) == 1.5


def test_yarn_attention_factor_is_the_final_multiplier():
    for factor, given, want in ((4, None, 1.1386294), (4, 1.0, 1.0), (8, 1.2079442, 1.2079442)):
        law = yarn_settings(factor, 64, attention_factor=given)
        assert law.cos_sin_factor() == pytest.approx(want, rel=1e-7)


def test_scores_grow_by_the_square_of_the_factor():
    x = jnp.zeros((1, 1, 64)).at[..., 0].set(1)
    turned = rotate(x, jnp.array([9]), RopeSpec(scaling=yarn_settings(4, 64)))
    assert float((turned * turned).sum()) == pytest.approx(1.2964770, rel=1e-6)


def test_explicit_yarn_factor_wins_over_the_ratio():
    config = {
        "head_dim": 16, "max_position_embeddings": 4096,
        "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 256},
    }  # fmt: skip
    got, factor, _ = RopeSpec.from_hf_config(config).frequencies()
    assert got[-1] == pytest.approx(7.9057e-5, rel=1e-5)
    assert factor == pytest.approx(1.1386294, rel=1e-7)


def test_yarn_truncate():
    got = inv_freq(yarn_settings(4, 256, truncate=False), 16)
    np.testing.assert_allclose(got[:5], [1, 0.2539723, 0.0553986, 0.0096399, 0.0025], rtol=1e-5)
    default = inv_freq(yarn_settings(4, 256), 16)
    assert np.abs(default / got - 1).max() > 0.05


def test_yarn_at_any_original_length():
    got = inv_freq(yarn_settings(4, 6), 16)
    np.testing.assert_allclose(got[:4], [1, 0.0790569, 0.025, 0.0079057], rtol=1e-5)
    assert np.isfinite(got).all()
    with pytest.raises(ValueError, match="beta_fast must not be below beta_slow"):
        yarn_settings(4, 64, beta_fast=1, beta_slow=32)


def test_llama3_with_equal_bounds():
    """Llama 4 Scout: no passage between kept and divided, and no division by zero."""
    got, plain = inv_freq(llama3_settings(16, 1, 1), 128, 5e5), inv_freq(Default(), 128, 5e5)
    np.testing.assert_allclose(got, np.where(2 * np.pi / plain < 8192, plain, plain / 16))
    with jax.debug_nans(True):
        gradient = jax.grad(
            lambda t: RopeSpec(head_dim=8, theta=t, scaling=llama3_settings(16, 1, 1))
            .frequencies()[0].sum()
        )(5e5)  # fmt: skip
    assert np.isfinite(gradient)


# Run-time lengths and bases -----------------------------------------------------------------------

LENGTH_LAWS = [
    TOY_DYNAMIC,
    LongRope(
        short_factor=(1, 1.1, 1.2, 1.3), long_factor=(2, 3, 4, 5),
        original_max_position_embeddings=64, factor=8,
    ),
]  # fmt: skip


@pytest.mark.parametrize("law", LENGTH_LAWS, ids=lambda law: law.rope_type)
def test_traced_length_equals_static(law):
    """One program for all lengths, equal to the eager result on both sides of the boundary."""
    spec, traces = RopeSpec(scaling=law), []

    @jax.jit
    def turned(x, at, n):
        traces.append(1)
        return rotate(x, at, spec, seq_len=n), rotate(x, at, spec)

    x = normal((1, 3, 1, 8))
    for n in (8, 64, 65, 200, 8):
        at = jnp.array([[0, n // 2, n - 1]])
        want = rotate(x, at, spec, seq_len=n)
        given, derived = turned(x, at, n)
        np.testing.assert_allclose(given, want, atol=2e-5)
        np.testing.assert_array_equal(given, derived)
        np.testing.assert_array_equal(rotate(x, at, spec), want)
    assert len(traces) == 1


def test_longrope_stays_exact_with_a_traced_length():
    spec = RopeSpec(scaling=LENGTH_LAWS[1])
    x = normal((1, 2, 1, 8))
    at = jnp.array([[1, 2**31 - 7]])
    got = jax.jit(lambda n: rotate(x, at, spec, seq_len=n))(2**31 - 1)
    np.testing.assert_allclose(got, rotate(x, at, spec, seq_len=2**31 - 1), atol=1e-6)


@pytest.mark.parametrize("law", CHECK_VALUES, ids=str)
def test_traced_base(law):
    """A swept base goes through every law, with the static result up to float32."""
    law, head_dim, theta, seq_len, _ = CHECK_VALUES[law]
    got = jax.jit(
        lambda t: RopeSpec(head_dim=head_dim, theta=t, scaling=law).frequencies(seq_len)[0]
    )(theta)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, inv_freq(law, head_dim, theta, seq_len), rtol=3e-5)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(factor=0.5), "linear: factor must be at least 1, got 0.5"),
        (lambda: Linear(factor=None), "linear: factor must be a number, got None"),
        (lambda: Linear(factor=True), "must be a number, got True"),
        (lambda: Linear(factor=float("nan")), "must be finite"),
        (lambda: Proportional(partial_rotary_factor=1.5), "must be at most 1"),
        (lambda: NTKAware(alpha=0), "alpha must be at least 1"),
        (lambda: DynamicNTK(factor=2, original_max_position_embeddings=0), "whole number"),
        (lambda: DynamicNTK(factor=2, original_max_position_embeddings=3.5), "whole number"),
        (lambda: yarn_settings(4, 64, attention_factor=0), "attention_factor must be above 0"),
        (lambda: yarn_settings(4, 64, truncate="no"), "truncate must be true or false"),
        (lambda: llama3_settings(8, low=4, high=1), "high_freq_factor must not be below"),
        (lambda: dataclasses.replace(phi35(), long_factor=(1.0, -1.0)), "positive numbers"),
        (lambda: dataclasses.replace(phi35(), short_factor=3), "list of numbers"),
        (lambda: dataclasses.replace(phi35(), short_mscale=1.1), "together"),
        (lambda: inv_freq(phi35(), 64), "one number per pair, 32, got 48"),
        (lambda: inv_freq(TOY_DYNAMIC, 2), "rotary width above 2"),
        (lambda: inv_freq(NTKAware(alpha=2), 2), "rotary width above 2"),
        (lambda: inv_freq(yarn_settings(4, 64), 8, theta=1), "theta must not be 1"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_every_law_is_registered_and_hashable():
    assert set(SCALINGS) == {
        "default", "linear", "proportional", "ntk_alpha", "dynamic", "yarn", "longrope", "llama3",
    }  # fmt: skip
    assert len({law for law, *_ in CHECK_VALUES.values()}) == 9
