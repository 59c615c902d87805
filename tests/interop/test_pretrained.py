import json
import shutil

import golden
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_pos.interop import CheckpointError, load_pretrained, save_pretrained
from flax_pos.interop.jsonfile import read_json
from flax_pos.interop.safetensors_files import SafetensorsFiles, write_safetensors

IDS = jnp.array([[3, 1, 4, 1, 5]])
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def checkpoint(tmp_path):
    """A function that makes a changed copy of a golden checkpoint."""

    def make(name="llama_default", *, config=None, tensors=None, drop=(), rename=lambda n: n):
        source, target = golden.DIRECTORY / name, tmp_path / "changed"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        values = {**read_json(source / "config.json"), **(config or {})}
        values = {key: value for key, value in values.items() if key not in drop}
        (target / "config.json").write_text(json.dumps(values))
        files = {n: a for n, a in SafetensorsFiles(source).items() if n not in drop}
        write_safetensors(target, {rename(n): a for n, a in {**files, **(tensors or {})}.items()})
        return target

    return make


def tensor(name: str, model="llama_default") -> np.ndarray:
    return SafetensorsFiles(golden.DIRECTORY / model)[name]


# Tied heads ---------------------------------------------------------------------------------------


def test_flag_and_file_agree(checkpoint):
    table = tensor(EMBEDDING)
    cases = [
        ({"config": {"tie_word_embeddings": True}, "drop": [HEAD]}, True),
        ({"config": {"tie_word_embeddings": True}, "tensors": {HEAD: table}}, True),
        ({"drop": ["tie_word_embeddings", HEAD]}, True),
        ({"drop": ["tie_word_embeddings"]}, False),
        ({"tensors": {HEAD: table}}, False),  # the flag says untied, and so they stay
        ({}, False),
    ]
    for changes, tied in cases:
        assert load_pretrained(checkpoint(**changes)).config.tied == tied


def test_flag_and_file_contradict(checkpoint):
    differs = checkpoint(config={"tie_word_embeddings": True})
    with pytest.raises(CheckpointError, match=r"tie_word_embeddings, but 'lm_head.weight' differs"):
        load_pretrained(differs)
    kept = load_pretrained(differs, tied=False)
    np.testing.assert_array_equal(kept.embed.head[...], tensor(HEAD).T)
    assert load_pretrained(differs, tied=True).embed.head is None
    missing = checkpoint(drop=[HEAD])
    with pytest.raises(CheckpointError, match="the head is missing, or it is the embedding"):
        load_pretrained(missing)
    assert load_pretrained(missing, tied=True).config.tied
    with pytest.raises(CheckpointError, match="no tensor"):
        load_pretrained(missing, tied=False)


def test_flag_of_a_nested_config(checkpoint):
    path = checkpoint(drop=[HEAD])
    inner = {**read_json(path / "config.json"), "tie_word_embeddings": True}
    (path / "config.json").write_text(json.dumps({"model_type": "some_vl", "text_config": inner}))
    assert load_pretrained(path).config.tied


def test_a_tied_model_has_one_tensor_under_either_name(checkpoint, tmp_path):
    tied = {"tie_word_embeddings": True}
    model = load_pretrained(checkpoint(config=tied, drop=[HEAD]))
    save_pretrained(model, tmp_path / "saved")
    assert HEAD not in SafetensorsFiles(tmp_path / "saved")
    again = load_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(again(IDS), model(IDS))
    only_head = checkpoint(config=tied, tensors={HEAD: tensor(EMBEDDING)}, drop=[EMBEDDING])
    np.testing.assert_array_equal(load_pretrained(only_head)(IDS), model(IDS))


# Names and what is left over ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama_default", "model.layers.{}.self_attn.rotary_emb.inv_freq"),
        ("llama_default", "model.rotary_emb.inv_freq"),
        ("gpt_neox", "gpt_neox.layers.{}.attention.rotary_emb.inv_freq"),
        ("falcon_rope", "transformer.h.{}.self_attention.rotary_emb.inv_freq"),
        ("gptj", "transformer.h.{}.attn.embed_positions"),
    ],
)
def test_stored_frequencies_are_recomputed(checkpoint, model, name):
    stale = {name.format(layer): np.zeros(4, np.float32) for layer in range(2)}
    with_stale = load_pretrained(checkpoint(model, tensors=stale))
    np.testing.assert_array_equal(with_stale(IDS), load_pretrained(golden.DIRECTORY / model)(IDS))


def test_masks_stored_by_old_gpt2_files_are_passed_over(checkpoint):
    masks = {"transformer.h.0.attn.bias": np.ones((1, 1, 8, 8), np.float32)}
    load_pretrained(checkpoint("gpt2", tensors=masks))


@pytest.mark.parametrize("prefix", ["", "language_model.model.", "base."])
def test_names_may_have_another_prefix(checkpoint, tmp_path, prefix):
    rename = lambda name: name.replace("transformer.", prefix)
    path = checkpoint("gpt2", rename=rename)
    model = load_pretrained(path)
    np.testing.assert_array_equal(model(IDS), load_pretrained(golden.DIRECTORY / "gpt2")(IDS))
    save_pretrained(model, tmp_path / "saved")
    assert set(SafetensorsFiles(tmp_path / "saved")) == set(SafetensorsFiles(path))


def test_a_text_model_inside_of_another(checkpoint):
    rename = lambda name: f"language_model.{name}"
    vision = {"tower.patch.weight": np.ones((2, 2), np.float32)}
    path = checkpoint(rename=rename)
    inner = read_json(path / "config.json")
    (path / "config.json").write_text(json.dumps({"model_type": "vl", "text_config": inner}))
    write_safetensors(path, {**SafetensorsFiles(path), **vision})
    np.testing.assert_array_equal(load_pretrained(path)(IDS), load_pretrained(checkpoint())(IDS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop": ["model.norm.weight"]}, r"has no tensor 'model.norm.weight'"),
        ({"tensors": {"model.extra.weight": np.ones(3, np.float32)}}, "nothing takes the tensor"),
        (
            {"tensors": {"model.norm.weight": np.ones(3, np.float32)}},
            r"'model.norm.weight' has shape \(3,\), but the config makes it \(32,\)",
        ),
        ({"tensors": {"model.norm.weight": np.ones(32, np.int32)}}, "holds int32"),
        ({"drop": [EMBEDDING, HEAD]}, "has no tensor 'embed_tokens.weight'"),
        ({"config": {"model_type": "martian"}}, "'martian' is not supported; supported: .*gpt2"),
        ({"drop": ["model_type"]}, "lacks the key 'model_type'"),
        ({"drop": ["hidden_size"]}, "lacks the key 'hidden_size'"),
        ({"config": {"surprise": 3}}, r"nothing here reads the key 'surprise' \(value 3\)"),
        (
            {"config": {"hidden_act": "martian"}},
            "hidden_activation='martian' is unknown; known: gelu",
        ),
        ({"config": {"num_attention_heads": 5}}, "does not divide heads=5|not a multiple"),
        ({"config": {"num_hidden_layers": 3}}, r"has no tensor 'model.layers.2"),
        ({"config": {"num_hidden_layers": 2**30}}, "layers=1073741824, but at most"),
        ({"config": {"num_attention_heads": 2**30}}, "heads=1073741824, but at most"),
        ({"config": {"vocab_size": 98}}, "vocab_rows=97 is less than vocab_size=98"),
        ({"config": {"vocab_size": -1}}, "vocab_size=-1 must be a whole number"),
        ({"config": {"rms_norm_eps": "small"}}, "rms_norm_eps='small' must be a number"),
        ({"config": {"attention_bias": 1}}, "attention_bias=1 must be true or false"),
        ({"config": {"rope_parameters": {"rope_type": "spiral"}}}, "spiral"),
        ({"config": {"rope_parameters": {"rope_type": "yarn"}}}, "factor"),
    ],
)
def test_what_does_not_fit_is_named(checkpoint, changes, message):
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(checkpoint(**changes))


def test_an_unread_key_can_be_passed_over(checkpoint):
    load_pretrained(checkpoint(config={"surprise": 3}), ignore_keys=["surprise"])


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("deepseek_v3", {"first_k_dense_replace": 1}, "layers from 1 on are mixtures of experts"),
        ("llama4_text", {"moe_layers": [1]}, r"layers \[1\] are mixtures of experts"),
        ("../families/gpt_oss", {"num_local_experts": 4}, "mixtures of 4 experts"),
        ("../families/gpt_oss", {"num_experts_per_tok": 2}, "num_experts_per_tok=2"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("mpt", {"attn_config": {"alibi": False}}, "alibi=False is not supported"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "is not supported"),
        ("gemma2", {"use_bidirectional_attention": True}, "is not supported"),
    ],
)
def test_what_is_not_supported_is_refused(checkpoint, name, config, message):
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(checkpoint(name, config=config))


def test_synonyms_must_not_contradict(checkpoint):
    assert load_pretrained(checkpoint("gpt2", config={"hidden_size": 32})).config.width == 32
    with pytest.raises(CheckpointError, match=r"n_embd\|hidden_size are given as 32 and 64"):
        load_pretrained(checkpoint("gpt2", config={"hidden_size": 64}))


def test_missing_files_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot read .*config.json"):
        load_pretrained(tmp_path)


# Dtypes and rows ----------------------------------------------------------------------------------


def test_16_bit_weights_stay_as_they_are(checkpoint, tmp_path):
    half = {n: a.astype(jnp.bfloat16) for n, a in SafetensorsFiles(checkpoint()).items()}
    half["model.norm.weight"] = tensor("model.norm.weight")  # one of them in float32
    path = checkpoint(tensors=half)
    model = load_pretrained(path)
    assert model.config.dtype == model.config.param_dtype == "bfloat16"
    assert model.norm.scale.dtype == jnp.float32
    assert model(IDS).dtype == jnp.float32
    save_pretrained(model, tmp_path / "saved")
    saved = SafetensorsFiles(tmp_path / "saved")
    assert all(saved[n].tobytes() == a.tobytes() for n, a in half.items())
    wide = load_pretrained(path, dtype="float32", param_dtype="float32")
    assert {str(p.dtype) for _, p in nnx.to_flat_state(nnx.state(wide))} == {"float32"}


@pytest.mark.parametrize("name", ["gemma2", "../families/gemma3"])
def test_gemma_rounds_the_scale_of_its_embedding(name):
    model = load_pretrained(golden.DIRECTORY / name, dtype="bfloat16")
    rows = model.embed.embedding[...][IDS].astype(jnp.bfloat16)
    rounded = rows * jnp.bfloat16(32**0.5)
    np.testing.assert_array_equal(model.embed(IDS), rounded)
    once = (rows.astype(jnp.float32) * jnp.float32(32**0.5)).astype(jnp.bfloat16)
    assert (rounded != once).any()


def test_layers_of_different_dtypes_cannot_be_stacked(checkpoint):
    name = "model.layers.1.mlp.up_proj.weight"
    path = checkpoint(tensors={name: tensor(name).astype(jnp.bfloat16)})
    load_pretrained(path)
    with pytest.raises(CheckpointError, match=r"mlp.up.kernel as .*scan_layers=False"):
        load_pretrained(path, scan_layers=True)


def test_float64_is_not_rounded_unasked(checkpoint):
    path = checkpoint(tensors={EMBEDDING: tensor(EMBEDDING).astype(np.float64)})
    with pytest.raises(CheckpointError, match="float64"):
        load_pretrained(path)
    load_pretrained(path, param_dtype="float32")


def test_surplus_rows_are_never_seen_nor_written(checkpoint, tmp_path):
    pad = lambda name: np.concatenate([tensor(name), np.full((3, 32), 9, np.float32)])
    path = checkpoint(tensors={EMBEDDING: pad(EMBEDDING), HEAD: pad(HEAD)})
    model = load_pretrained(path)
    assert model(IDS).shape[-1] == 97
    np.testing.assert_array_equal(model(IDS), load_pretrained(checkpoint())(IDS))
    with pytest.raises(ValueError, match="98"):
        model(jnp.array([[98]]))
    save_pretrained(model, tmp_path / "saved")
    for name in (EMBEDDING, HEAD):
        np.testing.assert_array_equal(SafetensorsFiles(tmp_path / "saved")[name], tensor(name))
    assert load_pretrained(tmp_path / "saved").config.vocab_size == 97


# Saving -------------------------------------------------------------------------------------------


def test_rotary_settings_survive_both_ways(checkpoint, tmp_path):
    old = {"rotary_pct": 0.5, "rotary_emb_base": 25000}
    path = checkpoint("gpt_neox", config=old, drop=["rope_parameters"])
    model = load_pretrained(path)
    assert (model.scheme.spec.partial_rotary_factor, model.scheme.spec.theta) == (0.5, 25000)
    save_pretrained(model, tmp_path / "a")
    assert read_json(tmp_path / "a" / "config.json") == read_json(path / "config.json")


def test_many_files(tmp_path):
    model = load_pretrained(golden.DIRECTORY / "qwen3")
    save_pretrained(model, tmp_path, max_shard_bytes=20_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    np.testing.assert_array_equal(load_pretrained(tmp_path)(IDS), model(IDS))
