"""Frequencies of 51 configurations against recorded values, through the public functions."""

import json
from pathlib import Path

import numpy as np
import pytest

from flax_pos.functional.rope import RopeSpec
from flax_pos.functional.rope.frequencies import reference_ladder

GOLDEN = Path(__file__).parents[2] / "golden"
DATA = json.loads((GOLDEN / "rope_frequencies.json").read_text())
# The Llama class of the reference ignores partial_rotary_factor; here it is honoured.
IGNORED_BY_THE_REFERENCE = "llama-partial-ignored-synthetic"
CASES = [
    pytest.param(case, case[spelling], id=f"{case['case']}-{spelling[7:]}")
    for case in DATA["cases"]
    for spelling in ("config_legacy", "config_v5")
    if case[spelling] is not None
]


def test_all_cases_are_here():
    assert len(DATA["cases"]) == 72
    assert len(CASES) == 141


@pytest.mark.parametrize(("case", "config"), CASES)
def test_frequencies(case, config):
    spec = RopeSpec.from_hf_config(config, case["layer_type"])
    inv_freq, factor, multiplier = spec.frequencies(case["seq_len"])
    want = np.array(case["inv_freq_float64"])
    if case["case"] == IGNORED_BY_THE_REFERENCE:
        want = 10000.0 ** -(np.arange(16) / 16)
    assert inv_freq.dtype == np.float64
    assert len(inv_freq) == len(want)
    np.testing.assert_array_equal(inv_freq == 0, want == 0)
    np.testing.assert_allclose(inv_freq, want, rtol=1e-12, atol=0)
    if case["case"] != IGNORED_BY_THE_REFERENCE:
        np.testing.assert_allclose(inv_freq, case["inv_freq"], rtol=1e-6, atol=0)
        assert spec.head_dim == case["head_dim"]
    assert factor == pytest.approx(case["attention_factor"], rel=1e-7)
    latent = case["model_type"].startswith("deepseek")
    assert (multiplier > 1) == latent


@pytest.mark.parametrize(("case", "config"), CASES)
def test_config_round_trip(case, config):
    spec = RopeSpec.from_hf_config(config, case["layer_type"])
    written = json.dumps(spec.to_hf_config())
    back = RopeSpec.from_hf_config(json.loads(written))
    assert back == spec
    assert hash(back) == hash(spec)
    assert json.dumps(back.to_hf_config()) == written
    assert RopeSpec.from_plain(json.loads(json.dumps(spec.to_plain()))) == spec


def test_both_spellings_mean_the_same():
    for case in DATA["cases"]:
        if case["config_legacy"] is not None:
            old, new = (
                RopeSpec.from_hf_config(case[c], case["layer_type"])
                for c in ("config_legacy", "config_v5")
            )
            assert old == new, case["case"]


@pytest.mark.parametrize("case", DATA["rejected"], ids=lambda c: c["case"])
def test_rejected(case):
    config = case["config_legacy"]
    if case["case"] != "phi3-su-original-outside-dict":
        with pytest.raises(ValueError, match=r"factor|even"):
            RopeSpec.from_hf_config(config)
        return
    spec = RopeSpec.from_hf_config(config)  # the original length beside the dict is clear
    assert spec.scaling.original_max_position_embeddings == 4096
    plain = RopeSpec(head_dim=96).frequencies()[0]
    np.testing.assert_array_equal(spec.frequencies(4096)[0], plain)
    np.testing.assert_array_equal(spec.frequencies(4097)[0], plain / 2)


def test_reference_ladder_rounds_as_the_reference():
    """Bit-equal float32 frequencies, but for the last bit of a few powers."""
    same = total = 0
    for case in DATA["cases"]:
        if case["rope_type"] == "default" and case["case"] != IGNORED_BY_THE_REFERENCE:
            spec = RopeSpec.from_hf_config(case["config_v5"], case["layer_type"])
            got = reference_ladder(spec.theta, 2 * len(case["inv_freq"]))
            want = np.array(case["inv_freq"], np.float32)
            assert np.abs(got.view(np.int32) - want.view(np.int32)).max() <= 2
            same, total = same + (got == want).sum(), total + len(want)
    assert same / total > 0.9
