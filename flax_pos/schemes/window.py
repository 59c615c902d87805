"""Any scheme, with attention that reaches a limited way back."""

import dataclasses
from dataclasses import dataclass

from flax_pos.functional.fields import check_integer
from flax_pos.scheme import Scheme, Wrapper, register
from flax_pos.schemes.rope import Rope


@register("window")
@dataclass(frozen=True, kw_only=True)
class Window(Wrapper):
    """`inner`, where a token sees itself and the `window - 1` tokens before it, or the tokens of
    its own chunk only (`index // chunk`). Where `inner` has a narrower window, or a chunk, in some
    layer, that holds there."""

    inner: Scheme = Rope()  # noqa: RUF009 - frozen
    window: int | None = 512  # type: ignore[assignment]
    chunk: int | None = None  # type: ignore[assignment]

    paper = "Beltagy et al. 2020, arXiv:2004.05150 (window); Meta 2025, Llama 4 (chunk)"
    formula = "keys j with i - window < j <= i, or floor(j / chunk) = floor(i / chunk)"
    toy = {"window": 6}

    def __post_init__(self):
        super().__post_init__()
        for name in ("window", "chunk"):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value)
        if _narrower(self.window, self.inner.window) != self.window:
            raise ValueError(
                f"window={self.window} is wider than that of {self.inner.name!r}, which is "
                f"{self.inner.window}: give {self.inner.window} or less"
            )
        if _same_chunk(self.chunk, self.inner.chunk) != self.chunk:
            raise ValueError(
                f"{self.inner.name!r} sees chunks of {self.inner.chunk} tokens, and chunk=None "
                f"takes them away: give {self.inner.chunk}"
            )

    def for_layer(self, layer):
        inner = self.inner.for_layer(layer)
        if inner is self.inner:
            return self
        window = _narrower(self.window, inner.window)
        chunk = _same_chunk(self.chunk, inner.chunk)
        return dataclasses.replace(self, inner=inner, window=window, chunk=chunk)


def _narrower(own: int | None, inner: int | None) -> int | None:
    return min((w for w in (own, inner) if w is not None), default=None)


def _same_chunk(own: int | None, inner: int | None) -> int | None:
    if None not in (own, inner) and own != inner:
        raise ValueError(f"chunk={own} around a scheme with chunks of {inner}: give {inner}")
    return inner if own is None else own
