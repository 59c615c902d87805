"""Text as token ids: CPython's own documentation, or the user's files; bytes, or a tokenizer."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from flax_pos.lab.errors import UserError


class Tokenizer(Protocol):
    """What the lab needs of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Corpus(NamedTuple):
    """Documents joined into one array of ids."""

    ids: np.ndarray
    """`N`, in the smallest unsigned dtype that holds every id of the vocabulary."""
    vocab_size: int
    tokenizer: Tokenizer
    about: dict[str, Any]


class ByteTokenizer:
    """UTF-8 bytes: 256 ids and no file needed."""

    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


class FileTokenizer:
    """A tokenizer file in the JSON format of the `tokenizers` library.

    Raises:
      UserError: the file is missing or is no such file.
    """

    def __init__(self, path: Path):
        import tokenizers

        if not path.is_file():
            raise UserError(f"no tokenizer file {str(path)!r}")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{path} is not a tokenizer file: {error}") from None
        # Ids may have holes, so the vocabulary's size is decided by the largest one.
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids))


def id_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned dtype that holds the ids 0 .. vocab_size - 1.

    >>> id_dtype(256).name, id_dtype(257).name, id_dtype(128256).name
    ('uint8', 'uint16', 'uint32')
    """
    return np.min_scalar_type(vocab_size - 1)


def pack_ids(ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """Ids as a compact array.

    Raises:
      UserError: an id outside 0 .. vocab_size - 1.
    """
    wide = np.asarray(ids, np.int64)
    if wide.size and not 0 <= wide.min() <= wide.max() < vocab_size:
        bad = wide.max() if wide.max() >= vocab_size else wide.min()
        raise UserError(f"token id {bad} lies outside the vocabulary of {vocab_size}")
    return wide.astype(id_dtype(vocab_size))


def read_corpus(paths: Sequence[Path] = (), tokenizer: Path | None = None) -> Corpus:
    """The text of the files (of CPython's documentation, if there are none) as token ids.

    A folder stands for all text files below it. Documents are joined by an empty line.

    Raises:
      UserError: a missing, empty or binary file (one with NUL bytes or not in UTF-8).
    """
    documents, sources, skipped = read_documents(paths)
    text = "\n\n".join(documents)
    if not text.strip():
        raise UserError(f"the corpus is empty: no text in {', '.join(sources)}")

    codec = read_tokenizer(tokenizer)
    ids = pack_ids(codec.encode(text), codec.vocab_size)
    about = {
        "source": ", ".join(sources),
        "documents": len(documents),
        "bytes": len(text.encode("utf-8")),
        "tokens": int(ids.size),
        "tokenizer": "bytes" if tokenizer is None else str(tokenizer),
        "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(),
    }
    if skipped:
        about["skipped files"] = skipped
    return Corpus(ids, codec.vocab_size, codec, about)


def read_tokenizer(path: Path | None) -> "ByteTokenizer | FileTokenizer":
    """The tokenizer of a file; None: bytes."""
    return ByteTokenizer() if path is None else FileTokenizer(path)


def read_documents(paths: Sequence[Path] = ()) -> tuple[list[str], list[str], int]:
    """The texts of files and folders (of CPython's documentation, if there are none), what they
    come from, and how many files of the folders were no text.

    Raises:
      UserError: a missing or binary file.
    """
    documents, sources = [], []
    skipped = 0
    for path in paths:
        if path.is_dir():
            files = sorted(
                p
                for p in path.rglob("*")
                if p.is_file()
                and not any(part.startswith(".") for part in p.relative_to(path).parts)
            )
            texts = [_text_or_error(p) for p in files]
            documents += [t for t in texts if isinstance(t, str)]
            skipped += sum(not isinstance(t, str) for t in texts)
        else:
            text = _text_or_error(path)
            if isinstance(text, UserError):
                raise text
            documents.append(text)
        sources.append(str(path))
    if not paths:
        documents = _python_documentation()
        sources = ["CPython's documentation (pydoc_data.topics)"]
    return documents, sources, skipped


def _python_documentation() -> list[str]:
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def _text_or_error(path: Path) -> str | UserError:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return UserError(f"no data file {str(path)!r}")
    except OSError as error:
        return UserError(f"cannot read data file {str(path)!r}: {error.strerror}")
    if b"\0" in raw:
        return UserError(
            f"{path} is binary (NUL byte at offset {raw.index(0)}); the lab reads text"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return UserError(
            f"{path} is not UTF-8 text (byte 0x{raw[error.start]:02x} at offset {error.start}); "
            "convert it to UTF-8, or leave it out"
        )
