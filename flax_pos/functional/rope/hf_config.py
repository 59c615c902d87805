"""Reading and writing the rotary settings of Hugging Face style configs.

Both spellings are read: `rope_parameters` of transformers 5, flat or one dict per kind of layer,
and the older top-level `rope_theta`, `rope_scaling` and their synonyms. What a config leaves out
comes from its `model_type` (`hf_families`). The reader is strict where the reference only warns:
an unknown key, a wrong list length, an impossible or contradictory value is a `ValueError` that
names the key and the kind of layer.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flax_pos.functional.rope.axes import Axes
from flax_pos.functional.rope.hf_entries import entries_of
from flax_pos.functional.rope.hf_families import Family, family_of
from flax_pos.functional.rope.hf_keys import agreed, check_top_keys, get, rope_type_of, text_config
from flax_pos.functional.rope.hf_widths import fraction, head_dim_of, widths_of
from flax_pos.functional.rope.scaling import (
    SCALINGS,
    LongRope,
    Proportional,
    Scaling,
    Yarn,
    scaling_from_plain,
    scaling_to_plain,
)
from flax_pos.functional.rope.settings import as_length
from flax_pos.functional.rope.spec import RopeSpec, settings_from_plain

# Keys of a rope dict besides those of its law.
_SHARED_KEYS = frozenset(
    {
        "rope_type",
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "mrope_section",
        "mrope_interleaved",
        "interleaved",
        "xdrope_section",
        "llama_4_scaling_beta",
        "max_position_embeddings",
        "original_max_position_embeddings",
        "finetuned",
    }
)


def read(config: Mapping[str, Any], layer_type: str | None = None) -> RopeSpec:
    """The rotary embedding that a config describes.

    Args:
      config: the contents of a `config.json`; of a multimodal one, the text model's part is read.
      layer_type: the kind of layer, where a model's layers differ (`"full_attention"`,
        `"sliding_attention"`, ...). None is enough where all kinds with RoPE agree.

    Raises:
      TypeError: `config` is not a mapping.
      ValueError: the config contradicts itself, is incomplete or says something impossible; it
        has no rotary embedding (on that kind of layer); kinds of layers differ and `layer_type`
        is None. The message names the key and the layer.
    """
    specs = read_kinds(config)
    if layer_type is None:
        found = {spec for spec in specs.values() if spec is not None}
        if len(found) > 1:
            raise ValueError(
                f"this config's layers differ; give layer_type, one of {', '.join(map(str, specs))}"
            )
        if not found:
            raise ValueError("this config has no rotary embedding")
        return found.pop()
    if not isinstance(layer_type, str):
        raise TypeError(f"layer_type must be a string, got {layer_type!r}")
    kind = kind_of(text_config(config), layer_type, specs)
    spec = specs[kind]
    if spec is None:
        raise ValueError(f"layer_type {layer_type!r} of this config has no rotary embedding (NoPE)")
    return spec


def read_kinds(config: Mapping[str, Any]) -> dict[str | None, RopeSpec | None]:
    """The spec of every kind of layer, None for kinds without RoPE; the key None stands for all
    layers of a model whose layers do not differ."""
    config = text_config(config)
    family = family_of(config.get("model_type"))
    if family is not None and family.none:
        return {None: None}
    if get(config, "alibi"):
        return {None: None}
    check_top_keys(config)
    return {
        kind: None if entry is None else _spec(config, family or Family(), kind, entry)
        for kind, entry in entries_of(config, family).items()
    }


def kind_of(config: Mapping[str, Any], layer_type: str, specs: Mapping) -> str | None:
    """The key of `read_kinds` that a layer type belongs to."""
    family = family_of(config.get("model_type"))
    aliases = family.aliases if family else {}
    for kind in (layer_type, aliases.get(layer_type)):
        if kind in specs:
            return kind
    if None in specs:
        return None
    raise ValueError(
        f"layer_type {layer_type!r} is not in this config; it has {', '.join(map(str, specs))}"
    )


# One entry -> one spec ---------------------------------------------------------------------------


def _spec(config, family: Family, kind, entry: dict) -> RopeSpec:
    where = "" if kind is None else f" (layer type {kind!r})"
    try:
        return _spec_of_entry(config, family, kind, entry)
    except ValueError as e:
        if not where:
            raise
        raise ValueError(f"{e}{where}") from None


def _spec_of_entry(config, family: Family, kind, entry: dict) -> RopeSpec:
    rope_type = rope_type_of(entry)
    if rope_type == "axial" or (family.axial is not None and rope_type == "default"):
        return _vision_spec(config, family, entry)
    if rope_type == "dynamic" and entry.get("alpha") is not None:
        rope_type = "ntk_alpha"
    cls = SCALINGS.get(rope_type)
    if cls is None:
        raise ValueError(f"unknown rope_type {rope_type!r}; known: {', '.join(sorted(SCALINGS))}")
    head_dim, partial = widths_of(config, family, kind, entry)
    settings = _law_settings(config, family, cls, entry)
    if cls is Proportional:
        settings["partial_rotary_factor"], partial = partial, 1.0
    if kind == "compress" and cls is Yarn:
        settings["attention_factor"] = 1.0  # DeepSeek-V4 leaves cos and sin as they are
    scaling = scaling_from_plain({"rope_type": rope_type, **settings})
    settings = {
        "head_dim": head_dim,
        "theta": entry["rope_theta"],
        "partial_rotary_factor": partial,
        "layout": _layout(config, family),
        "scaling": scaling,
        "axes": _axes(family, entry),
        "softmax_scale_multiplier": _softmax_multiplier(config, family, scaling),
    }
    return RopeSpec(**{**settings, **family.spec, **_own_settings(config)})


def _law_settings(config, family: Family, cls: type[Scaling], entry) -> dict[str, Any]:
    names = [f.name for f in fields(cls)]
    settings = {}
    for key, value in entry.items():
        if key in _SHARED_KEYS or value is None:
            continue
        if key not in names and not _inert(cls, key, value):
            raise ValueError(
                f"rope_type {cls.rope_type!r} has no key {key!r}; "
                f"it has {', '.join(names) or 'none'}"
            )
        if key in names:
            settings[key] = value
    for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        if name in settings and settings[name] == 0:
            settings[name] = default  # the reference takes 0 for "not given"
    if "original_max_position_embeddings" in names:
        settings["original_max_position_embeddings"] = _original(config, family, cls, entry)
    if cls.rope_type == "longrope" and "factor" not in settings:
        original = settings["original_max_position_embeddings"]
        settings["factor"] = _max_length(config, family, entry) / original
    return settings


def _inert(cls, key, value) -> bool:
    """HunYuan writes YaRN's keys beside `alpha`, where they mean nothing."""
    if cls.rope_type != "ntk_alpha":
        return False
    if key == "factor" and value != 1:
        raise ValueError(f"alpha and a factor other than 1 contradict each other, got {value!r}")
    return key in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def _original(config, family: Family, cls, entry) -> int:
    name = "original_max_position_embeddings"
    inside, outside = entry.get(name), config.get(name)
    if cls.rope_type == "dynamic":
        given = agreed(name, None, inside, None, default=None)
        return as_length(_max_length(config, family, entry) if given is None else given, name)
    value = agreed(name, None, inside, outside, default=family.original)
    return as_length(_max_length(config, family, entry) if value is None else value, name)


def _max_length(config, family: Family, entry) -> int:
    name = "max_position_embeddings"
    value = agreed(name, None, entry.get(name), get(config, name), default=family.length)
    if value is None:
        raise ValueError(f"rope_type {rope_type_of(entry)!r} needs {name}, which the config lacks")
    return as_length(value, name)


def _layout(config, family: Family):
    layout = family.layout
    in_half_out, interleaved = config.get("rope_interleave"), get(config, "rope_interleaved")
    for name, value in (("rope_interleave", in_half_out), ("rope_interleaved", interleaved)):
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, got {value!r}")
    if in_half_out is not None:
        layout = "interleaved_in_half_out" if in_half_out else "half"
    if interleaved is not None and interleaved != (layout == "interleaved"):
        if not (interleaved and layout == "half" and in_half_out is None):
            raise ValueError(f"rope_interleaved {interleaved} contradicts the layout {layout!r}")
        layout = "interleaved"
    return layout


def _axes(family: Family, entry) -> Axes | None:
    sections = agreed(
        "mrope_section",
        None,
        entry.get("mrope_section"),
        entry.get("xdrope_section"),
        default=family.sections,
    )
    if sections is None:
        return None
    interleaved = agreed(
        "mrope_interleaved",
        None,
        entry.get("mrope_interleaved"),
        entry.get("interleaved"),
        default=None,
    )
    arrangement = family.arrangement
    if interleaved is not None:
        if not isinstance(interleaved, bool):
            raise ValueError(f"mrope_interleaved must be true or false, got {interleaved!r}")
        arrangement = "interleaved" if interleaved else "contiguous"
    return Axes(sections=sections, arrangement=arrangement, order=family.order)  # type: ignore


def _softmax_multiplier(config, family: Family, scaling) -> float:
    latent = family.rope_head_dim is not None or config.get("qk_rope_head_dim") is not None
    if latent and isinstance(scaling, Yarn) and scaling.mscale_all_dim:
        return scaling.magnitude(scaling.mscale_all_dim) ** 2
    return 1.0


def _vision_spec(config, family: Family, entry) -> RopeSpec:
    for key in entry:
        if key not in ("rope_type", "type", "rope_theta", "partial_rotary_factor"):
            raise ValueError(f"rope_type 'axial' has no key {key!r}")
    settings: dict[str, Any] = dict(family.axial or {"ladder": "own"})
    count = settings.pop("axes", 2)
    head_dim = head_dim_of(config, family, None)
    pairs = head_dim // count // 2
    if pairs < 1 or (count == 2 and head_dim % 4):
        raise ValueError(f"axial RoPE over {count} axes does not fit head_dim {head_dim}")
    return RopeSpec(
        head_dim=head_dim,
        theta=entry["rope_theta"],
        partial_rotary_factor=fraction(2 * pairs * count, head_dim),
        layout=_layout(config, family),
        axes=Axes(sections=(pairs,) * count, **settings),
    )


# What these configs have no key for --------------------------------------------------------------

OWN_KEY = "rope_spec"


def _own_settings(config) -> dict[str, Any]:
    own = config.get(OWN_KEY)
    if own is None:
        return {}
    if not isinstance(own, Mapping):
        raise ValueError(f"{OWN_KEY} must be a mapping, got {own!r}")
    return settings_from_plain(own)


def write(spec: RopeSpec) -> dict[str, Any]:
    """The config keys that `read` takes back as an equal spec.

    Names are those of transformers 5 (`head_dim`, `rope_parameters`, `rope_interleaved`, ...);
    what those have no name for goes into one further mapping, `rope_spec`. There is no
    `model_type`, so no class default interferes.

    Raises:
      ValueError: the spec has no `head_dim`.
    """
    if spec.head_dim is None:
        raise ValueError("a config needs a head width: give the spec a head_dim")
    own = spec.to_plain()
    parameters = {**scaling_to_plain(spec.scaling), "rope_theta": spec.theta}
    own.pop("theta", None)
    own.pop("scaling", None)
    if isinstance(spec.scaling, LongRope):
        parameters["factor"] = spec.scaling.factor  # never derived from another length
    if not isinstance(spec.scaling, Proportional) and "partial_rotary_factor" in own:
        parameters["partial_rotary_factor"] = own.pop("partial_rotary_factor")
    if spec.axes in _mrope(spec.axes):
        parameters["mrope_section"] = own.pop("axes")["sections"]
        if spec.axes.arrangement == "interleaved":
            parameters["mrope_interleaved"] = True
    out = {"head_dim": own.pop("head_dim"), "rope_parameters": parameters}
    layout = own.pop("layout", "half")
    if layout != "half":
        out["rope_interleaved" if layout == "interleaved" else "rope_interleave"] = True
    return {**out, OWN_KEY: own} if own else out


def _mrope(axes: Axes | None) -> tuple[Axes, ...]:
    """The arrangements that `mrope_section` can say."""
    if axes is None:
        return ()
    plain = Axes(sections=axes.sections)
    if axes.arrangement != "interleaved":
        return (plain,)
    return (plain, Axes(sections=axes.sections, arrangement="interleaved"))
