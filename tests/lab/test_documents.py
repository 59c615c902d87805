"""Packed documents: in memory, from data sets in local files, and fed by Grain from files."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_pos.lab.corpus import read_tokenizer
from flax_pos.lab.documents import ABOUT, fill_store, read_texts
from flax_pos.lab.errors import UserError
from flax_pos.lab.tasks.documents import Documents
from flax_pos.nnx import CausalLM, ModelConfig
from flax_pos.scheme import get_scheme

SIZES = (5, 9, 2, 14, 7, 40, 30)
"""Bytes of the documents; the last two are held out."""


@pytest.fixture
def files(tmp_path):
    """A folder of documents, each of one letter and its own positions: `a0a1a2`."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, size in enumerate(SIZES):
        letter = chr(ord("a") + number)
        text = "".join(f"{letter}{i % 10}" for i in range(size))[:size]
        (folder / f"{number}.txt").write_text(text)
    return folder


def task_of(files, **settings) -> Documents:
    options = {"length": 8, "multiples": (1, 2), "windows": 3, "held_out": 0.6} | settings
    return Documents(paths=(files,), **options)


def test_no_label_and_no_segment_crosses_documents(files):
    task = task_of(files)
    loaded = task.load()
    batch = task.batch(loaded.data, jax.random.key(0), 200)
    train, document = loaded.data["train"], loaded.data["document"]
    assert document.tolist() == [d for d, size in enumerate(SIZES[:5]) for _ in range(size)]
    crossings = 0
    for ids, labels, weights, segments in zip(*map(np.asarray, batch), strict=True):
        start = next(
            s for s in range(train.size - 8)
            if (train[s : s + 9] == np.append(ids, labels[-1])).all()
        )  # fmt: skip
        own = document[start : start + 9]
        np.testing.assert_array_equal(weights, own[1:] == own[:-1])
        np.testing.assert_array_equal(np.diff(segments), np.diff(own[:-1]))
        assert segments[0] == 1
        crossings += (weights == 0).sum()
    assert crossings > 100


@pytest.mark.slow
def test_a_packed_document_is_as_if_alone(files):
    """Also where positions are absolute."""
    task = task_of(files)
    batch = task.batch(task.load().data, jax.random.key(1), 4)
    config = ModelConfig(vocab_size=256, width=8, layers=1, heads=2, max_len=16)
    model = CausalLM(config, get_scheme("sinusoidal")(), rngs=nnx.Rngs(0))
    packed = model(batch.ids, segments=batch.segments)
    segments, pieces = np.asarray(batch.segments), []
    for row, number in {(r, int(n)) for r in range(4) for n in segments[r]}:
        own = np.flatnonzero(segments[row] == number)
        pieces.append((row, own, np.resize(np.asarray(batch.ids)[row, own], 8)))
    assert len(pieces) > 4
    alone = model(
        jnp.asarray([ids for _, _, ids in pieces]),
        mask=jnp.asarray([np.arange(8) < own.size for _, own, _ in pieces]),
    )
    for (row, own, _), logits in zip(pieces, alone, strict=True):
        np.testing.assert_allclose(packed[row, own], logits[: own.size], atol=1e-5)


def test_test_windows_lie_inside_single_documents_that_are_held_out(files):
    task = task_of(files)
    loaded = task.load()
    assert loaded.data["held_out"].size == 70
    evaluation = task.evaluation(loaded)
    for ids, length in zip(evaluation.ids, evaluation.length, strict=True):
        letters = {chr(i) for i in ids[:length] if i >= ord("a")}
        assert len(letters) == 1
        assert letters <= {"f", "g"}
    assert task.long_text(loaded).size == 40
    with pytest.raises(UserError, match=r"window of 64 \+ 1 tokens \(the longest has 40\)"):
        task_of(files, multiples=(1, 8)).evaluation(loaded)


def test_grain_feeds_the_same_batches_whatever_ran_before(files, tmp_path):
    pytest.importorskip("grain")
    task = task_of(files, store=tmp_path / "store")
    loaded = task.load()
    assert isinstance(loaded.host["ids"], np.memmap)
    assert "train" not in loaded.data
    whole = task.feed(loaded, 3, 0, 6, 2)
    parts = [task.feed(loaded, 3, first, count, 2) for first, count in ((0, 1), (1, 3), (4, 2))]
    for name, array in whole.items():
        assert array.shape == (6, 2, 9)
        np.testing.assert_array_equal(array, np.concatenate([p[name] for p in parts]))
    assert (whole["fed ids"] != task.feed(loaded, 4, 0, 6, 2)["fed ids"]).any()
    # One epoch holds each of the four windows once.
    epoch = whole["fed ids"][:2].reshape(4, 9)
    every = {bytes(loaded.host["ids"][i : i + 9]) for i in range(0, 32, 8)}
    assert {bytes(window) for window in epoch} == every
    batch = task.batch({name: jnp.asarray(a[0]) for name, a in whole.items()}, None, 2)
    document = whole["fed document"][0]
    np.testing.assert_array_equal(batch.weights, document[:, 1:] == document[:, :-1])


def test_a_store_is_filled_once_and_never_taken_for_another(files, tmp_path):
    task = task_of(files, store=tmp_path / "store")
    about = task.load().about
    (files / "0.txt").write_text("changed, but the tokens are there already")
    assert task.load().about == about
    with pytest.raises(UserError, match="holds the tokens of other documents"):
        task_of(files / "0.txt", store=tmp_path / "store").load()
    (tmp_path / "store" / ABOUT).unlink()  # as a kill before the last write leaves it
    assert task.load().about != about


@pytest.mark.parametrize("mapped", [True, False])
def test_ids_past_16_bits_keep_their_value(tmp_path, mapped):
    import tokenizers

    words = {"[UNK]": 0, "one": 1, "far": 70000}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    key = {"paths": ["here"], "dataset": [""], "tokenizer": "words"}
    codec, texts = read_tokenizer(tmp_path / "words.json"), lambda: ["far one far", "one far"]
    for _ in range(2):  # filled, and then taken as it is
        store = fill_store(tmp_path / "store" if mapped else None, key, texts, codec)
        assert store.ids.tolist() == [70000, 1, 70000, 1, 70000]
        assert isinstance(store.ids, np.memmap) == mapped


def test_data_sets_in_local_files(files, tmp_path):
    pytest.importorskip("datasets")
    path = tmp_path / "rows.jsonl"
    rows = [{"body": f"document {i} " * (i + 1), "n": i} for i in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Documents(
        paths=(path,), dataset="json", column="body", length=8, multiples=(1,), held_out=0.3
    )
    loaded = task.load()
    assert loaded.about["documents"] == 6
    ids = np.concatenate([loaded.data["train"], loaded.data["held_out"]])
    assert bytes(ids.astype(np.uint8)).decode() == "".join(row["body"] for row in rows)
    with pytest.raises(UserError, match="no column 'text'; it has body, n"):
        list(read_texts((path,), "json", "", "train", "text"))
    with pytest.raises(UserError, match="cannot load data set 'json'"):
        list(read_texts((tmp_path / "none.jsonl",), "json", "", "train", "body"))
