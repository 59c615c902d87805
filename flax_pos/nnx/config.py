"""The settings of a causal language model, as data."""

from dataclasses import dataclass, fields, replace
from typing import Literal

import jax.numpy as jnp

from flax_pos.types import Dims

Activation = Literal["gelu", "gelu_tanh", "silu", "relu"]


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
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    norm_bias: bool = True
    """Whether LayerNorm has a bias (RMSNorm never has one)."""
    qk_norm: bool = False
    """RMSNorm over each head of q and k, before positions rotate them."""

    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False

    tied: bool = True
    """One matrix for the embedding and the head."""
    embed_scale: float | None = None
    """Factor on the token embeddings (sqrt(D) in Gemma and in Vaswani et al. 2017)."""
    logit_softcap: float | None = None
    """Logits become c tanh(logits / c)."""
    attn_softcap: float | None = None
    """The same for attention logits, before the mask."""
    attn_scale: float | None = None
    """Factor on q.k; None: 1 / sqrt(H)."""

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
    attention: str = "auto"
    """Implementation, as in `flax_pos.attend`."""

    def __post_init__(self):
        for name in ("vocab_size", "width", "layers", "heads", "max_len"):
            self._check_size(name, getattr(self, name))
        for name in ("kv_heads", "head_dim", "mlp_width"):
            if getattr(self, name) is not None:
                self._check_size(name, getattr(self, name))
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
        choices = {
            "mlp": ("plain", "gated"),
            "activation": ("gelu", "gelu_tanh", "silu", "relu"),
            "norm": ("rms", "layer"),
            "dtype": ("float32", "bfloat16", "float16", "float64"),
            "param_dtype": ("float32", "bfloat16", "float16", "float64"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {allowed}")
        for name in ("norm_eps", "init_std"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be greater than 0")
        for name in ("logit_softcap", "attn_softcap", "attn_scale", "embed_scale"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be greater than 0, or None for none")

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
