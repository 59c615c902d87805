"""Small files for the tests."""

import golden
import numpy as np
from gguf import GGUFWriter
from tokenizers import pre_tokenizers

from flax_pos.functional.rope import permute_layout
from flax_pos.interop.gguf_architectures import BLOCK, KEYS, OUTSIDE
from flax_pos.interop.jsonfile import read_json
from flax_pos.interop.safetensors_files import SafetensorsFiles

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|end|>", *LETTERS, "Ġt", "he", "Ġthe", "12"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]
HEADS = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}


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


def add_value(writer, key, value):
    """By the kind of the value, as llama.cpp's converter would."""
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
             str: writer.add_string}  # fmt: skip
    kinds[type(value)](key, value)


def write_tokenizer(path, *, model="gpt2", **fields):
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    for name, value in fields.items():
        if name == "chat_template":
            writer.add_chat_template(value)
        elif isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{name}", value)
        else:
            add_value(writer, f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_pairs(path, **changes):
    kinds = [3] + [1] * (len(TOKENS) - 1)
    fields = {"pre": "gpt-2", "tokens": TOKENS, "token_type": kinds, "merges": MERGES, **changes}
    return write_tokenizer(path, **fields)


def write_model(
    path,
    name="llama_default",
    arch="llama",
    *,
    permuted=True,
    extra=(),
    drop=(),
    tensors=(),
    replace=(),
    kind=None,
):
    """A golden checkpoint as llama.cpp's converter would write it."""
    config = {**read_json(golden.DIRECTORY / name / "config.json")}
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    writer = GGUFWriter(path, arch)
    values = {gguf: config[hf] for gguf, hf in KEYS.items() if hf in config} | dict(extra)
    for key, value in values.items():
        if key in drop:
            continue
        add_value(writer, f"{arch}.{key}", value)
    names = {f"{hf}.weight": f"{gguf}.weight" for gguf, hf in OUTSIDE.items()}
    blocks = {hf: gguf for gguf, hf in BLOCK.items()}
    for hf, tensor in SafetensorsFiles(golden.DIRECTORY / name).items():
        if hf.startswith("model.layers."):
            _, _, layer, *module, end = hf.split(".")
            module = ".".join(module)
            if permuted and module in HEADS:
                options = {"heads": HEADS[module], "source": "half", "target": "interleaved"}
                tensor = permute_layout(tensor, **options)
            names[hf] = f"blk.{layer}.{blocks[module]}.{end}"
        if hf in dict(replace):
            writer.add_tensor(names[hf], dict(replace)[hf], raw_dtype=kind)
        else:
            writer.add_tensor(names[hf], np.ascontiguousarray(tensor))
    for key, (tensor, kind) in dict(tensors).items():
        writer.add_tensor(key, tensor, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
