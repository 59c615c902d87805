"""RNoPE-SWA: most layers see a short window with RoPE, every fourth one all, without positions."""

from dataclasses import dataclass

from flax_pos.functional.fields import check_integer
from flax_pos.functional.rope import Layout
from flax_pos.scheme import register
from flax_pos.schemes.by_layer import Layered
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.window import Window


@register("rnope_swa")
@dataclass(frozen=True, kw_only=True)
class RNoPESWA(Layered):
    """Layers with RoPE and a sliding window, and after every `period - 1` of them one without
    positions and without a window."""

    local_window: int = 4096
    period: int = 4
    theta: float = 10000.0
    layout: Layout = "half"

    paper = "Yang et al. 2025, arXiv:2501.18795"
    formula = "layer l: nothing where l mod p = p - 1, else RoPE over i - j < w"
    toy = {"local_window": 6}

    def __post_init__(self):
        check_integer("local_window", self.local_window)
        check_integer("period", self.period, at_least=2)
        self.parts  # noqa: B018 - checks the other fields

    @property
    def parts(self):
        rope = Rope(theta=self.theta, layout=self.layout)
        return (Window(inner=rope, window=self.local_window), NoPE())

    @property
    def pattern(self):
        return (0,) * (self.period - 1) + (1,)
