"""The keys of a config: synonyms, contradictions, unknown ones."""

from collections.abc import Mapping
from typing import Any

SYNONYMS = {
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "decoder_num_attention_heads"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
    "head_dim": ("attention_head_dim", "kv_channels"),
    "rope_theta": ("rotary_emb_base",),
    "partial_rotary_factor": ("rotary_pct", "rope_pct", "rotary_emb_fraction"),
    "rope_interleaved": ("rotary_emb_interleaved",),
}
_TYPE_SYNONYMS = {"su": "longrope", "mrope": "default", "xdrope": "dynamic"}
# Top-level keys about rotary embeddings that are read elsewhere or change no frequency.
_OTHER_TOP_KEYS = frozenset(
    {
        "rope_scaling",
        "rope_parameters",
        "rope_interleave",
        "rotary_dim",
        "rope_slice",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "rope_local_base_freq",
        "global_rope_theta",
        "local_rope_theta",
        "compress_rope_theta",
        "swa_rope_theta",
        "no_rope_layers",
        "no_rope_layer_interval",
        "rotary_emb_scale_base",
        "rotary_scaling_factor",
        "rope_spec",
    }
)


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the text model, its `model_type` filled in."""
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be a mapping (the contents of config.json), got {config!r}")
    for name in ("thinker_config", "text_config", "llm_config", "language_config"):
        inner = config.get(name)
        if inner is not None and "hidden_size" not in config:
            if not isinstance(inner, Mapping):
                raise ValueError(f"{name} must be a mapping, got {inner!r}")
            return text_config({"model_type": config.get("model_type"), **inner})
    model_type = config.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise ValueError(f"model_type must be a string, got {model_type!r}")
    return dict(config)


def get(config, name: str):
    """The value of a key or of one of its synonyms, None where there is none."""
    out = None
    for key in (name, *SYNONYMS.get(name, ())):
        out = agreed(name, None, out, config.get(key), default=None)
    return out


def agreed(name: str, kind, first, second, *, default):
    """The one that is not None; they must not differ."""
    if first is None:
        return default if second is None else second
    if second is not None and second != first:
        where = "" if kind is None else f" (layer type {kind!r})"
        raise ValueError(
            f"{name} is given twice with different values, {first!r} and {second!r}{where}"
        )
    return first


def theta_of(config):
    return get(config, "rope_theta")


def check_top_keys(config) -> None:
    known = _OTHER_TOP_KEYS.union(*SYNONYMS.values(), SYNONYMS)
    for key in config:
        if not isinstance(key, str):
            raise ValueError(f"config keys must be strings, got {key!r}")
        about_rope = any(part.startswith(("rope", "rotary")) for part in key.split("_"))
        if about_rope and key not in known and config[key] is not None:
            raise ValueError(f"unknown key {key!r} in the config, with the value {config[key]!r}")


def rope_type_of(entry: Mapping[str, Any]) -> str:
    """The law that a rope dict names, synonyms resolved."""
    types = {}
    for key in ("rope_type", "type"):
        value = entry.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise ValueError(f"{key} must be a string, got {value!r}")
        value = _TYPE_SYNONYMS.get(value, value)
        # Phi-3 files say "su", "yarn" or "longrope" for the same law.
        types[key] = "longrope" if value == "yarn" and "short_factor" in entry else value
    if len(set(types.values())) > 1:
        raise ValueError(f"rope_type {entry['rope_type']!r} and type {entry['type']!r} differ")
    return next(iter(types.values()), "default")
