"""The settings of a causal language model, as data."""

from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

import jax.numpy as jnp

from flax_pos.attention.dispatch import Implementation
from flax_pos.types import Dims

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu", "relu"]
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_CHOICES = {
    "mlp": ("plain", "gated"),
    "activation": get_args(Activation),
    "norm": ("rms", "layer"),
    "norm_at": ("input", "output", "both", "sum"),
    "residual": ("sequential", "parallel", "parallel_one_norm"),
    "qk_norm": ("none", "head", "heads", "projection"),
    "dtype": _DTYPES,
    "param_dtype": _DTYPES,
    "attention": get_args(Implementation),
}
_OPTIONAL_SIZES = (
    "kv_heads", "head_dim", "mlp_width", "value_dim", "q_rank", "kv_rank", "shared_key_dim",
    "vocab_rows", "embed_width",
)  # fmt: skip

_OPTIONAL_NUMBERS = (
    "logit_softcap", "attn_softcap", "attn_scale", "embed_scale", "qkv_clip", "mlp_clip",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and options of a `CausalLM`; positions are a `Scheme` beside it, not part of it.

    Plain numbers, strings and booleans only, so that TOML and JSON hold it. Sizes left at None
    are derived: read them through `dims` and `hidden_width`.

    Raises:
      ValueError: sizes that do not fit each other, or an unknown option; the message names the
        field, its value and what would be right.

    >>> ModelConfig(vocab_size=256, width=64, layers=2, heads=4).dims.head_dim
    16
    """

    vocab_size: int
    """Number of token ids V."""
    width: int
    """Model width D."""
    layers: int
    """Number of blocks L."""
    heads: int
    """Query heads N."""
    kv_heads: int | None = None
    """Key/value heads K, a divisor of `heads`; None: as many as query heads."""
    head_dim: int | None = None
    """Head width H; None: width / heads."""
    max_len: int = 1024
    """Number of positions that the model is built for (n_ctx)."""

    mlp: Literal["plain", "gated"] = "plain"
    mlp_width: int | None = None
    """Inner width of the MLP; None: 4 D, or for the gated one 8/3 D rounded up to a multiple of
    8, which has as many parameters."""
    activation: Activation = "gelu_tanh"
    mlp_clip: float | None = None
    """Gated: both halves are cut to this size, the activated one from above only (gpt-oss)."""
    mlp_offset: float = 0.0
    """Gated: added to the half that is not activated (gpt-oss: 1.0)."""
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    norm_bias: bool = True
    """Whether LayerNorm has a bias (RMSNorm never has one)."""
    norm_offset: float = 0.0
    """Added to the scale of every norm (Gemma stores scale - 1: 1.0)."""
    norm_at: Literal["input", "output", "both", "sum"] = "input"
    """Where norms are: on what attention and MLP read (pre-norm), on what they give (OLMo 2), on
    both (Gemma 2), or on the sum with the stream (post-norm, Vaswani et al. 2017)."""
    final_norm: bool = True
    """A norm after the last block."""
    residual: Literal["sequential", "parallel", "parallel_one_norm"] = "sequential"
    """Whether the MLP reads the stream after attention or beside it; in parallel with a norm of
    its own (GPT-NeoX) or with that of attention (GPT-J)."""
    qk_norm: Literal["none", "head", "heads", "projection"] = "none"
    """Norm of q and k before positions rotate them: over each head with one scale for all
    (Qwen 3), with a scale per head (StableLM 2), or over the whole projection (OLMo 2)."""

    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    attn_scale: float | None = None
    """Factor on q.k; None: 1 / sqrt(H)."""
    attn_softcap: float | None = None
    """Attention logits become c tanh(logits / c), before bias and mask."""
    attn_sinks: bool = False
    """A learnt logit per head beside those of the keys, whose weight goes nowhere (gpt-oss)."""
    qkv_clip: float | None = None
    """q, k and v are cut to this size (MPT)."""
    value_dim: int | None = None
    """Width of a value; None: that of a key."""
    q_rank: int | None = None
    """Width of the vector that queries are made from (latent attention); None: the model's."""
    kv_rank: int | None = None
    """Width of the vector that keys and values are made from (latent attention)."""
    shared_key_dim: int | None = None
    """Last channels of a latent key that all heads share."""

    tied: bool = True
    """One matrix for the embedding and the head."""
    vocab_rows: int | None = None
    """Rows of the embedding where it has surplus ones, which no id reads and which get no
    logits, such as V rounded up to what the devices of a mesh divide; None: V."""
    embed_width: int | None = None
    """Width of embedding and head where it is not D: then products lead to D and back (OPT)."""
    embed_scale: float | None = None
    """Factor on the token embeddings (sqrt(D) in Gemma and in Vaswani et al. 2017)."""
    round_embed_scale: bool = False
    """Round that factor to the compute dtype first (Gemma)."""
    embed_norm: bool = False
    """A norm on the embeddings (BLOOM)."""
    head_bias: bool = False
    logit_scale: float = 1.0
    """Factor on the logits."""
    logit_softcap: float | None = None
    """Logits become c tanh(logits / c)."""

    dtype: str = "float32"
    """Compute dtype of activations; norms, softmax, positions and logits are float32 anyway."""
    param_dtype: str = "float32"
    init_std: float = 0.02
    """Standard deviation of the normal distribution that matrices start from."""
    scale_residual_init: bool = True
    """Start the matrices that write to the residual stream smaller by sqrt(2 L), as GPT-2."""

    scan_layers: bool = True
    """One stacked block under `lax.scan` (compile time does not grow with depth), or separate
    blocks (no slicing of weights: faster one-token steps). `restack` converts."""
    remat: bool = False
    """Recompute each block's activations in the backward pass instead of keeping them."""
    attention: Implementation = "auto"
    """Implementation, as in `flax_pos.attend`."""

    def __post_init__(self):
        for name in ("vocab_size", "width", "layers", "heads", "max_len"):
            self._check_size(name, getattr(self, name))
        for name in _OPTIONAL_SIZES:
            if getattr(self, name) is not None:
                self._check_size(name, getattr(self, name))
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {allowed}")
        for name in ("norm_eps", "init_std", "logit_scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be greater than 0")
        for name in _OPTIONAL_NUMBERS:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be greater than 0, or None for none")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(
                f"width={self.width} is not a multiple of heads={self.heads}; "
                "change one of them or set head_dim"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}; "
                "each key/value head serves the same number of query heads"
            )
        if self.residual != "sequential" and self.norm_at != "input":
            raise ValueError(
                f"residual={self.residual!r} has its norms at the input; "
                f"norm_at={self.norm_at!r} needs residual='sequential'"
            )
        if self.mlp != "gated" and (self.mlp_clip is not None or self.mlp_offset):
            raise ValueError(
                f"mlp_clip={self.mlp_clip} and mlp_offset={self.mlp_offset} need mlp='gated', got "
                f"mlp={self.mlp!r}"
            )
        if self.vocab_rows is not None and self.vocab_rows < self.vocab_size:
            raise ValueError(
                f"vocab_rows={self.vocab_rows} is less than vocab_size={self.vocab_size}"
            )
        if self.kv_rank is None:
            if self.shared_key_dim is not None:
                raise ValueError(f"shared_key_dim={self.shared_key_dim} needs kv_rank")
        elif self.kv_heads not in (None, self.heads):
            raise ValueError(
                f"kv_rank={self.kv_rank} gives every head its own key: "
                f"kv_heads={self.kv_heads} must be None"
            )
        elif (self.shared_key_dim or 0) > self.dims.head_dim:
            raise ValueError(
                f"shared_key_dim={self.shared_key_dim} is more than head_dim={self.dims.head_dim}"
            )

    @staticmethod
    def _check_size(name: str, value) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1")

    @property
    def dims(self) -> Dims:
        """What position schemes may ask about the model."""
        return Dims(
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            head_dim=self.head_dim or self.width // self.heads,
            layers=self.layers,
            max_len=self.max_len,
        )

    @property
    def hidden_width(self) -> int:
        """Inner width of the MLP, resolved."""
        if self.mlp_width is not None:
            return self.mlp_width
        if self.mlp == "plain":
            return 4 * self.width
        return -(-8 * self.width // 24) * 8

    @property
    def v_dim(self) -> int:
        """Width of a value, resolved."""
        return self.value_dim or self.dims.head_dim

    @property
    def compute_dtype(self):
        return jnp.dtype(self.dtype)

    @property
    def residual_std(self) -> float:
        """`init_std` of the matrices that write to the residual stream."""
        scale = (2 * self.layers) ** -0.5 if self.scale_residual_init else 1.0
        return self.init_std * scale

    def replace(self, **changes) -> "ModelConfig":
        """A copy with some fields changed; an unknown field is a ValueError."""
        unknown = sorted(changes.keys() - {f.name for f in fields(self)})
        if unknown:
            raise ValueError(f"ModelConfig has no field {unknown[0]!r}")
        return replace(self, **changes)


__all__ = ["Activation", "ModelConfig"]
