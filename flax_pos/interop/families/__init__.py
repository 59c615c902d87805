"""The families of models that can be loaded. One entry each: a table of settings, the scheme, and
a table of names. Nothing else in the package knows them.

What a key or a tensor means is from the public definition of each architecture.
"""

from flax_pos.interop.errors import CheckpointError
from flax_pos.interop.families.classic import BLOOM, GPT2, GPT_NEOX, GPTJ, MPT, OPT
from flax_pos.interop.families.experts import DEEPSEEK_V3, GPT_OSS, LLAMA4
from flax_pos.interop.families.falcon import FALCON_ONE_NORM, FALCON_SEQUENTIAL, FALCON_TWO_NORMS
from flax_pos.interop.families.gemma import GEMMA2, GEMMA3
from flax_pos.interop.families.llama import (
    COHERE2,
    GLM4,
    LLAMA,
    MISTRAL,
    OLMO2,
    PHI3,
    QWEN2,
    QWEN3,
    SMOLLM3,
    STABLELM,
)
from flax_pos.interop.family import Family
from flax_pos.interop.keys import Keys

FAMILIES = (
    LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3, OLMO2, PHI3, GLM4, STABLELM, COHERE2, GEMMA2, GEMMA3,
    DEEPSEEK_V3, LLAMA4, GPT_OSS, GPT2, GPTJ, GPT_NEOX, OPT, BLOOM, MPT, FALCON_TWO_NORMS,
    FALCON_ONE_NORM, FALCON_SEQUENTIAL,
)  # fmt: skip


def family_of(keys: Keys) -> Family:
    """The family that a config belongs to.

    Raises:
      CheckpointError: none does; the message lists those that there are.
    """
    name = keys.get("model_type")
    for family in FAMILIES:
        if name in family.types and all(_fits(keys, *entry) for entry in family.when.items()):
            return family
    known = sorted({name for family in FAMILIES for name in family.types})
    raise CheckpointError(
        f"{keys.source}: model_type {name!r} is not supported; supported: {', '.join(known)}"
    )


def _fits(keys: Keys, name: str, wanted) -> bool:
    return keys.config.get(name) in (wanted if isinstance(wanted, tuple) else (wanted,))


__all__ = ["FAMILIES", "family_of"]
