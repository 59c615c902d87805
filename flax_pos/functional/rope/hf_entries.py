"""One dict of raw rope settings for each kind of layer, out of any spelling of a config."""

from collections.abc import Mapping
from typing import Any

from flax_pos.functional.rope.hf_families import Family, family_of
from flax_pos.functional.rope.hf_keys import agreed, get, theta_of

_KINDS = frozenset(
    {
        "full_attention",
        "sliding_attention",
        "chunked_attention",
        "linear_attention",
        "main",
        "compress",
    }
)


def entries_of(config, family: Family | None) -> dict[str | None, dict[str, Any] | None]:
    """Raw settings by kind of layer, their base filled in; None for a kind without RoPE. The key
    None stands for all layers of a model whose layers do not differ."""
    entries: dict[str | None, dict[str, Any] | None]
    new = _rope_dict(config, "rope_parameters")
    old = _rope_dict(config, "rope_scaling")
    family = family or Family()
    kinds = family.kinds
    nested = _nested(new, config, family)
    if nested:
        if old:
            raise ValueError(
                "rope_scaling and a rope_parameters by layer type contradict each other"
            )
        entries = {k: None if v is None else dict(v) for k, v in (new or {}).items()}
        for kind in kinds:
            if kind not in entries:
                raise ValueError(f"rope_parameters has no entry for the layer type {kind!r}")
    elif kinds:
        if new:
            raise ValueError(
                f"rope_parameters of this model needs one entry for each of {', '.join(kinds)}"
            )
        entries = {}
        for kind, sub in kinds.items():
            entries[kind] = dict(sub.extra)
            if old and sub.scaled:
                entries[kind] = {**_without_type(entries[kind]), **old}
    else:
        flat = flat_rope(config, family)
        entries = {None: flat}
        if family.nope and _sliding(config):
            entries = {
                k: None if k in family.nope else flat for k in ("sliding_attention", *family.nope)
            }
    for kind, entry in entries.items():
        if entry is None:
            continue
        sub = kinds.get(kind) if kind is not None else None
        theta = get(config, sub.theta_key) if sub else theta_of(config)
        if nested and sub is None:
            theta = theta_of(config)
        entry["rope_theta"] = agreed(
            "rope_theta",
            kind,
            entry.get("rope_theta"),
            theta,
            default=sub.theta if sub else _default_theta(config, family),
        )
    return entries


def flat_rope(config, family: Family) -> dict[str, Any]:
    """The rope settings of a model whose layers do not differ, without its base."""
    new = _rope_dict(config, "rope_parameters")
    old = _rope_dict(config, "rope_scaling")
    flat = _merge(old, new)
    if not flat and new is None and family.rope is not None:
        flat = dict(family.rope)
        if theta_of(config) is not None:
            flat.pop("rope_theta", None)
    return flat


def _without_type(entry):
    return {k: v for k, v in entry.items() if k not in ("rope_type", "type")}


def _sliding(config) -> bool:
    """Whether a model that mixes sliding and full layers really has sliding ones."""
    return "sliding_window" not in config or config["sliding_window"] is not None


def _rope_dict(config, name: str) -> dict | None:
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise ValueError(f"{name} must be a mapping with string keys, got {value!r}")
    return dict(value)


def _nested(entries, config, family: Family) -> bool:
    if not entries:
        return False
    types = config.get("layer_types")
    if types is not None and not (
        isinstance(types, list | tuple) and all(isinstance(t, str) or t is None for t in types)
    ):
        raise ValueError(f"layer_types must be a list of names, got {types!r}")
    known = _KINDS | set(types or ()) | set(family.kinds) | set(family.aliases)
    inside = [k for k, v in entries.items() if isinstance(v, Mapping) or (k in known and v is None)]
    if not inside:
        return False
    for key in entries:
        if key not in inside:
            raise ValueError(
                f"rope_parameters mixes layer types ({inside[0]!r}) with the key {key!r}"
            )
        if key not in known:
            raise ValueError(
                f"rope_parameters has an unknown layer type {key!r}; known: "
                f"{', '.join(sorted(known))}"
            )
    return True


def _merge(old, new) -> dict:
    out = dict(new or {})
    for key, value in (old or {}).items():
        if out.get(key) is not None and out[key] != value:
            raise ValueError(
                f"{key!r} is {value!r} in rope_scaling and {out[key]!r} in rope_parameters"
            )
        out[key] = value
    return out


def _default_theta(config, family: Family) -> float:
    model_type = config.get("model_type")
    if model_type is not None and family_of(model_type) is None:
        raise ValueError(
            "the config has no rope_theta, and the default of model_type "
            f"{model_type!r} is not known"
        )
    return family.theta
