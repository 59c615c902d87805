"""Which rotary embedding each layer of a model has."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from flax_pos.functional.rope.hf_config import kind_of, read_kinds
from flax_pos.functional.rope.hf_entries import flat_rope
from flax_pos.functional.rope.hf_families import Family, family_of
from flax_pos.functional.rope.hf_keys import get, text_config
from flax_pos.functional.rope.settings import as_length, as_number
from flax_pos.functional.rope.spec import RopeSpec


class Temperature(NamedTuple):
    """Queries are multiplied by `1 + scale * log(1 + (position + offset) // length)`."""

    scale: float
    length: int
    offset: int


class RopeLayer(NamedTuple):
    """What one layer does with positions."""

    spec: RopeSpec | None
    """None: no positions (NoPE)."""
    layer_type: str
    window: int | None
    """Tokens that a query sees, itself included; None: all, or the config does not say."""
    chunk: int | None
    """Only tokens with the same position // chunk are seen; None: all."""
    temperature: Temperature | None


def rope_layers(config: Mapping[str, Any]) -> tuple[RopeLayer, ...]:
    """The rotary embedding, window and query temperature of every layer of a config.

    Covers two bases in one model (Gemma 3, ModernBERT), other head widths by layer type (Gemma
    4), NoPE every n-th layer (Llama 4, SmolLM3, Command R7B), sliding and chunked layers, and
    query temperature (Llama 4, Ministral 3).

    Args:
      config: the contents of a `config.json` with a number of layers.

    Raises:
      TypeError, ValueError: as `RopeSpec.from_hf_config`; also where `layer_types` or
        `no_rope_layers` do not fit the number of layers.
    """
    specs = read_kinds(config)
    config = text_config(config)
    family = family_of(config.get("model_type")) or Family()
    count = get(config, "num_hidden_layers")
    types = config.get("layer_types")
    if count is None:
        if types is None:
            raise ValueError("the config has no num_hidden_layers")
        count = len(types)
    count = as_length(count, "num_hidden_layers")
    if types is None:
        types = _default_types(config, family, count, set(specs))
    if len(types) != count:
        raise ValueError(f"layer_types has {len(types)} entries for {count} layers")
    turned = _rope_layers_of_flags(config, family, count)
    return tuple(
        _layer(config, family, specs, layer_type, with_rope)
        for layer_type, with_rope in zip(types, turned, strict=True)
    )


def _layer(config, family: Family, specs, layer_type: str, with_rope: bool) -> RopeLayer:
    spec = specs[kind_of(config, layer_type, specs)] if with_rope else None
    window = chunk = None
    if layer_type == "sliding_attention" and get(config, "sliding_window") is not None:
        window = as_length(config["sliding_window"], "sliding_window")
    if layer_type == "chunked_attention":
        size = config.get("attention_chunk_size", family.chunk)
        chunk = None if size is None else as_length(size, "attention_chunk_size")
    return RopeLayer(spec, layer_type, window, chunk, _temperature(config, family, with_rope))


def _temperature(config, family: Family, with_rope: bool) -> Temperature | None:
    if family.chunk is not None:  # Llama 4: on the layers without RoPE
        if with_rope or not config.get("attn_temperature_tuning", True):
            return None
        length = as_length(config.get("floor_scale", 8192), "floor_scale")
        return Temperature(as_number(config.get("attn_scale", 0.1), "attn_scale"), length, 1)
    entry = flat_rope(config, family)
    beta = entry.get("llama_4_scaling_beta")
    if beta is None:
        return None
    original = entry.get("original_max_position_embeddings")
    original = get(config, "max_position_embeddings") if original is None else original
    beta = as_number(beta, "llama_4_scaling_beta")
    return Temperature(beta, as_length(original, "original_max_position_embeddings"), 0)


def _rope_layers_of_flags(config, family: Family, count: int) -> list[bool]:
    """Whether each layer has RoPE: `no_rope_layers` holds 1 where it is used."""
    flags = config.get("no_rope_layers")
    if flags:
        if not isinstance(flags, list | tuple) or len(flags) != count:
            raise ValueError(
                f"no_rope_layers must have one entry per layer, {count}, got {flags!r}"
            )
        if any(f not in (0, 1) for f in flags):
            raise ValueError(f"no_rope_layers must hold 0 and 1, got {flags!r}")
        return [bool(f) for f in flags]
    if not family.nope_interval:
        return [True] * count
    every = as_length(
        config.get("no_rope_layer_interval", family.nope_interval), "no_rope_layer_interval"
    )
    return [(i + 1) % every != 0 for i in range(count)]


def _default_types(config, family: Family, count: int, kinds: set) -> list[str]:
    if family.chunk is not None:
        turned = _rope_layers_of_flags(config, family, count)
        return ["chunked_attention" if rope else "full_attention" for rope in turned]
    if "compress" in kinds:
        return ["compress"] * count
    if family.period is None:
        sliding = family.all_sliding and config.get("sliding_window") is not None
        return ["sliding_attention" if sliding else "full_attention"] * count
    every = None
    for name in ("sliding_window_pattern", "global_attn_every_n_layers"):
        every = config.get(name) if every is None else every
    every = as_length(family.period if every is None else every, "sliding_window_pattern")
    full = lambda i: (i + 1) % every == 0
    if family.full_first:
        full = lambda i: i % every == 0
    types = ["full_attention" if full(i) else "sliding_attention" for i in range(count)]
    if family.full_ends:
        types[0 if family.full_ends == "first" else -1] = "full_attention"
    return types
