"""Tokenizers, by the `tokenizers` library: from `tokenizer.json`, from `vocab.json` and
`merges.txt`, or out of a GGUF file's metadata."""

import json
import os
from pathlib import Path
from typing import Any

from flax_pos.interop.chat import ChatTokenizer
from flax_pos.interop.errors import CheckpointError, require
from flax_pos.interop.gguf_file import GGUFFile
from flax_pos.interop.jsonfile import read_json, read_text

MAX_BYTES = 2**27
"""The largest tokenizer file that is read; those of 256 000 entries have a quarter of it."""
MAX_PIECE = 256
"""Characters of the longest SentencePiece token."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "gpt2": (_GPT2,),
    "olmo": (_GPT2,),
    "default": (_GPT2,),
    "mpt": (_GPT2,),
    "falcon": (r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9]{3}"),
    "bloom": (_BLOOM,),
    "command-r": (r"\p{N}", _GPT2),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "falcon3": (_LLAMA3,),
    "smaug-bpe": (_LLAMA3,),
    "dbrx": (_LLAMA3,),
    "chatglm-bpe": (_LLAMA3,),
    "glm4": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "stablelm2": (_QWEN2,),
}
"""How text is cut before byte pairs are merged, by the name that GGUF files give it
(`tokenizer.ggml.pre`): regular expressions, applied one after the other."""
_PURPOSE = "reading tokenizers"
_CONTROL, _USER_DEFINED = 3, 4


def load_tokenizer(path: str | os.PathLike) -> ChatTokenizer:
    """The tokenizer that belongs to a checkpoint.

    Args:
      path: a directory with `tokenizer.json` (or `vocab.json` and `merges.txt`, as GPT-2 has
        them), such a JSON file itself, or a GGUF file.

    Returns:
      All that a `tokenizers.Tokenizer` has, such as `encode(text).ids` and `decode(ids)`, and
      `apply_chat_template(messages)`.

    Raises:
      CheckpointError: no tokenizer there, or one that cannot be read.
      ImportError: the `tokenizers` package is not installed.
    """
    path = Path(path)
    return ChatTokenizer(_load(path), path)


def _load(path: Path) -> Any:
    if path.suffix == ".gguf":
        return _from_gguf(GGUFFile(path))
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.exists():
        require("tokenizers", _PURPOSE)
        return _from_json(json.dumps(read_json(file, limit=MAX_BYTES)), str(file))
    vocab, merges = path / "vocab.json", path / "merges.txt"
    if vocab.exists() and merges.exists():
        lines = read_text(merges, MAX_BYTES).splitlines()
        pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        return _byte_pairs(read_json(vocab, limit=MAX_BYTES), pairs, (_GPT2,), str(path))
    if (path / "tokenizer.model").exists():
        raise CheckpointError(
            f"{path} has a SentencePiece tokenizer.model only; save it as tokenizer.json with the "
            "library that wrote it"
        )
    raise CheckpointError(f"{path} has no tokenizer: neither tokenizer.json nor vocab and merges")


def end_tokens(path: str | os.PathLike) -> tuple[int, ...]:
    """Ids after which a checkpoint's model has nothing more to say; empty where it does not tell.

    Raises:
      CheckpointError: files that cannot be read, or that name something else than token ids.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        found = GGUFFile(path).metadata.get("tokenizer.ggml.eos_token_id")
    else:
        files = (path / "generation_config.json", path / "config.json")
        read = (read_json(file).get("eos_token_id") for file in files if file.exists())
        found = next((ids for ids in read if ids is not None), None)
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise CheckpointError(f"{path}: eos_token_id={str(found)[:60]} is no token id")
    return tuple(ids)


def _from_json(text: str, source: str):
    tokenizers = require("tokenizers", _PURPOSE)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{source} is not a tokenizer: {error}") from error


def _from_gguf(file: GGUFFile):
    get = lambda key: _metadata(file, key)
    model, tokens, kinds = get("model"), get("tokens"), get("token_type")
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        raise CheckpointError(f"{file.path}: tokenizer.ggml.tokens must be strings")
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise CheckpointError(f"{file.path}: tokenizer.ggml.token_type must have one entry a token")
    vocab = {token: i for i, token in enumerate(tokens)}
    if model == "gpt2":
        pre, merges = get("pre"), get("merges")
        if pre not in _SPLITS:
            raise CheckpointError(
                f"{file.path}: tokenizer.ggml.pre={pre!r} is unknown; known: {', '.join(_SPLITS)}"
            )
        if not isinstance(merges, list) or not all(isinstance(m, str) for m in merges):
            raise CheckpointError(f"{file.path}: tokenizer.ggml.merges must be strings")
        pairs = [merge.split(" ") for merge in merges]
        out = _byte_pairs(vocab, pairs, _SPLITS[pre], str(file.path))
    elif model == "llama":
        prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
        out = _sentence_pieces(vocab, get("scores"), prefix, str(file.path))
    else:
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.model={model!r} is not readable; 'gpt2' and 'llama' are. "
            "Load a tokenizer.json instead"
        )
    tokenizers = require("tokenizers", _PURPOSE)
    added = lambda kind: [t for t, k in zip(tokens, kinds, strict=True) if k == kind]
    out.add_special_tokens(
        [tokenizers.AddedToken(t, special=True, normalized=False) for t in added(_CONTROL)]
    )
    out.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in added(_USER_DEFINED)])
    if file.metadata.get("tokenizer.ggml.add_bos_token", model == "llama"):
        bos = get("bos_token_id")
        if type(bos) is not int or not 0 <= bos < len(tokens):
            raise CheckpointError(f"{file.path}: tokenizer.ggml.bos_token_id={bos!r} is no token")
        first, (processors,) = tokens[bos], _parts("processors")
        out.post_processor = processors.TemplateProcessing(
            f"{first}:0 $A:0", f"{first}:0 $A:0 {first}:1 $B:1", [(first, bos)]
        )
    return out


def _metadata(file: GGUFFile, key: str) -> Any:
    key = f"tokenizer.ggml.{key}"
    if key not in file.metadata:
        raise CheckpointError(f"{file.path} has no {key}")
    return file.metadata[key]


def _sentence_pieces(vocab: dict[str, int], scores: Any, prefix: bool, source: str):
    """A SentencePiece tokenizer of the Llama kind: pairs merge in the order of their scores, and
    what has no piece becomes bytes."""
    if not isinstance(scores, list) or len(scores) != len(vocab):
        raise CheckpointError(
            f"{source}: tokenizer.ggml.scores must have one number for each token"
        )
    long = next((token for token in vocab if len(token) > MAX_PIECE), None)
    if long is not None:
        raise CheckpointError(f"{source}: the token {long[:40]!r}... has {len(long)} characters")
    ranked = []
    for token, i in vocab.items():
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [(vocab[a], vocab[b], a, b) for a, b in cuts if a in vocab and b in vocab]
        ranked += [(-scores[i], a, b) for _, _, a, b in sorted(pairs)]
    ranked.sort(key=lambda entry: entry[0])
    options = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    out = _bpe(vocab, [(a, b) for _, a, b in ranked], source, **options)
    text, back = _parts("normalizers", "decoders")
    replace = text.Replace(" ", "\u2581")
    out.normalizer = text.Sequence([text.Prepend("\u2581"), replace] if prefix else [replace])
    steps = [back.Replace("\u2581", " "), back.ByteFallback(), back.Fuse()]
    out.decoder = back.Sequence([*steps, back.Strip(" ", 1, 0)] if prefix else steps)
    return out


def _byte_pairs(
    vocab: dict[str, Any], pairs: list[list[str]], splits: tuple[str, ...], source: str
):
    """A byte-level BPE tokenizer."""
    tokenizers = require("tokenizers", _PURPOSE)
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise CheckpointError(f"{source}: the merge {' '.join(wrong)!r} must join two tokens")
    bad = next((t for t, i in vocab.items() if type(i) is not int or not 0 <= i < 2**32), None)
    if bad is not None:
        raise CheckpointError(f"{source}: the token {bad!r} has no valid id")
    # Llama 3 and its like keep a word that is a token itself, whatever its merges say.
    out = _bpe(vocab, [(a, b) for a, b in pairs], source, ignore_merges=splits == (_LLAMA3,))
    cut, back = _parts("pre_tokenizers", "decoders")
    steps = [cut.Split(tokenizers.Regex(split), "isolated") for split in splits]
    steps.append(cut.ByteLevel(add_prefix_space=False, use_regex=False))
    out.pre_tokenizer = cut.Sequence(steps)
    out.decoder = back.ByteLevel()
    return out


def _parts(*names: str) -> list[Any]:
    return [require(f"tokenizers.{name}", _PURPOSE) for name in names]


def _bpe(vocab: dict[str, int], pairs: list[tuple[str, str]], source: str, **options):
    tokenizers, (models,) = require("tokenizers", _PURPOSE), _parts("models")
    try:
        return tokenizers.Tokenizer(models.BPE(vocab, pairs, **options))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{source} is not a byte-pair tokenizer: {error}") from error


__all__ = ["end_tokens", "load_tokenizer"]
