import numpy as np
import pytest

from flax_pos.lab.corpus import ByteTokenizer, id_dtype, pack_ids, read_corpus
from flax_pos.lab.errors import UserError
from flax_pos.lab.tasks.text import Text


def test_ids_keep_their_value_whatever_the_vocabulary():
    assert pack_ids([70000, 0, 128255], 128256).tolist() == [70000, 0, 128255]
    assert pack_ids([65535], 65536).dtype == np.uint16
    assert pack_ids([65535], 65537).dtype == np.uint32
    assert id_dtype(256) == np.uint8


def test_an_id_past_the_vocabulary_is_an_error():
    with pytest.raises(UserError, match="token id 70000 lies outside the vocabulary of 65536"):
        pack_ids([1, 70000], 65536)
    with pytest.raises(UserError, match="token id -1 lies outside"):
        pack_ids([-1, 2], 10)


def test_without_paths_it_is_the_documentation_of_python():
    corpus = read_corpus()
    assert corpus.vocab_size == 256
    assert corpus.ids.dtype == np.uint8
    assert 300_000 < corpus.ids.size == corpus.about["tokens"]
    assert "statement" in corpus.tokenizer.decode(corpus.ids[:20000].tolist())
    assert read_corpus().about["sha256"] == corpus.about["sha256"]


def test_files_and_folders(tmp_path):
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first é")
    (tmp_path / ".hidden").write_text("never")
    (tmp_path / "image.bin").write_bytes(b"\0\1")
    corpus = read_corpus([tmp_path])
    assert bytes(corpus.ids).decode() == "first é\n\nsecond"
    assert corpus.about["documents"] == 2
    assert corpus.about["skipped files"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the corpus is empty"),
        (b" \n ", "the corpus is empty"),
        (b"abc\0def", "is binary .NUL byte at offset 3."),
        (b"abc\xffdef", "is not UTF-8 text .byte 0xff at offset 3."),
    ],
)
def test_what_is_not_text_is_refused(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_corpus([path])


def test_missing_files(tmp_path):
    with pytest.raises(UserError, match="no data file"):
        read_corpus([tmp_path / "none.txt"])
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match="no tokenizer file"):
        read_corpus([tmp_path / "a.txt"], tmp_path / "none.json")
    with pytest.raises(UserError, match="is not a tokenizer file"):
        read_corpus([tmp_path / "a.txt"], tmp_path / "a.txt")


def test_a_tokenizer_file(tmp_path):
    import tokenizers

    words = {"[UNK]": 0, "one": 1, "two": 2, "far": 70000}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "a.txt").write_text("one two far one other")
    corpus = read_corpus([tmp_path / "a.txt"], tmp_path / "words.json")
    assert corpus.ids.tolist() == [1, 2, 70000, 1, 0]
    assert corpus.vocab_size == 70001  # the ids have holes: not the number of words
    assert corpus.ids.dtype == np.uint32


def test_a_corpus_shorter_than_a_window_says_which_part(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x" * 100)
    with pytest.raises(UserError, match="10 are held out, fewer than one window of 512"):
        Text(paths=(path,)).load()
    with pytest.raises(UserError, match="50 are for training, fewer than one window of 64"):
        Text(paths=(path,), held_out=0.5).load()


def test_bytes_round_trip():
    text = "naïve\n"
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text
