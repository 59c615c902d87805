"""What each `model_type` means where its config is silent: class defaults of transformers 5.24."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from flax_pos.functional.rope.rotation import Layout


class Sublayer(NamedTuple):
    """Defaults of one kind of layer in a model whose layers differ."""

    theta_key: str
    """Top-level key of an older config that holds this kind's base."""
    theta: float
    scaled: bool
    """Whether a flat `rope_scaling` is about this kind."""
    extra: dict[str, Any] = {}  # noqa: RUF012 - read only
    """Further rope parameters by default."""


@dataclass(frozen=True)
class Family:
    """Defaults of one `model_type`."""

    hidden: int | None = None
    heads: int | None = None
    length: int | None = None
    """`max_position_embeddings`."""
    theta: float = 10000.0
    partial: float = 1.0
    layout: Layout = "half"
    head_dim: int | None = None
    rope_head_dim: int | None = None
    """Default of `qk_rope_head_dim` (multi-head latent attention): only that part has RoPE, and a
    `mscale_all_dim` also multiplies the softmax scale."""
    global_head_dim: int | None = None
    """Head width of full-attention layers, where it is another."""
    original: int | None = None
    """Default of the top-level `original_max_position_embeddings`."""
    rotary_dim: int | None = None
    rope: dict[str, Any] | None = None
    """`rope_parameters` where the config has none."""
    sections: tuple[int, ...] | None = None
    arrangement: str = "contiguous"
    order: tuple[int, ...] | None = None
    kinds: dict[str, Sublayer] = field(default_factory=dict)
    """Kinds of layers that have rotary settings of their own."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Names in `layer_types` that share the settings of a kind."""
    nope: frozenset[str] = frozenset()
    """Kinds of layers without RoPE."""
    period: int | None = None
    """Every `period`-th layer has full attention, the others slide."""
    full_first: bool = False
    """The first layer of a period is the full one, not the last."""
    full_ends: str | None = None
    """A layer, `first` or `last`, that has full attention besides."""
    all_sliding: bool = False
    """A `sliding_window` holds for all layers."""
    nope_interval: int | None = None
    """Every so many layers one has no RoPE."""
    chunk: int | None = None
    """Default chunk of layers with RoPE (Llama 4)."""
    axial: dict[str, Any] | None = None
    """Vision towers: settings of `Axes` besides the sections."""
    spec: dict[str, Any] = field(default_factory=dict)
    """Fields of `RopeSpec` that the family sets."""
    none: bool = False
    """The family has no rotary embedding."""


F = Family


def _local_global(local_key, local, global_key, globe, both_scaled=False) -> dict[str, Sublayer]:
    return {
        "sliding_attention": Sublayer(local_key, local, both_scaled),
        "full_attention": Sublayer(global_key, globe, True),
    }


# fmt: off
_GEMMA3 = F(
    2304, 8, 131072, head_dim=256, period=6,
    kinds=_local_global("rope_local_base_freq", 1e4, "rope_theta", 1e6),
)
_GEMMA4 = F(
    2304, 8, 131072, head_dim=256, global_head_dim=512, period=6, full_ends="last",
    kinds={
        "sliding_attention": Sublayer("rope_local_base_freq", 1e4, False),
        "full_attention": Sublayer(
            "rope_theta", 1e6, True,
            {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        ),
    },
)
_MODERNBERT = F(
    768, 12, 8192, period=3, full_first=True,
    kinds=_local_global("local_rope_theta", 1e4, "global_rope_theta", 1.6e5, both_scaled=True),
)
_DEEPSEEK_V2 = F(4096, 32, 2048, rope_head_dim=64, layout="interleaved")
_DEEPSEEK_V3 = F(7168, 128, 4096, rope_head_dim=64, layout="interleaved_in_half_out")
_QWEN_VL = F(8192, 64, 32768, theta=1e6, sections=(16, 24, 24))
_QWEN3_VL = F(
    4096, 32, 128000, theta=5e5, head_dim=128, sections=(24, 20, 20), arrangement="interleaved"
)
_QWEN35 = F(
    4096, 16, 32768, head_dim=256, partial=0.25, sections=(11, 11, 10), arrangement="interleaved"
)
_GLM4V = F(4096, 32, 32768, layout="interleaved", sections=(8, 12, 12))
_ERNIE = F(1024, 16, 131072, theta=5e5, head_dim=128, layout="interleaved")
_AXIAL = F(axial={"ladder": "own"})
_NONE = F(none=True)
_YARN_MISTRAL = {
    "rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}

FAMILIES: dict[str, Family] = {
    "afmoe": F(2048, 16, 16384, head_dim=128, nope=frozenset({"full_attention"}), period=4),
    "apertus": F(4096, 32, 65536, theta=1.2e7),
    "arcee": F(2560, 32, 4096),
    "bitnet": F(2560, 20, 2048, theta=5e5),
    "bloom": _NONE,
    "chameleon": F(4096, 32, 4096),
    "codegen": F(4096, 16, 2048, layout="interleaved", rotary_dim=64),
    "cohere": F(8192, 64, 8192, theta=5e5, layout="interleaved"),
    "cohere2": F(
        8192, 64, 8192, layout="interleaved", nope=frozenset({"full_attention"}), period=4
    ),
    "cwm": F(6144, 48, 131072, theta=1e6, head_dim=128, period=4, full_first=True),
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": replace(_DEEPSEEK_V3, length=163840),
    "deepseek_v4": F(
        4096, 64, 1048576, head_dim=512, partial=0.125, layout="interleaved",
        kinds={
            "main": Sublayer("rope_theta", 1e4, False),
            "compress": Sublayer("compress_rope_theta", 1.6e5, True),
        },
        aliases={
            "sliding_attention": "main",
            "compressed_sparse_attention": "compress",
            "heavily_compressed_attention": "compress",
        },
        spec={"rotary_slice": "trailing"},
    ),
    "diffllama": F(2048, 32, 2048),
    "dots1": F(4608, 32, 2048),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": replace(_ERNIE, hidden=2560, heads=20, head_dim=None),
    "ernie4_5_vl_moe_text": replace(
        _ERNIE, hidden=2560, heads=20, head_dim=None, sections=(22, 22, 20),
        arrangement="alternating", order=(1, 2, 0),
    ),
    "exaone4": F(4096, 32, 2048, nope=frozenset({"full_attention"}), period=4),
    "falcon": F(4544, 71, 2048),
    "falcon_h1": F(4096, 32, 8192),
    "gemma": F(3072, 16, 8192, head_dim=256),
    "gemma2": F(2304, 8, 8192, head_dim=256, period=2),
    "gemma3_text": _GEMMA3,
    "gemma3n_text": replace(_GEMMA3, hidden=2048, length=32768, period=5),
    "gemma4_text": _GEMMA4,
    "gemma4_vision": F(
        768, 12, 131072, head_dim=64, theta=100.0, axial={"ladder": "own", "blocks": True}
    ),
    "glm": F(4096, 32, 131072, head_dim=128, partial=0.5, layout="interleaved"),
    "glm4": F(4096, 32, 131072, head_dim=128, partial=0.5, layout="interleaved"),
    "glm4_moe": F(4096, 96, 131072, partial=0.5),
    "glm4_moe_lite": replace(_DEEPSEEK_V3, hidden=2048, heads=20, length=202752),
    "glm4v_moe_text": F(4096, 96, 131072, partial=0.5, sections=(8, 12, 12)),
    "glm4v_text": _GLM4V,
    "glm_moe_dsa": replace(_DEEPSEEK_V3, hidden=6144, heads=64, length=202752),
    "gpt2": _NONE,
    "gpt_neo": _NONE,
    "gpt_neox": F(6144, 64, 2048, partial=0.25),
    "gpt_neox_japanese": F(2560, 32, 2048),
    "gpt_oss": F(
        2880, 64, 131072, theta=1.5e5, head_dim=64, period=2,
        rope={
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4096,
        },
    ),
    "gptj": F(4096, 16, 2048, layout="interleaved", rotary_dim=64),
    "granite": F(4096, 32, 2048),
    "granitemoe": F(4096, 32, 2048),
    "granitemoehybrid": F(4096, 32, 2048),
    "granitemoeshared": F(4096, 32, 2048),
    "helium": F(2560, 20, 4096, theta=1e5, head_dim=128, layout="interleaved"),
    "hunyuan_v1_dense": F(4096, 32, 2048),
    "hunyuan_v1_moe": F(4096, 32, 2048),
    "hunyuan_vl_text": F(4096, 32, 2048),
    "inkling_text": _NONE,
    "internlm2": F(4096, 32, 2048),
    "internlm3": F(4096, 32, 32768, head_dim=128),
    "kimi_k2": replace(_DEEPSEEK_V3, theta=5e4, heads=64, length=131072, layout="interleaved"),
    "kimi_k25_vision": F(
        1152, 16, axial={"ladder": "own", "arrangement": "alternating", "order": (1, 0)}
    ),
    "kimi_linear": _NONE,
    "lfm2": F(2560, 32, 128000, theta=1e6),
    "lfm2_moe": F(2048, 32, 128000, theta=1e6),
    "llama": F(4096, 32, 2048),
    "llama4_text": F(
        5120, 40, 131072, theta=5e5, head_dim=128, layout="interleaved",
        nope_interval=4, chunk=8192,
    ),
    "llama4_vision_model": F(
        768, 16, layout="interleaved", axial={"ladder": "own", "order": (1, 0)}
    ),
    "longcat_flash": replace(_DEEPSEEK_V3, hidden=6144, heads=64, length=131072, theta=1e7),
    "mimo_v2_flash": F(
        4096, 64, 131072, head_dim=192, partial=0.334, period=6, full_ends="first",
        kinds=_local_global("swa_rope_theta", 1e4, "rope_theta", 5e6),
    ),
    "minicpm": F(4096, 32, 2048),
    "minicpm3": F(2560, 40, 32768, rope_head_dim=32),
    "minimax": F(4096, 32, 131072, theta=1e6),
    "minimax_m2": F(3072, 48, 196608, theta=5e6, head_dim=128),
    "minimax_m3_vl_vision": F(1280, 16, axial={"ladder": "own", "axes": 3}),
    "ministral3": F(
        4096, 32, 262144, head_dim=128,
        rope={
            **_YARN_MISTRAL, "rope_theta": 1e6, "factor": 16.0,
            "original_max_position_embeddings": 16384,
        },
    ),
    "mistral": F(4096, 32, 131072, all_sliding=True),
    "mistral4": F(
        4096, 32, 1048576, rope_head_dim=64, layout="interleaved_in_half_out",
        rope={
            **_YARN_MISTRAL, "rope_theta": 1e4, "factor": 128.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "mistral_large4_text": F(
        6144, 64, 1048576, rope_head_dim=64, layout="interleaved_in_half_out", nope_interval=4,
        rope={
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 2048.0, "attention_factor": 1.0,
            "original_max_position_embeddings": 512, "beta_fast": 32.0, "beta_slow": 1.0,
        },
        spec={"learnable": True},
    ),
    "mixtral": F(4096, 32, 131072, theta=1e6, all_sliding=True),
    "mllama_text_model": F(4096, 32, 131072, theta=5e5),
    "modernbert": _MODERNBERT,
    "modernbert-decoder": _MODERNBERT,
    "moonshine": F(288, 8, 512, partial=0.9, layout="interleaved"),
    "moshi": F(4096, 32, 3000),
    "mpt": _NONE,
    "nanochat": F(768, 6, 2048, spec={"reverse": True}),
    "nemotron": F(6144, 48, 4096, partial=0.5),
    "nomic_bert": F(768, 12, 2048, theta=1e3),
    "olmo": F(4096, 32, 2048),
    "olmo2": F(4096, 32, 2048),
    "olmo3": F(
        4096, 32, 2048, theta=5e5, period=4,
        kinds=_local_global("rope_theta", 5e5, "rope_theta", 5e5),
    ),
    "olmoe": F(2048, 16, 4096),
    "openai_privacy_filter": F(640, 14, 131072, theta=1.5e5, head_dim=64, layout="interleaved"),
    "opt": _NONE,
    "persimmon": F(4096, 64, 16384, partial=0.5),
    "phi": F(2048, 32, 2048, partial=0.5),
    "phi3": F(3072, 32, 4096, original=4096, all_sliding=True),
    "phi4_multimodal": F(3072, 32, 131072, original=4096),
    "phimoe": F(4096, 32, 131072, theta=1e6),
    "pixtral": F(1024, 16, axial={"ladder": "strided"}),
    "qwen2": F(4096, 32, 32768),
    "qwen2_5_omni_text": replace(_QWEN_VL, hidden=3584, heads=28),
    "qwen2_5_vl_text": _QWEN_VL,
    "qwen2_5_vl_vision": replace(_AXIAL, hidden=1280, heads=16),
    "qwen2_moe": F(2048, 16, 32768),
    "qwen2_vl_text": _QWEN_VL,
    "qwen2_vl_vision": replace(_AXIAL, hidden=1280, heads=16),
    "qwen3": F(4096, 32, 32768, head_dim=128),
    "qwen3_5_moe_text": replace(_QWEN35, hidden=2048),
    "qwen3_5_moe_vision": replace(_AXIAL, hidden=1152, heads=16),
    "qwen3_5_text": _QWEN35,
    "qwen3_5_vision": replace(_AXIAL, hidden=1152, heads=16),
    "qwen3_moe": F(2048, 32, 32768),
    "qwen3_next": F(2048, 16, 32768, head_dim=256, partial=0.25),
    "qwen3_omni_moe_text": replace(
        _QWEN3_VL, hidden=2048, heads=28, length=32768, theta=1e6, head_dim=None
    ),
    "qwen3_vl_moe_text": replace(_QWEN3_VL, hidden=2048, heads=16, head_dim=None),
    "qwen3_vl_text": _QWEN3_VL,
    "qwen3_vl_vision": replace(_AXIAL, hidden=1152, heads=16),
    "roformer": F(768, 12, 1536, layout="interleaved"),
    "seed_oss": F(4096, 80, 524288, head_dim=128),
    "smollm3": F(2048, 16, 32768, theta=2e6, nope_interval=4),
    "stablelm": F(2560, 32, 4096, partial=0.25),
    "starcoder2": F(3072, 24, 4096, all_sliding=True),
    "t5": _NONE,
    "vaultgemma": F(2304, 8, 8192, head_dim=256, period=2),
    "youtu": replace(_DEEPSEEK_V3, hidden=2048, heads=16, length=131072),
}
# fmt: on

# Names that other files use for the same thing: wrappers of a text model, remote code, old files.
SAME_AS = {
    "aya": "cohere",
    "baichuan": "llama",
    "deepseek": "llama",
    "deepseek_ocr2_text": "llama",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified_text": "gemma4_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "hunyuan_vl": "hunyuan_vl_text",
    "inkling": "inkling_text",
    "inkling_mm_model": "inkling_text",
    "kimi_k25": "kimi_k2",
    "llama4": "llama4_text",
    "mistral_large4": "mistral_large4_text",
    "mllama": "mllama_text_model",
    "phi-msft": "phi",
    "phi3_v": "phi3",
    "phi3small": "phi3",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "stablelm_epoch": "stablelm",
    "t5gemma2_text": "gemma3_text",
    "yi": "llama",
}


def family_of(model_type: str | None) -> Family | None:
    """Defaults of a `model_type`; None where it is not known."""
    if model_type is None:
        return None
    return FAMILIES.get(SAME_AS.get(model_type, model_type))
