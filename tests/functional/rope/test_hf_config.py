"""The config reader: every spelling, and what it refuses."""

import json

import numpy as np
import pytest

from flax_pos.functional.rope import RopeSpec, Yarn

SMALL = {"head_dim": 8, "rope_theta": 1e4, "max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def frequencies(config, layer_type=None, seq_len=None):
    return RopeSpec.from_hf_config(config, layer_type).frequencies(seq_len)[0]


def scaled(**rope):
    return {**SMALL, "rope_scaling": rope}


# Reports ------------------------------------------------------------------------------------------


def test_explicit_head_dim_wins():
    config = {"hidden_size": 8, "num_attention_heads": 2, "head_dim": 6}
    np.testing.assert_allclose(frequencies(config), [1, 0.0464159, 0.0021544], rtol=2e-5)


def test_partial_factor_survives_a_round_trip():
    config = {
        "model_type": "gpt_neox", "hidden_size": 64, "num_attention_heads": 4,
        "rotary_pct": 0.5, "rotary_emb_base": 25000,
    }  # fmt: skip
    spec = RopeSpec.from_hf_config(config)
    assert (spec.partial_rotary_factor, spec.theta) == (0.5, 25000)
    once = json.dumps(spec.to_hf_config())
    again = RopeSpec.from_hf_config(json.loads(once))
    assert again == spec
    assert json.dumps(again.to_hf_config()) == once
    # Merged into the file it came from, it says the same a second time.
    assert RopeSpec.from_hf_config({**config, **spec.to_hf_config()}) == spec


def test_base_inside_the_rope_dict():
    config = {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    assert frequencies(config)[1] == pytest.approx(0.1939227, rel=1e-6)


def test_both_names_of_the_type():
    want = frequencies(SMALL) / 2
    for rope in (
        {"type": "linear", "factor": 2.0},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "linear", "type": "linear", "factor": 2.0},
    ):
        np.testing.assert_array_equal(frequencies(scaled(**rope)), want)
    with pytest.raises(ValueError, match="rope_type 'linear' and type 'dynamic' differ"):
        RopeSpec.from_hf_config(scaled(rope_type="linear", type="dynamic", factor=2.0))
    with pytest.raises(ValueError, match="rope_type 'default' has no key 'factor'"):
        RopeSpec.from_hf_config(scaled(factor=2.0))
    assert RopeSpec.from_hf_config(scaled()) == RopeSpec.from_hf_config(SMALL)


def test_su_is_longrope():
    factors = {"short_factor": [1, 2, 3, 4], "long_factor": [2, 4, 6, 8]}
    old, new, phi = (
        RopeSpec.from_hf_config(
            scaled(**{key: name}, **factors, original_max_position_embeddings=64)
        )
        for key, name in (("type", "su"), ("rope_type", "longrope"), ("type", "yarn"))
    )
    assert old == new == phi
    assert old.frequencies(65)[1] == pytest.approx(np.sqrt(1 + np.log(8) / np.log(64)))


def test_scaling_is_used():
    got = frequencies(scaled(**LLAMA3))
    np.testing.assert_allclose(got, [1, 0.0130423, 0.00125, 0.000125], rtol=1e-5)


def test_unknown_type():
    with pytest.raises(ValueError, match="unknown rope_type 'spiral'; known: default, dynamic"):
        RopeSpec.from_hf_config(scaled(rope_type="spiral", factor=2.0))
    with pytest.raises(ValueError, match="rope_type 'yarn' needs the key 'factor'"):
        RopeSpec.from_hf_config(scaled(rope_type="yarn"))


def test_base_and_scaling_by_layer_type():
    config = {
        "model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }  # fmt: skip
    far = 12 * frequencies(config, "full_attention")[0]
    near = 12 * frequencies(config, "sliding_attention")[0]
    np.testing.assert_allclose([np.cos(far), np.sin(far)], [0.07074, 0.99750], atol=1e-5)
    np.testing.assert_allclose([np.cos(near), np.sin(near)], [0.84385, -0.53657], atol=1e-5)


# Where the reference errs ------------------------------------------------------------------------


def test_legacy_type_key_of_gemma3():
    config = {"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}}
    assert frequencies(config, "full_attention")[0] == 1 / 8


def test_truncate_in_a_nested_dict():
    yarn = {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256,
        "truncate": False,
    }  # fmt: skip
    config = {
        "head_dim": 16, "layer_types": ["full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": yarn, "sliding_attention": {"rope_theta": 1e4}},
    }  # fmt: skip
    spec = RopeSpec.from_hf_config(config, "full_attention")
    assert isinstance(spec.scaling, Yarn)
    assert spec.scaling.truncate is False
    assert spec.frequencies()[0][1] == pytest.approx(0.2539723, rel=1e-6)


@pytest.mark.parametrize("rope_type", ["yarn", "dynamic", "longrope", "linear", "llama3"])
def test_head_dim_none_falls_back(rope_type):
    extra = {
        "yarn": {"factor": 2.0},
        "dynamic": {"factor": 2.0},
        "linear": {"factor": 2.0},
        "llama3": {"factor": 2.0, "low_freq_factor": 1, "high_freq_factor": 4},
        "longrope": {"short_factor": [1] * 4, "long_factor": [2] * 4},
    }[rope_type]
    config = {
        "model_type": "mixtral", "hidden_size": 32, "num_attention_heads": 4, "head_dim": None,
        "rope_scaling": {"rope_type": rope_type, **extra},
    }  # fmt: skip
    assert len(frequencies(config)) == 4


def test_both_rope_dicts_are_merged():
    config = {
        "head_dim": 8,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5},
        "rope_scaling": {"factor": 2.0, "type": "linear"},
    }
    np.testing.assert_allclose(frequencies(config), 5e5 ** -(np.arange(4) / 4) / 2)
    config["rope_scaling"]["rope_theta"] = 1e4
    with pytest.raises(ValueError, match=r"'rope_theta' is 10000.0 in rope_scaling and 500000.0"):
        RopeSpec.from_hf_config(config)


def test_a_layer_type_of_none_has_no_rope():
    config = {
        "model_type": "gemma3_text",
        "rope_parameters": {"full_attention": None, "sliding_attention": {"rope_theta": 1e4}},
    }
    with pytest.raises(ValueError, match="'full_attention' of this config has no rotary"):
        RopeSpec.from_hf_config(config, "full_attention")
    assert RopeSpec.from_hf_config(config).theta == 1e4


def test_llama_honours_the_partial_factor():
    config = {"model_type": "llama", **SMALL, "partial_rotary_factor": 0.5}
    assert len(frequencies(config)) == 2


def test_phi3_original_length_beside_the_dict():
    config = {
        "model_type": "phi3", "head_dim": 8, "max_position_embeddings": 512,
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "su", "short_factor": [1] * 4, "long_factor": [2] * 4},
    }  # fmt: skip
    spec = RopeSpec.from_hf_config(config)
    assert spec.scaling.original_max_position_embeddings == 64
    assert spec.scaling.factor == 8


# Spellings ---------------------------------------------------------------------------------------


def test_multimodal_files_are_read_through():
    text = {"model_type": "llama", **SMALL}
    want = RopeSpec.from_hf_config(text)
    for config in ({"model_type": "llava", "text_config": text}, {"text_config": text}):
        assert RopeSpec.from_hf_config(config) == want


def test_zero_betas_mean_the_default():
    spec = RopeSpec.from_hf_config(scaled(type="yarn", factor=2, beta_fast=0, beta_slow=0))
    assert (spec.scaling.beta_fast, spec.scaling.beta_slow) == (32, 1)


def test_four_axes_of_hunyuan():
    rope = {"type": "xdrope", "alpha": 4.0, "xdrope_section": [1, 1, 1, 1]}
    spec = RopeSpec.from_hf_config({"model_type": "hunyuan_vl", **SMALL, "rope_scaling": rope})
    assert spec.axes.sections == (1, 1, 1, 1)
    assert spec.scaling.rope_type == "ntk_alpha"


def test_layouts_said_by_the_config():
    layout = lambda **keys: RopeSpec.from_hf_config({**SMALL, **keys}).layout
    assert layout() == "half"
    assert layout(rope_interleaved=True) == "interleaved"
    assert layout(rope_interleave=True) == "interleaved_in_half_out"
    assert layout(model_type="deepseek_v3", rope_interleave=False) == "half"


def test_alibi_is_not_rope():
    with pytest.raises(ValueError, match="no rotary embedding"):
        RopeSpec.from_hf_config({"model_type": "falcon", "alibi": True})


def test_layer_type_must_be_chosen_where_layers_differ():
    with pytest.raises(ValueError, match="layers differ; give layer_type, one of sliding_attent"):
        RopeSpec.from_hf_config({"model_type": "gemma3_text"})
    with pytest.raises(ValueError, match="'chunked_attention' is not in this config"):
        RopeSpec.from_hf_config({"model_type": "gemma3_text"}, "chunked_attention")
    assert RopeSpec.from_hf_config(SMALL, "full_attention") == RopeSpec.from_hf_config(SMALL)


# Refused -----------------------------------------------------------------------------------------

REFUSED = [
    (scaled(type="linear"), "'linear' needs the key 'factor'"),
    (scaled(type="linear", factor=None), "'linear' needs the key 'factor'"),
    (scaled(type="linear", factor="2"), "factor must be a number, got '2'"),
    (scaled(type="linear", factor=0.5), "factor must be at least 1"),
    (scaled(type="linear", factor=2, beta=1), "rope_type 'linear' has no key 'beta'"),
    (scaled(type=7, factor=2), "type must be a string, got 7"),
    (scaled(type="yarn", factor=2, beta_fast=1, beta_slow=32), "beta_fast must not be below"),
    (scaled(type="yarn", factor=2, attention_factor=-1), "attention_factor must be above 0"),
    (scaled(type="longrope", short_factor=[1], long_factor=[1]), "one number per pair, 4, got 1"),
    (scaled(**{**LLAMA3, "high_freq_factor": 0.5}), "high_freq_factor must not be below"),
    ({"head_dim": 2, **{k: v for k, v in scaled(type="dynamic", factor=2).items()
      if k != "head_dim"}}, "rotary width above 2"),
    ({**SMALL, "partial_rotary_factor": 1.5}, "partial_rotary_factor must be at most 1"),
    ({**SMALL, "partial_rotary_factor": 0}, "partial_rotary_factor must be above 0"),
    ({**SMALL, "rotary_dim": 3}, "rotary width must be even"),
    ({**SMALL, "rotary_dim": 10}, "rotary_dim 10 is above head_dim 8"),
    ({**SMALL, "rotary_dim": 4, "partial_rotary_factor": 1.0}, "contradict each other"),
    ({**SMALL, "rotary_pct": 0.5, "partial_rotary_factor": 0.25}, "given twice with different"),
    ({**SMALL, "rotary_emb_base": 5e5}, "rope_theta is given twice"),
    ({**SMALL, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta is given twice"),
    ({**SMALL, "rope_theta": 0}, "theta must be positive"),
    ({**SMALL, "rope_ratio": 2.0}, "unknown key 'rope_ratio' in the config"),
    ({**SMALL, "rope_scaling": "linear"}, "rope_scaling must be a mapping"),
    ({**SMALL, "rope_interleave": "yes"}, "rope_interleave must be true or false"),
    ({**SMALL, "head_dim": 7}, "rotary width must be even"),
    ({"rope_theta": 1e4}, "neither head_dim nor hidden_size"),
    ({"hidden_size": 30, "num_attention_heads": 4}, "30 is not a multiple of num_attention_heads"),
    ({"head_dim": 8, "rope_scaling": {"type": "yarn", "factor": 2}},
     "needs max_position_embeddings, which the config lacks"),
    ({"model_type": "no_such_model", "head_dim": 8}, "default of model_type 'no_such_model'"),
    ({"model_type": "qwen2_vl", "head_dim": 64}, r"sections \(16, 24, 24\) sum to 64 pairs"),
    ({"model_type": "llama", "hidden_size": -4}, "hidden_size must be a whole number"),
    ({**SMALL, "rope_parameters": {"full_attention": {}, "factor": 2}}, "mixes layer types"),
    ({**SMALL, "rope_parameters": {"odd_attention": {}}}, "unknown layer type 'odd_attention'"),
    ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1e4}},
     "needs one entry for each of sliding_attention, full_attention"),
    ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": {}}},
     "no entry for the layer type 'sliding_attention'"),
    ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": -8}},
     r"factor must be at least 1, got -8.0 \(layer type 'full_attention'\)"),
    ({"model_type": "hunyuan_v1_dense", "head_dim": 8,
      "rope_scaling": {"type": "dynamic", "alpha": 4.0, "factor": 2.0}}, "alpha and a factor"),
    ({"model_type": "phi3", "head_dim": 8, "original_max_position_embeddings": 64, "rope_scaling":
      {"type": "su", "short_factor": [1] * 4, "long_factor": [1] * 4,
       "original_max_position_embeddings": 32}}, "original_max_position_embeddings is given twice"),
    ({"model_type": "mistral4", "head_dim": 128, "partial_rotary_factor": 0.25},
     "contradict each other"),
    ({**SMALL, "rope_spec": {"lerned": True}}, "a RopeSpec has no key 'lerned'"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused(config, message):
    layer_type = "full_attention" if config.get("model_type") == "gemma3_text" else None
    with pytest.raises(ValueError, match=message):
        RopeSpec.from_hf_config(config, layer_type)


def test_refused_types():
    with pytest.raises(TypeError, match="config must be a mapping"):
        RopeSpec.from_hf_config("config.json")
    with pytest.raises(TypeError, match="layer_type must be a string"):
        RopeSpec.from_hf_config(SMALL, 0)


def test_reading_leaves_the_config_alone():
    config = {"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}}
    before = json.dumps(config)
    RopeSpec.from_hf_config(config, "full_attention")
    assert json.dumps(config) == before
