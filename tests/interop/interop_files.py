"""Small files for the tests."""

from gguf import GGUFWriter
from tokenizers import pre_tokenizers

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|end|>", *LETTERS, "Ġt", "he", "Ġthe", "12"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]


def write_gguf(path, tensors=None, extra=lambda writer: None):
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_string("text", "größe")
    writer.add_array("names", ["a", "b"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_bool("yes", True)
    writer.add_float32("half", 0.5)
    extra(writer)
    for name, (array, kind) in (tensors or {}).items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tokenizer(path, *, model="gpt2", **fields):
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    for name, value in fields.items():
        if name == "chat_template":
            writer.add_chat_template(value)
        elif isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"tokenizer.ggml.{name}", value)
        else:
            writer.add_string(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_pairs(path, **changes):
    kinds = [3] + [1] * (len(TOKENS) - 1)
    fields = {"pre": "gpt-2", "tokens": TOKENS, "token_type": kinds, "merges": MERGES, **changes}
    return write_tokenizer(path, **fields)
