"""Any scheme, with attention that reaches a limited way back."""

from dataclasses import dataclass

from flax_pos.scheme import Scheme, Wrapper, register
from flax_pos.schemes.rope import Rope


@register("window")
@dataclass(frozen=True, kw_only=True)
class Window(Wrapper):
    """`inner`, where a token sees itself and the `window - 1` tokens before it, or the tokens of
    its own chunk only (`index // chunk`)."""

    inner: Scheme = Rope()  # noqa: RUF009 - frozen
    window: int | None = 512  # type: ignore[assignment]
    chunk: int | None = None  # type: ignore[assignment]

    paper = "Beltagy et al. 2020, arXiv:2004.05150 (window); Meta 2025, Llama 4 (chunk)"
    formula = "keys j with i - window < j <= i, or floor(j / chunk) = floor(i / chunk)"
    toy = {"window": 6}

    def __post_init__(self):
        for name in ("window", "chunk"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
