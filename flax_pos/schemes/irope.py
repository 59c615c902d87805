"""iRoPE (Llama 4): layers with RoPE in chunks, every fourth one sees all, without positions."""

from dataclasses import dataclass

from flax_pos.functional.fields import check_integer
from flax_pos.functional.rope import Layout
from flax_pos.scheme import register
from flax_pos.schemes.by_layer import Layered
from flax_pos.schemes.qk_norm import QKNorm
from flax_pos.schemes.query_temperature import QueryTemperature
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.stack import Stack
from flax_pos.schemes.window import Window


@register("irope")
@dataclass(frozen=True, kw_only=True)
class IRope(Layered):
    """Layers with RoPE, normalised q and k and attention in chunks, and after every `period - 1`
    of them one without positions over all keys, whose queries grow with the logarithm of their
    position."""

    local_chunk: int = 8192
    period: int = 4
    theta: float = 500000.0
    layout: Layout = "interleaved"
    temperature: float = 0.1
    """Growth of queries per unit of logarithm, in layers without positions."""
    temperature_length: int = 8192

    paper = "Meta 2025, Llama 4"
    formula = "layer l: q (1 + s log(1 + (i + 1) // L)) where l mod p = p - 1, else RoPE in chunks"
    toy = {"local_chunk": 6, "temperature_length": 8}

    def __post_init__(self):
        check_integer("local_chunk", self.local_chunk)
        check_integer("period", self.period, at_least=2)
        self.parts  # noqa: B018 - checks the other fields

    @property
    def parts(self):
        rope = Stack(parts=(Rope(theta=self.theta, layout=self.layout), QKNorm()))
        growing = QueryTemperature(scale=self.temperature, length=self.temperature_length)
        return (Window(inner=rope, window=None, chunk=self.local_chunk), growing)

    @property
    def pattern(self):
        return (0,) * (self.period - 1) + (1,)
