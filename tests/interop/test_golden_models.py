"""Twenty tiny models against the reference: logits, inputs past the original length, and greedy
generation with the cache and without."""

import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos.interop import load_pretrained, save_pretrained
from flax_pos.interop.jsonfile import read_json
from flax_pos.interop.safetensors_files import SafetensorsFiles
from flax_pos.nnx import generate

TOLERANCE = 1e-4
GENERATED_BY_DEFAULT = ("gpt2", "gemma2", "llama_dynamic", "phi3_longrope", "deepseek_v3")
GENERATED = [
    name if name in GENERATED_BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow)
    for name in golden.NAMES
]


def test_all_twenty_are_here():
    assert len(golden.NAMES) == 20


@pytest.mark.parametrize(
    ("name", "scan_layers"),
    [(name, False) for name in golden.NAMES] + [(name, True) for name in GENERATED_BY_DEFAULT],
)
def test_logits(name, scan_layers):
    model, want = load_pretrained(golden.DIRECTORY / name, scan_layers=scan_layers), golden.io(name)
    mask = golden.mask_of(want)
    # The reference counts padding in where it is given no positions, unless stored otherwise.
    expected = want.get("logits_with_position_ids", want["logits"])
    positions = None
    if name == "llama4_text":
        # The reference's query temperature counts slots, padding included, so that a padded row is
        # not what it is alone; it is here, unless the slots are passed as positions.
        positions = jnp.broadcast_to(jnp.arange(mask.shape[1]), mask.shape)
    forward = jax.jit(lambda model, ids, mask, at: model(ids, mask=mask, positions=at))
    got = np.asarray(forward(model, want["input_ids"], mask, positions))
    seen = np.asarray(mask)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[seen], expected[seen], atol=TOLERANCE, rtol=0)


def test_padding_does_not_count_for_the_query_temperature_of_llama4():
    model, want = load_pretrained(golden.DIRECTORY / "llama4_text"), golden.io("llama4_text")
    ids, mask = jnp.asarray(want["input_ids"]), golden.mask_of(want)
    row = int(np.argmin(mask.sum(-1)))
    start = int(np.argmax(mask[row]))
    assert start > 0
    run = jax.jit(lambda model, ids, mask: model(ids, mask=mask))
    alone = run(model, ids[row : row + 1, start:], None)[0]
    got = run(model, ids, mask)[row, start:]
    np.testing.assert_allclose(got, alone, atol=1e-5)
    # It matters here: the reference's own numbers are others.
    expected = want.get("logits_with_position_ids", want["logits"])[row, start:]
    assert np.abs(np.asarray(alone) - expected).max() > 1e-3


@pytest.mark.parametrize("name", golden.NAMES)
def test_logits_past_the_original_length(name):
    model, want = load_pretrained(golden.DIRECTORY / name), golden.io(name)
    got = jax.jit(lambda model, ids: model(ids))(model, want["long_input_ids"])
    np.testing.assert_allclose(got, want["long_logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_ids(name):
    """Where the reference's cache leaves keys rotated for another length, its ids without the
    cache are the right ones."""
    model, want = load_pretrained(golden.DIRECTORY / name), golden.io(name)
    prompt, mask = jnp.asarray(want["input_ids"]), golden.mask_of(want)
    right = want["generated_ids_without_cache"]
    new = right.shape[1] - prompt.shape[1]
    cached = generate(model, prompt, mask=mask, max_new_tokens=new)
    np.testing.assert_array_equal(cached, right)

    step = jax.jit(lambda model, ids, mask: model(ids, mask=mask))
    ids = jnp.pad(prompt, ((0, 0), (0, new)))
    mask = jnp.pad(mask, ((0, 0), (0, new)))
    for at in range(prompt.shape[1], right.shape[1]):
        best = step(model, ids, mask)[:, at - 1].argmax(-1)
        ids, mask = ids.at[:, at].set(best), mask.at[:, at].set(True)
    np.testing.assert_array_equal(ids, right)


@pytest.mark.parametrize("scan_layers", [False, True], ids=["apart", "stacked"])
@pytest.mark.parametrize("name", golden.NAMES)
def test_saving_gives_the_same_files_back(tmp_path, name, scan_layers):
    source = golden.DIRECTORY / name
    save_pretrained(load_pretrained(source, scan_layers=scan_layers), tmp_path)
    want, got = SafetensorsFiles(source), SafetensorsFiles(tmp_path)
    assert set(got) == set(want)
    for tensor in want:
        assert got[tensor].dtype == want[tensor].dtype
        assert got[tensor].shape == want[tensor].shape
        assert got[tensor].tobytes() == want[tensor].tobytes()
    assert read_json(tmp_path / "config.json") == read_json(source / "config.json")
