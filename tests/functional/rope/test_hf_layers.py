"""Which rotary embedding, window and temperature each layer has."""

import pytest

from flax_pos.functional.rope import RopeSpec, Temperature, rope_layers

FULL, SLIDING = "full_attention", "sliding_attention"


def layers(model_type, count, **config):
    return rope_layers({"model_type": model_type, "num_hidden_layers": count, **config})


def test_two_bases():
    got = layers("gemma3_text", 12, sliding_window=512)
    assert [layer.layer_type for layer in got] == ([SLIDING] * 5 + [FULL]) * 2
    assert [layer.spec.theta for layer in got] == ([1e4] * 5 + [1e6]) * 2
    assert [layer.window for layer in got] == ([512] * 5 + [None]) * 2


def test_other_head_widths():
    got = layers("gemma4_text", 8)
    assert [layer.spec.head_dim for layer in got] == [256] * 5 + [512, 256, 512]


def test_global_layers_first():
    got = layers("modernbert", 7, global_attn_every_n_layers=3)
    assert [layer.spec.theta for layer in got] == [1.6e5, 1e4, 1e4, 1.6e5, 1e4, 1e4, 1.6e5]


def test_mimo_begins_with_a_full_layer():
    got = layers("mimo_v2_flash", 7)
    assert [layer.layer_type == FULL for layer in got] == [True, *[False] * 4, True, False]


@pytest.mark.parametrize("model_type", ["smollm3", "llama4_text", "mistral_large4_text"])
def test_nope_every_fourth(model_type):
    assert [layer.spec is None for layer in layers(model_type, 8)] == [
        False,
        False,
        False,
        True,
    ] * 2
    assert [layer.spec is None for layer in layers(model_type, 4, no_rope_layer_interval=2)] == [
        False, True, False, True,
    ]  # fmt: skip
    flags = layers(model_type, 4, no_rope_layers=[0, 1, 1, 0])  # 1 is a layer with RoPE
    assert [layer.spec is None for layer in flags] == [True, False, False, True]


@pytest.mark.parametrize("model_type", ["cohere2", "exaone4", "afmoe"])
def test_nope_on_full_layers(model_type):
    got = layers(model_type, 4, sliding_window=4096)
    assert [layer.spec is None for layer in got] == [False, False, False, True]
    assert [layer.window for layer in got] == [4096] * 3 + [None]


def test_exaone_without_a_window_has_rope_everywhere():
    assert all(layer.spec for layer in layers("exaone4", 4, sliding_window=None))


def test_llama4_chunks_and_temperature():
    got = layers("llama4_text", 4, attention_chunk_size=256, floor_scale=128)
    assert [layer.chunk for layer in got] == [256] * 3 + [None]
    assert [layer.temperature for layer in got] == [None] * 3 + [Temperature(0.1, 128, 1)]
    plain = layers("llama4_text", 4, attn_temperature_tuning=False)
    assert not any(layer.temperature for layer in plain)


def test_ministral_temperature_on_every_layer():
    assert {layer.temperature for layer in layers("ministral3", 2)} == {Temperature(0.1, 16384, 0)}
    rope = {
        "type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64,
        "rope_theta": 1e6, "llama_4_scaling_beta": 0.2,
    }  # fmt: skip
    given = layers("ministral3", 2, rope_parameters=rope, max_position_embeddings=128)
    assert given[0].temperature == Temperature(0.2, 64, 0)


def test_windows_of_whole_models():
    assert {layer.window for layer in layers("mistral", 3, sliding_window=4096)} == {4096}
    assert {layer.window for layer in layers("mistral", 3, sliding_window=None)} == {None}
    assert {layer.window for layer in layers("qwen2", 3, sliding_window=4096)} == {None}


def test_deepseek_v4_layer_types():
    types = ["heavily_compressed_attention", "compressed_sparse_attention", SLIDING]
    got = layers("deepseek_v4", 3, layer_types=types)
    assert [layer.spec.theta for layer in got] == [1.6e5, 1.6e5, 1e4]


def test_models_without_rope():
    assert [layer.spec for layer in layers("gpt2", 2)] == [None, None]


def test_one_kind_of_layer():
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    got = rope_layers({**config, "n_layer": 3})
    assert [layer.spec for layer in got] == [RopeSpec.from_hf_config(config)] * 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama"}, "no num_hidden_layers"),
        ({"model_type": "llama", "num_hidden_layers": 2, "layer_types": [FULL]}, "1 entries for 2"),
        ({"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [1]}, "one entry per"),
        ({"model_type": "smollm3", "num_hidden_layers": 1, "no_rope_layers": [2]}, "0 and 1"),
        (
            {"model_type": "gemma3_text", "num_hidden_layers": 1, "layer_types": ["odd"]},
            "'odd' is not in this config",
        ),
    ],
)
def test_refused(config, message):
    with pytest.raises(ValueError, match=message):
        rope_layers(config)
