"""What a family of models is, as data: which config keys are which settings, and which tensors of
a file are which parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from flax_pos.interop.keys import Key, Keys
from flax_pos.nnx.config import ModelConfig


class Fused(NamedTuple):
    """Several matrices in one tensor, joined along their outputs."""

    parts: tuple[str, ...]
    """Modules of a block, in the order of the file."""
    by: Literal["part", "group"] = "part"
    """`part`: one after the other. `group`: for each key/value head its query heads, its key and
    its value."""


class Expert(NamedTuple):
    """Matrices of the one expert of a layer: an axis of 1 in front, inputs before outputs, the
    outputs of several parts by turns, and biases under the matrix's name with `_bias`."""

    parts: tuple[str, ...]


class PerHead(NamedTuple):
    """One array in as many tensors as there are heads; `{}` in their name is the head."""

    path: str


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture.

    Left sides of the tables are names in a file; right sides are paths in a `CausalLM`, of a
    module (`.weight` and `.bias` are then its kernel or scale and its bias) or of one array (then
    the name on the left is a whole one).
    """

    types: tuple[str, ...]
    """`model_type`s of configs."""
    when: Mapping[str, Any] = field(default_factory=dict)
    """What further keys must say; the first family that fits is taken."""

    settings: Mapping[str, Key | Callable[[Keys], Any] | Any]
    """Fields of `ModelConfig`: a key, a function of the config, or a constant."""
    must: Mapping[str, Any] = field(default_factory=dict)
    """Keys that may only have this value."""
    accepts: frozenset[str] = frozenset()
    """Keys that change nothing in this family."""
    positions: Callable[[Keys, Any], Any]
    """The scheme, out of the config and the `ModelConfig`."""

    prefix: str = "model."
    """Usually stands before all names but that of the head; files may have another."""
    layers: str
    """Name of a block in a file; `{}` is its number."""
    block: Mapping[str, "str | Fused | Expert | PerHead"]
    outside: Mapping[str, str]
    """Tensors and modules outside of the blocks."""
    head: str = "lm_head"
    """Module of the head, where it is not the embedding itself. It stands outside of the prefix
    that the other names may have."""
    unused: tuple[str, ...] = ()
    """Ends of names of tensors that hold nothing: what code computes from the config anyway."""
    idle: Mapping[str, Callable[[ModelConfig], tuple[int, ...]]] = field(default_factory=dict)
    """Tensors of a block that change nothing but that readers of the format ask for, with their
    shapes: passed over on reading, written as zeros."""
    kernels: Literal["out_in", "in_out"] = "out_in"
    """Axes of matrices in the file."""

    @property
    def embedding(self) -> str:
        """Name of the embedding table in a file."""
        return next(name for name, path in self.outside.items() if path == "embed.embedding")

    def read_settings(self, keys: Keys) -> dict[str, Any]:
        """Fields of `ModelConfig` that a config gives."""
        keys.must_be(self.must, f" for {self.types[0]!r}")
        read = {}
        for name, entry in self.settings.items():
            if isinstance(entry, Key):
                read[name] = entry.read(keys)
            else:
                read[name] = entry(keys) if callable(entry) else entry
        return read


__all__ = ["Expert", "Family", "Fused", "PerHead"]
