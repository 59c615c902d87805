"""Models from elsewhere and artefacts for elsewhere: foreign configs, weights and tokenizers."""

from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.tokenizer import load_tokenizer

__all__ = ["CheckpointError", "load_tokenizer"]
