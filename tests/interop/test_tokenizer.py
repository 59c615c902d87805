import json

import pytest
from interop_files import MERGES, TOKENS, byte_pairs, write_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from flax_pos.interop import CheckpointError, load_tokenizer

TEXT = " the 12 ü<|end|>"


def test_gguf_byte_pairs(tmp_path):
    tokenizer = load_tokenizer(byte_pairs(tmp_path / "x.gguf"))
    got = tokenizer.encode(TEXT)
    assert got.tokens == ["Ġthe", "Ġ", "12", "Ġ", "Ã", "¼", "<|end|>"]
    assert got.ids[-1] == 0
    assert tokenizer.decode(got.ids) == " the 12 ü"  # control tokens are not text
    assert tokenizer.decode(got.ids, skip_special_tokens=False) == TEXT


def test_gguf_splits_differ_by_name(tmp_path):
    """SmolLM takes digits one by one; GPT-2 merges them."""
    tokenizer = load_tokenizer(byte_pairs(tmp_path / "x.gguf", pre="smollm"))
    assert tokenizer.encode("12").tokens == ["1", "2"]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("mpt", ["It", "'s", " 12345", ".!", " \u00fc", "(", "a"]),
        ("command-r", ["It", "'s", " ", *"12345", ".!", " \u00fc", "(", "a"]),
        # All punctuation that stands together, then words, then digits by threes.
        ("falcon", ["It", "'", "s", " ", "123", "45", ".!", " \u00fc", "(", "a"]),
        # A word ends at a space or a full stop, not at a digit or a quote.
        ("bloom", ["It's", " 12345", ".!", " \u00fc", "(", "a"]),
        ("glm4", ["It", "'s", " ", "123", "45", ".!", " \u00fc", "(a"]),
        ("falcon3", ["It", "'s", " ", "123", "45", ".!", " \u00fc", "(a"]),
        ("deepseek-r1-qwen", ["It", "'s", " ", *"12345", ".!", " \u00fc", "(a"]),
    ],
)
def test_gguf_pieces_of_each_family(tmp_path, pre, pieces):
    tokenizer = load_tokenizer(byte_pairs(tmp_path / "x.gguf", pre=pre))
    text = "It's 12345.! \u00fc(a"
    found = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in found] == pieces


def test_falcon_pieces_are_those_of_its_own_tokenizer(tmp_path):
    """As `tokenizer.json` of the Falcon models says it; it also parts a space from a number, which
    no merge of theirs joins."""
    own = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )
    text = "f(x) == $a1234+5, don't \u2014 \u201cso\u201d\n\n  x_1 ~`|^<> \u00e9t\u00e9 12"
    found = load_tokenizer(byte_pairs(tmp_path / "x.gguf", pre="falcon")).pre_tokenizer
    joined = lambda pieces: "|".join(piece for piece, _ in pieces).replace("\u0120|1", "\u01201")
    assert joined(found.pre_tokenize_str(text)) == joined(own.pre_tokenize_str(text))


def test_gguf_first_token(tmp_path):
    path = byte_pairs(tmp_path / "x.gguf", add_bos_token=True, bos_token_id=0)
    assert load_tokenizer(path).encode("he").tokens == ["<|end|>", "he"]


def test_gguf_sentence_pieces(tmp_path):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    words = ["▁", "a", "b", "c", "ab", "▁ab", "bc"]
    tokens = pieces + words
    scores = [0.0] * len(pieces) + [-9.0, -9.0, -9.0, -9.0, -1.0, -2.0, -0.5]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(words)
    path = write_tokenizer(
        tmp_path / "x.gguf", model="llama", tokens=tokens, scores=scores, token_type=kinds,
        bos_token_id=1,
    )  # fmt: skip
    tokenizer = load_tokenizer(path)
    # bc has the better score, so abc is a + bc; what has no piece becomes bytes.
    assert tokenizer.encode("ab abc é").tokens == [
        "<s>", "▁ab", "▁", "a", "bc", "▁", "<0xC3>", "<0xA9>",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("ab abc é").ids) == "ab abc é"


def test_directories(tmp_path):
    vocab = {token: i for i, token in enumerate(TOKENS)}
    merges = [tuple(merge.split()) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    tokenizer.save(str(whole / "tokenizer.json"))
    (parts / "vocab.json").write_text(json.dumps(vocab))
    (parts / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
    text = "the then 12 é,  x"
    want = tokenizer.encode(text).ids
    for place in (whole, whole / "tokenizer.json", parts):
        assert load_tokenizer(place).encode(text).ids == want


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "martian"}, "pre='martian' is unknown; known: gpt-2"),
        ({"merges": ["abc"]}, "merge 'abc' must join two tokens"),
        ({"merges": ["x y"]}, "not a byte-pair tokenizer"),
        ({"merges": [1]}, "merges must be strings"),
        ({"tokens": [1, 2]}, "tokens must be strings"),
        ({"token_type": [1]}, "one entry a token"),
        ({"model": "t5"}, "model='t5' is not readable"),
        ({"model": "llama", "scores": [0.5]}, "scores must have one number for each token"),
        ({"add_bos_token": True, "bos_token_id": 10**6}, "bos_token_id=1000000 is no token"),
        ({"add_bos_token": True}, "no tokenizer.ggml.bos_token_id"),
    ],
)
def test_bad_gguf_tokenizers(tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(byte_pairs(tmp_path / "x.gguf", **changes))


def test_bad_places(tmp_path):
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="SentencePiece"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "martian"}}')
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        load_tokenizer(tmp_path)
