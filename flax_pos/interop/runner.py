"""Runs an exported model. It needs jax, and flatbuffers, which jax reads exported programs with;
nothing else: `export_model` puts a copy of this file beside the programs, as `run.py`.

    python run.py 504,3575,282 --new 20        # token ids in, token ids out
"""

import argparse
import json
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

MANIFEST = "artefact.json"
CHUNK = 256
"""Tokens of a prompt that are read at once."""
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I32": "int32",
    "I8": "int8", "U8": "uint8",
}  # fmt: skip


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, mapped, not read."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", offset=8 + length)
    header.pop("__metadata__", None)
    return {
        name: data[slice(*entry["data_offsets"])]
        .view(jnp.dtype(_DTYPES[entry["dtype"]]))
        .reshape(entry["shape"])
        for name, entry in header.items()
    }


class Artefact:
    """An exported model: the programs for prompts and for single tokens, and its weights."""

    def __init__(self, directory):
        directory = Path(directory)
        self.manifest = json.loads((directory / MANIFEST).read_text())
        weights = read_weights(directory / self.manifest["weights"])
        self.params = {name: jnp.asarray(weights[name]) for name in self.manifest["params"]}
        load = lambda name: jax.export.deserialize(
            bytearray((directory / self.manifest[name]).read_bytes())
        )
        self.prefill, self.decode = load("prefill"), load("decode")

    def empty_cache(self, batch: int, slots: int) -> dict[str, jax.Array]:
        """A cache for `batch` rows of at most `slots` tokens."""
        sizes = {"b": batch, "s": slots}
        return {
            name: jnp.full([sizes.get(n, n) for n in entry["shape"]], entry["fill"], entry["dtype"])
            for name, entry in self.manifest["cache"].items()
        }

    def step(self, ids, positions, mask, cache):
        """Logits `b t V` of tokens that follow what the cache holds, and the cache with them."""
        program = self.decode if ids.shape[1] == 1 else self.prefill
        return program.call(self.params, ids, positions, mask, cache)

    def read(self, ids, cache, start: int = 0, positions=None):
        """Logits `b t V` of a prompt, read piece by piece; and the cache."""
        ids, out = jnp.asarray(ids, jnp.int32), []
        if positions is None:
            positions = jnp.broadcast_to(
                start + jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape
            )
        for at in range(0, ids.shape[1], CHUNK):
            piece = slice(at, at + CHUNK)
            mask = jnp.ones(ids[:, piece].shape, bool)
            logits, cache = self.step(ids[:, piece], positions[:, piece], mask, cache)
            out.append(logits)
        return jnp.concatenate(out, axis=1), cache

    def __call__(self, ids, *, positions=None):
        """Logits `b t V` of whole rows."""
        ids = jnp.asarray(ids, jnp.int32)
        return self.read(ids, self.empty_cache(*ids.shape), positions=positions)[0]

    def generate(self, ids, new: int):
        """The best continuation of every row by `new` tokens, int32 `b new`."""
        ids = jnp.asarray(ids, jnp.int32)
        batch, length = ids.shape
        logits, cache = self.read(ids, self.empty_cache(batch, length + new))
        tokens = [logits[:, -1:].argmax(-1).astype(jnp.int32)]
        for at in range(length, length + new - 1):
            logits, cache = self.read(tokens[-1], cache, at)
            tokens.append(logits.argmax(-1).astype(jnp.int32))
        return jnp.concatenate(tokens, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Continue token ids with the exported model.")
    parser.add_argument("ids", help="token ids, separated by commas")
    parser.add_argument("--new", type=int, default=20, help="how many tokens to add")
    args = parser.parse_args()
    artefact = Artefact(Path(__file__).parent)
    ids = [[int(i) for i in args.ids.split(",")]]
    print(",".join(map(str, artefact.generate(ids, args.new)[0].tolist())))


if __name__ == "__main__":
    main()
