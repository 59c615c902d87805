"""Families and variants that the twenty golden models do not cover, against the same reference
(`tests/golden/make_families.py` made the files)."""

import golden
import jax
import numpy as np
import pytest

from flax_pos.interop import load_pretrained, save_pretrained
from flax_pos.interop.jsonfile import read_json
from flax_pos.interop.safetensors_files import SafetensorsFiles

DIRECTORY = golden.DIRECTORY.parent / "families"
NAMES = sorted(path.name for path in DIRECTORY.iterdir())


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
        assert got[tensor].tobytes() == want[tensor].tobytes()
    assert read_json(tmp_path / "config.json") == read_json(DIRECTORY / name / "config.json")
