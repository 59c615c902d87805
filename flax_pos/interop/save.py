"""Writing a model in the format that it came in, or in that of a family it fits."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.families import family_of
from flax_pos.interop.family import Family
from flax_pos.interop.jsonfile import write_json
from flax_pos.interop.keys import Key, Keys
from flax_pos.interop.positions import spelled_out
from flax_pos.interop.pretrained import CONFIG, TIED, Origin, plan_of, read_config
from flax_pos.interop.safetensors_files import write_safetensors
from flax_pos.interop.weights import EMBEDDING, HEAD, HEAD_BIAS, write_slot
from flax_pos.interop.weights import Path as ParamPath
from flax_pos.nnx.causal_lm import CausalLM
from flax_pos.schemes.rope import Rope

_OUT_OF_FORMAT = frozenset(
    [
        "scan_layers",
        "remat",
        "attention",
        "dtype",
        "param_dtype",
        "init_std",
        "scale_residual_init",
        "tied",
        "vocab_size",
        "vocab_rows",
    ]
)
"""Settings of `ModelConfig` that change no logit, or that are written apart."""
_ROTARY = (
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rotary_emb_base",
    "rotary_pct",
    "partial_rotary_factor",
    "original_max_position_embeddings",
)


def save_pretrained(
    model: CausalLM,
    directory: str | os.PathLike,
    *,
    model_type: str | None = None,
    max_shard_bytes: int = 5 * 10**9,
) -> None:
    """Writes `config.json` and safetensors files, as Hugging Face libraries read them.

    A loaded model that was not changed gives back its tensors bit for bit, without the surplus rows
    of a padded vocabulary, which whoever reads the file would take for tokens. What was changed
    since (vocabulary, tied or untied head, scaling of positions, their number) is written into the
    config; a change that the format has no key for is an error, never lost.

    Args:
      model: any model that `load_pretrained` gave, or one whose settings and scheme are those of
        a family.
      directory: made if it is not there; files of the same names are replaced.
      model_type: the family to write a model as that was not loaded, such as "llama".
      max_shard_bytes: no file holds more than this.

    Raises:
      ValueError: no `model_type` for a model that was not loaded.
      CheckpointError: the format cannot say what the model is.
    """
    origin = model.origin
    if not isinstance(origin, Origin):
        if model_type is None:
            raise ValueError(
                "this model was not loaded from a checkpoint: say in which format to write it, "
                'such as model_type="llama"'
            )
        origin = Origin(json.dumps({"model_type": model_type}))
        prefix = family_of(Keys({"model_type": model_type}, "model_type")).prefix
        origin = dataclasses.replace(origin, prefix=prefix)
    config = json.loads(origin.config)
    family = family_of(Keys(config, "the config to write"))
    _update(config, model, family)
    params = {
        p: _in_use(p, np.asarray(v), model.config.vocab_size)
        for p, v in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }
    tensors: dict[str, np.ndarray] = {}
    for slot in plan_of(model, family, origin):
        own = [params[path] for path in slot.paths]
        own = own if slot.layer is None else [stacked[slot.layer] for stacked in own]
        parts = write_slot(slot, own, model.config.dims)
        tensors.update(zip(slot.names, parts, strict=True))
    for name, shape in family.idle.items():
        zeros = np.zeros(shape(model.config), jnp.dtype(model.config.param_dtype))
        for layer in range(model.config.layers):
            tensors[f"{origin.prefix}{family.layers.format(layer)}.{name}"] = zeros
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory, tensors, max_shard_bytes=max_shard_bytes)
    write_json(directory / CONFIG, config)


def _in_use(path: ParamPath, array: np.ndarray, vocab_size: int) -> np.ndarray:
    """A parameter without the rows of no token."""
    if path in (EMBEDDING, HEAD_BIAS):
        return array[:vocab_size]
    return array[:, :vocab_size] if path == HEAD else array


def _update(config: dict[str, Any], model: CausalLM, family: Family) -> None:
    """Writes into a config what the model is by now, and makes sure that it says so."""
    keys = lambda: Keys(config, f"a config of {family.types[0]!r}")
    wanted = model.config
    for name, entry in family.settings.items():
        value = getattr(wanted, name)
        if isinstance(entry, Key) and value is not None and not _says(entry, keys(), value):
            entry.write(config, value)
    if config.get(TIED) != wanted.tied:
        config[TIED] = wanted.tied
    if "torch_dtype" not in config:
        config["dtype"] = wanted.param_dtype
    scheme = spelled_out(model.scheme, wanted.dims.head_dim)
    plain = {"tied": wanted.tied, "dtype": wanted.dtype, "param_dtype": wanted.param_dtype}
    if isinstance(scheme, Rope) and scheme.spec is not None:
        said = _try_scheme(keys(), family, plain, wanted)
        if said != scheme:
            for name in _ROTARY:
                config.pop(name, None)
            config["rope_parameters"] = scheme.spec.to_hf_config()["rope_parameters"]
    got, said = read_config(keys(), family, plain)
    for field in dataclasses.fields(got):
        a, b = (_resolved(c, field.name) for c in (wanted, got))
        if a != b and field.name not in _OUT_OF_FORMAT:
            raise CheckpointError(
                f"the format of {family.types[0]!r} cannot say {field.name}={a!r}: it means {b!r}"
            )
    if spelled_out(said, wanted.dims.head_dim) != scheme:
        raise CheckpointError(
            f"the format of {family.types[0]!r} cannot say the positions {scheme}: it means {said}"
        )


def _says(entry: Key, keys: Keys, value: Any) -> bool:
    try:
        return entry.read(keys) == value
    except CheckpointError:  # the key is not there yet
        return False


def _try_scheme(keys: Keys, family: Family, plain: dict[str, Any], wanted):
    try:
        return spelled_out(read_config(keys, family, plain)[1], wanted.dims.head_dim)
    except CheckpointError:
        return None


def _resolved(config, name: str) -> Any:
    """A setting, with what None stands for."""
    derived = {"kv_heads": config.dims.kv_heads, "head_dim": config.dims.head_dim,
               "mlp_width": config.hidden_width, "value_dim": config.v_dim}  # fmt: skip
    return derived.get(name, getattr(config, name))


__all__ = ["save_pretrained"]
