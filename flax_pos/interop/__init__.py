"""Models from elsewhere and artefacts for elsewhere: foreign configs, weights and tokenizers."""

from flax_pos.interop.artefact import Artefact, export_model, load_artefact
from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.export_check import check_export
from flax_pos.interop.extension import extend, rescale
from flax_pos.interop.pretrained import load_pretrained
from flax_pos.interop.quantize import quantize_weights
from flax_pos.interop.save import save_pretrained
from flax_pos.interop.surgery import resize_positions, resize_vocab, swap_scheme, tie, untie
from flax_pos.interop.tokenizer import load_tokenizer

__all__ = [
    "Artefact",
    "CheckpointError",
    "check_export",
    "export_model",
    "extend",
    "load_artefact",
    "load_pretrained",
    "load_tokenizer",
    "quantize_weights",
    "rescale",
    "resize_positions",
    "resize_vocab",
    "save_pretrained",
    "swap_scheme",
    "tie",
    "untie",
]
