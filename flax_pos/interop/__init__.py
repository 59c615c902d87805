"""Models from elsewhere and artefacts for elsewhere: foreign configs, weights and tokenizers."""

from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.pretrained import load_pretrained
from flax_pos.interop.save import save_pretrained
from flax_pos.interop.tokenizer import load_tokenizer

__all__ = ["CheckpointError", "load_pretrained", "load_tokenizer", "save_pretrained"]
