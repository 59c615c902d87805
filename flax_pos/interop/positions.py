"""Position schemes out of foreign configs."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from flax_pos.functional.rope.hf_config import fraction
from flax_pos.functional.rope.hf_layers import RopeLayer, rope_layers
from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.keys import Keys
from flax_pos.nnx.config import ModelConfig
from flax_pos.scheme import Scheme
from flax_pos.schemes.alibi import Alibi
from flax_pos.schemes.by_layer import ByLayer
from flax_pos.schemes.learned import Learned
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.qk_norm import QKNorm
from flax_pos.schemes.query_temperature import QueryTemperature
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.stack import Stack
from flax_pos.schemes.window import Window

_ROPE_KEYS = (
    "attention_chunk_size",
    "attn_scale",
    "attn_temperature_tuning",
    "floor_scale",
    "layer_types",
    "max_window_layers",
    "no_rope_layer_interval",
    "no_rope_layers",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_interleave",
    "rope_interleaved",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_pct",
    "rope_scaling",
    "rope_spec",
    "rope_theta",
    "rotary_dim",
    "rotary_emb_base",
    "rotary_pct",
    "sliding_window",
    "sliding_window_pattern",
    "use_sliding_window",
)


def rope(keys: Keys, config: ModelConfig, **changes: Any) -> Scheme:
    """RoPE, windows and temperatures by layer.

    Args:
      keys: the config.
      config: the model that it describes.
      changes: keys of the config to be read as if they had these values.
    """
    keys.ignore(*_ROPE_KEYS)
    try:
        layers = rope_layers({**keys.config, **changes})
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{keys.source}: {error}") from error
    return by_layer([_scheme(layer, config) for layer in layers])


def _scheme(layer: RopeLayer, config: ModelConfig, *also: Scheme) -> Scheme:
    parts = also
    if layer.spec is not None:
        parts = (Rope(spec=_fit(layer.spec, config)), *parts)
    if layer.temperature is not None:
        parts = (*parts, QueryTemperature(**layer.temperature._asdict()))
    inner = parts[0] if len(parts) == 1 else Stack(parts=parts) if parts else NoPE()
    if layer.window is None and layer.chunk is None:
        return inner
    return Window(inner=inner, window=layer.window, chunk=layer.chunk)


def _fit(spec, config: ModelConfig):
    """A spec for the part of a latent head that is rotated becomes one for the whole head."""
    if config.shared_key_dim is None:
        return spec
    return replace(
        spec,
        head_dim=config.dims.head_dim,
        partial_rotary_factor=fraction(config.shared_key_dim, config.dims.head_dim),
        rotary_slice="trailing",
    )


def by_layer(schemes: Sequence[Scheme]) -> Scheme:
    """One scheme out of one for each layer, with the shortest pattern that repeats."""
    parts = tuple(dict.fromkeys(schemes))
    if len(parts) == 1:
        return parts[0]
    of = [parts.index(scheme) for scheme in schemes]
    repeats = lambda period: all(of[i] == of[i % period] for i in range(len(of)))
    period = next(p for p in range(1, len(of) + 1) if repeats(p))
    return ByLayer(parts=parts, pattern=tuple(of[:period]))


def map_schemes(scheme: Scheme, change: Callable[[Scheme], Scheme]) -> Scheme:
    """The scheme with every scheme in it that is not made of others replaced by `change` of it."""
    inner = {}
    for field in fields(scheme):
        value = getattr(scheme, field.name)
        if isinstance(value, Scheme):
            inner[field.name] = map_schemes(value, change)
        elif isinstance(value, tuple) and value and all(isinstance(v, Scheme) for v in value):
            inner[field.name] = tuple(map_schemes(v, change) for v in value)
    return replace(scheme, **inner) if inner else change(scheme)


def spelled_out(scheme: Scheme, head_dim: int) -> Scheme:
    """The scheme with every RoPE in it said by a `RopeSpec` for heads of this width."""

    def change(own: Scheme) -> Scheme:
        if not isinstance(own, Rope):
            return own
        return Rope(spec=replace(own.full_spec, head_dim=head_dim))

    return map_schemes(scheme, change)


def qwen_rope(keys: Keys, config: ModelConfig) -> Scheme:
    """Layers slide only where `use_sliding_window` says so, from `max_window_layers` on."""
    if not keys.flag("use_sliding_window", False):
        return rope(keys, config, sliding_window=None)
    first = keys.get("max_window_layers", 28)
    kinds = [
        "full_attention" if layer < first else "sliding_attention" for layer in range(config.layers)
    ]
    return rope(keys, config, layer_types=keys.get("layer_types", kinds))


def smollm3_rope(keys: Keys, config: ModelConfig) -> Scheme:
    """Layers slide only where `layer_types` and `use_sliding_window` say so."""
    if not keys.flag("use_sliding_window", False):
        return rope(keys, config, sliding_window=None)
    return rope(keys, config)


def llama4_rope(keys: Keys, config: ModelConfig) -> Scheme:
    """Layers with RoPE norm q and k as well."""
    base = rope(keys, config)
    if not keys.flag("use_qk_norm", True):
        return base
    norm = QKNorm(eps=config.norm_eps)
    layers = rope_layers(keys.config)
    return by_layer(
        [_scheme(layer, config, *([] if layer.spec is None else [norm])) for layer in layers]
    )


def falcon(keys: Keys, config: ModelConfig) -> Scheme:
    if not keys.flag("alibi", False):
        return rope(keys, config)
    keys.ignore(*_ROPE_KEYS)
    # The bias is scaled as the product of q and k is.
    return Alibi(scale=config.dims.head_dim**-0.5)


def bloom(keys: Keys, config: ModelConfig) -> Scheme:
    return Alibi()


def mpt(keys: Keys, config: ModelConfig) -> Scheme:
    inner = keys.mapping("attn_config")
    return Alibi(max_bias=float(inner.number("alibi_bias_max", 8)))


def learned(offset: int):
    """A table whose first `offset` rows are not positions."""
    return lambda keys, config: Learned(offset=offset)


__all__ = [
    "bloom",
    "by_layer",
    "falcon",
    "learned",
    "llama4_rope",
    "map_schemes",
    "mpt",
    "qwen_rope",
    "rope",
    "smollm3_rope",
    "spelled_out",
]
