"""Language modelling on documents that are packed without seeing each other."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.lab.corpus import read_tokenizer
from flax_pos.lab.documents import Store, feed_windows, fill_store, read_texts
from flax_pos.lab.errors import UserError
from flax_pos.lab.tasks.base import Batch, Loaded, register_task
from flax_pos.lab.tasks.text import Text


@register_task("documents")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Documents(Text):
    """Predict the next token of documents, many in a window: no document sees another or is asked
    for its first token, and positions begin anew with each.

    Test windows lie inside single documents, of those at the end that are never trained on.
    """

    dataset: str = ""
    """A data set of the Hugging Face hub by name, or with `paths` what reads such files: json,
    csv, parquet, text; none: every file of `paths` is a document."""
    subset: str = ""
    """The data set's configuration, where it has several."""
    split: str = "train"
    """The data set's split."""
    column: str = "text"
    """The data set's column with the text."""
    store: Path | None = None
    """Folder for the token ids, which Grain then feeds to the device batch by batch; none: all of
    them lie on the device."""

    def load(self) -> Loaded:
        tokenizer = read_tokenizer(self.tokenizer)
        key = {
            "paths": [str(p.absolute()) for p in self.paths],
            "dataset": [self.dataset, self.subset, self.split, self.column],
            "tokenizer": str(self.tokenizer or "bytes"),
        }
        texts = lambda: read_texts(self.paths, self.dataset, self.subset, self.split, self.column)
        store = fill_store(self.store, key, texts, tokenizer)
        cut = self._cut(store)
        held_out = np.asarray(store.ids[cut:])
        ends = store.ends[store.ends > cut] - cut
        data = {"held_out": held_out, "held_out_ends": ends.astype(np.int32)}
        host = None
        if self.store is None:
            data |= {"train": np.asarray(store.ids[:cut]), "document": store.numbers(0, cut)}
        else:
            host = {"ids": store.ids, "ends": store.ends, "cut": np.asarray(cut)}
        return Loaded(tokenizer.vocab_size, data, store.about, tokenizer, host)

    def _cut(self, store: Store) -> int:
        """The end of the last document that is trained on."""
        wanted = store.ids.size * (1 - self.held_out)
        cut = int(store.ends[max(np.searchsorted(store.ends, wanted, side="right") - 1, 0)])
        if cut < self.length + 1 or cut == store.ids.size:
            raise UserError(
                f"too few documents: of {store.ids.size} tokens in {store.ends.size} documents "
                f"none are left to train on, or none to hold out; give more text"
            )
        return cut

    def batch(self, data, key, batch_size) -> Batch:
        if "fed ids" in data:
            ids, document = data["fed ids"], data["fed document"]
        else:
            train = data["train"]
            starts = jax.random.randint(key, (batch_size,), 0, train.shape[0] - self.length)
            at = starts[:, None] + jnp.arange(self.length + 1, dtype=starts.dtype)[None, :]
            ids, document = train[at], data["document"][at]
        ids = ids.astype(jnp.int32)
        weights = (document[:, 1:] == document[:, :-1]).astype(jnp.float32)
        segments = 1 + document[:, :-1] - document[:, :1]
        return Batch(ids[:, :-1], ids[:, 1:], weights, segments)

    def feed(self, loaded, data_seed, first, count, batch_size):
        host = loaded.host or {}
        store = Store(host["ids"], host["ends"], {})
        windows = feed_windows(
            store, int(host["cut"]), self.length, data_seed, range(first, first + count), batch_size
        )
        return {f"fed {name}": array for name, array in windows.items()}

    def _held_out_documents(self, loaded: Loaded) -> np.ndarray:
        """`documents 2`: where those that are held out begin and end in `held_out`."""
        ends = loaded.data["held_out_ends"]
        return np.stack([np.append(0, ends[:-1]), ends], axis=1)

    def ends_of_windows(self, loaded):
        longest = self.lengths[-1]
        spans = self._held_out_documents(loaded)
        places = [np.arange(start + longest, end) for start, end in spans]
        every = np.concatenate(places)
        if not every.size:
            most = int((spans[:, 1] - spans[:, 0]).max())
            raise UserError(
                f"no held-out document has a window of {longest} + 1 tokens (the longest has "
                f"{most}); lower task.length or task.multiples, or give longer documents"
            )
        return every[np.linspace(0, every.size - 1, self.windows).astype(int)]

    def long_text(self, loaded):
        spans = self._held_out_documents(loaded)
        start, end = spans[np.argmax(spans[:, 1] - spans[:, 0])]
        return loaded.data["held_out"][start:end]
