"""Head and rotary widths of a config."""

from flax_pos.functional.rope.hf_families import Family
from flax_pos.functional.rope.hf_keys import agreed, get, rope_type_of
from flax_pos.functional.rope.settings import as_length, as_number


def widths_of(config, family: Family, kind, entry) -> tuple[int, float]:
    """Head width and the part of it that is rotated."""
    partial = agreed(
        "partial_rotary_factor",
        kind,
        entry.get("partial_rotary_factor"),
        get(config, "partial_rotary_factor"),
        default=None,
    )
    if partial is not None:
        partial = as_number(partial, "partial_rotary_factor")
    rope_head = config.get("qk_rope_head_dim")
    if family.rope_head_dim is not None or (rope_head is not None and not family.kinds):
        rope_head = family.rope_head_dim if rope_head is None else rope_head
        rope_head = as_length(rope_head, "qk_rope_head_dim")
        whole = get(config, "head_dim")
        if whole is not None:
            whole = as_length(whole, "head_dim")
        elif config.get("qk_nope_head_dim") is not None:
            whole = as_length(config["qk_nope_head_dim"], "qk_nope_head_dim") + rope_head
        if partial not in (None, 1.0) and whole is not None and int(whole * partial) != rope_head:
            raise ValueError(
                f"qk_rope_head_dim {rope_head} and partial_rotary_factor {partial} of a head of "
                f"{whole} contradict each other"
            )
        return rope_head, 1.0
    head_dim = head_dim_of(config, family, kind)
    rotary_dim = config.get("rotary_dim")
    if rotary_dim is None and family.kinds:
        rotary_dim = rope_head
    if rotary_dim is None and partial is None:
        rotary_dim = family.rotary_dim
    if rotary_dim is not None:
        rotary_dim = as_length(rotary_dim, "rotary_dim")
        if rotary_dim > head_dim:
            raise ValueError(f"rotary_dim {rotary_dim} is above head_dim {head_dim}")
        if partial is not None and int(head_dim * partial) != rotary_dim:
            raise ValueError(
                f"rotary_dim {rotary_dim} and partial_rotary_factor {partial} of head_dim "
                f"{head_dim} contradict each other"
            )
        return head_dim, fraction(rotary_dim, head_dim)
    if partial is None:
        partial = 1.0 if rope_type_of(entry) == "proportional" else family.partial
    return head_dim, partial


def fraction(rotary_dim: int, head_dim: int) -> float:
    """The factor f with `int(head_dim * f) == rotary_dim`."""
    f = rotary_dim / head_dim
    return f if int(head_dim * f) == rotary_dim else (rotary_dim + 0.5) / head_dim


def head_dim_of(config, family: Family, kind) -> int:
    if kind == "full_attention" and family.global_head_dim is not None:
        given = config.get("global_head_dim")
        return as_length(family.global_head_dim if given is None else given, "global_head_dim")
    given = get(config, "head_dim")
    if given is not None:
        return as_length(given, "head_dim")
    if family.head_dim is not None:
        return family.head_dim
    sizes = []
    for name, default in (("hidden_size", family.hidden), ("num_attention_heads", family.heads)):
        value = config.get("embed_dim") if name == "hidden_size" and family.axial else None
        value = get(config, name) if value is None else value
        if value is None and default is None:
            raise ValueError(f"the config has neither head_dim nor {name}")
        sizes.append(as_length(default if value is None else value, name))
    hidden, heads = sizes
    if hidden % heads:
        raise ValueError(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}; give head_dim"
        )
    return hidden // heads
