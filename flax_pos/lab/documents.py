"""Documents as token ids: from files or Hugging Face data sets, in memory or in mapped files."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flax_pos.lab.corpus import Tokenizer, id_dtype, pack_ids, read_documents
from flax_pos.lab.errors import UserError, optional
from flax_pos.lab.records import write_atomic

IDS, ENDS, ABOUT = "ids.bin", "ends.npy", "about.json"


class Store(NamedTuple):
    """All documents one after the other."""

    ids: np.ndarray
    """`N`, in memory or mapped from a file."""
    ends: np.ndarray
    """int64: where each document ends."""
    about: dict[str, Any]

    def numbers(self, first: int, last: int) -> np.ndarray:
        """int32: the number of the document that each of the tokens `first .. last - 1` is of."""
        at = np.arange(first, last)
        return np.searchsorted(self.ends, at, side="right").astype(np.int32)


def read_texts(
    paths: Sequence[Path], dataset: str, subset: str, split: str, column: str
) -> Iterable[str]:
    """The documents of files, or of a data set of the Hugging Face hub or in such files.

    Raises:
      UserError: a file or data set that is not there, no such column, `datasets` not installed.
    """
    if not dataset:
        yield from read_documents(paths)[0]
        return
    datasets = optional("datasets", "data", "task.dataset")
    files: dict[str, Any] = {"data_files": [str(p) for p in paths]} if paths else {}
    try:
        loaded: Any = datasets.load_dataset(dataset, subset or None, split=split, **files)
    except (OSError, ValueError, RuntimeError) as error:
        line = str(error).strip().partition("\n")[0]
        raise UserError(f"cannot load data set {dataset!r}: {line}") from None
    if column not in loaded.column_names:
        raise UserError(
            f"data set {dataset!r} has no column {column!r}; it has "
            f"{', '.join(loaded.column_names)}"
        )
    for row in loaded:
        yield row[column]


def fill_store(
    folder: Path | None, key: dict, texts: Callable[[], Iterable[str]], tokenizer: Tokenizer
) -> Store:
    """The documents' token ids, in memory (no folder) or in files that are mapped.

    Documents of one token have nothing to predict and are left out. A folder that was filled with
    the same `key` is taken as it is; one that a kill left half filled is filled again.

    Raises:
      UserError: no text; a folder that holds something else.
    """
    if folder is not None and (folder / ABOUT).is_file():
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about.get("key") != key:
            raise UserError(f"{str(folder)!r} holds the tokens of other documents: {about['key']}")
        return _mapped(folder, about)
    vocab_size: int = tokenizer.vocab_size  # type: ignore[attr-defined]
    digest, ends, pieces, total = hashlib.sha256(), [], [], 0
    sink = None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        sink = (folder / IDS).open("wb")
    for text in texts():
        ids = pack_ids(tokenizer.encode(text), vocab_size)
        if ids.size < 2:
            continue
        digest.update(ids.tobytes())
        total += ids.size
        ends.append(total)
        if sink is None:
            pieces.append(ids)
        else:
            sink.write(ids.tobytes())
    if sink is not None:
        sink.close()
    if not ends:
        raise UserError("the documents are empty: none has two tokens")
    digest.update(np.asarray(ends, np.int64).tobytes())
    about = {
        "source": key["dataset"][0] or ", ".join(key["paths"]) or "CPython's documentation",
        "documents": len(ends),
        "tokens": total,
        "tokenizer": key["tokenizer"],
        "sha256": digest.hexdigest(),
    }
    if folder is None:
        return Store(np.concatenate(pieces), np.asarray(ends, np.int64), about)
    np.save(folder / ENDS, np.asarray(ends, np.int64))
    dtype = id_dtype(vocab_size).name
    write_atomic(folder / ABOUT, json.dumps(about | {"key": key, "dtype": dtype}, indent=1) + "\n")
    return _mapped(folder, about | {"dtype": dtype})


def _mapped(folder: Path, about: dict) -> Store:
    ids = np.memmap(folder / IDS, dtype=about["dtype"], mode="r")
    facts = {name: value for name, value in about.items() if name not in ("key", "dtype")}
    return Store(ids, np.load(folder / ENDS), facts)


class _Windows:
    """Windows of `length + 1` tokens, of which each begins with the last token of the one before:
    what Grain draws from."""

    def __init__(self, store: Store, cut: int, length: int):
        self.store = store
        self.cut = cut
        self.length = length

    def __len__(self) -> int:
        return (self.cut - 1) // self.length

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        first = int(index) * self.length
        last = first + self.length + 1
        return {
            "ids": np.asarray(self.store.ids[first:last]),
            "document": self.store.numbers(first, last),
        }


def feed_windows(
    store: Store, cut: int, length: int, seed: int, updates: range, batch_size: int
) -> dict[str, np.ndarray]:
    """Batches of shuffled windows out of the first `cut` tokens, another order in each epoch.

    Returns:
      `ids` and `document`, `updates batch_size length + 1`; batch t depends on `seed` and t alone.
    """
    grain = optional("grain", "data", "task.store")
    windows: Any = grain.MapDataset.source(_Windows(store, cut, length)).seed(seed)
    batches = windows.shuffle().repeat().batch(batch_size, drop_remainder=True)
    rows = [batches[t] for t in updates]
    return {name: np.stack([row[name] for row in rows]) for name in ("ids", "document")}
