"""Families and variants that the twenty golden models do not cover, against the same reference
(`tests/golden/make_families.py` made the files)."""

import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos.interop import load_pretrained, save_pretrained
from flax_pos.interop.families import FAMILIES, family_of
from flax_pos.interop.jsonfile import read_json
from flax_pos.interop.keys import Keys
from flax_pos.interop.safetensors_files import SafetensorsFiles

DIRECTORY = golden.DIRECTORY.parent / "families"
NAMES = sorted(path.name for path in DIRECTORY.iterdir())


def test_every_family_has_a_file():
    paths = (*(DIRECTORY / name for name in NAMES), *(golden.DIRECTORY / n for n in golden.NAMES))
    found = [family_of(Keys(read_json(path / "config.json"), path.name)) for path in paths]
    assert [family.types for family in FAMILIES if family not in found] == []


@pytest.mark.parametrize("name", NAMES)
def test_logits(name):
    model, want = load_pretrained(DIRECTORY / name), golden.io(name, DIRECTORY)
    mask = golden.mask_of(want)
    got = jax.jit(lambda model, ids, mask: model(ids, mask=mask))(model, want["input_ids"], mask)
    seen = np.asarray(mask)
    np.testing.assert_allclose(np.asarray(got)[seen], want["logits"][seen], atol=1e-4, rtol=0)
    got = jax.jit(lambda model, ids: model(ids))(model, want["long_input_ids"])
    np.testing.assert_allclose(got, want["long_logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_saving_gives_the_same_files_back(tmp_path, name):
    save_pretrained(load_pretrained(DIRECTORY / name), tmp_path)
    want, got = SafetensorsFiles(DIRECTORY / name), SafetensorsFiles(tmp_path)
    assert set(got) == set(want)
    for tensor in want:
        if ".router." in tensor:  # of a single expert: it changes nothing, as the logits show
            assert want[tensor].any()
            assert got[tensor].shape == want[tensor].shape
            assert not got[tensor].any()
        else:
            assert got[tensor].tobytes() == want[tensor].tobytes()
    assert read_json(tmp_path / "config.json") == read_json(DIRECTORY / name / "config.json")


def test_sinks_through_the_cache():
    model, want = load_pretrained(DIRECTORY / "gpt_oss"), golden.io("gpt_oss", DIRECTORY)
    assert np.abs(model.blocks[0].attention.sinks[...]).max() > 0.1
    ids = jnp.asarray(want["long_input_ids"])
    step = jax.jit(lambda model, ids, cache: model(ids, cache=cache))
    cache, pieces = model.init_cache(1, ids.shape[1]), []
    for at in range(0, ids.shape[1], 8):
        logits, cache = step(model, ids[:, at : at + 8], cache)
        pieces.append(logits)
    np.testing.assert_allclose(jnp.concatenate(pieces, 1), want["long_logits"], atol=1e-4)
