"""A penalty on the logits that grows linearly with distance, at a fixed slope per head."""

from dataclasses import dataclass

from flax_pos.functional.distance import alibi_bias, alibi_slopes
from flax_pos.functional.fields import check_number
from flax_pos.scheme import Scheme, register


@register("alibi")
@dataclass(frozen=True, kw_only=True)
class Alibi(Scheme):
    """`-slope[n] * |query - key|` on the logits, for any number of heads."""

    max_bias: float = 8.0
    """Slopes run down to `2 ** -max_bias` (MPT's `alibi_bias_max`)."""

    scale: float = 1.0
    """Factor on all slopes (Falcon scales the bias as it scales q.k)."""

    paper = "Press et al. 2022, arXiv:2108.12409"
    formula = "b = -m_n |i - j|, m_n = 2^(-8 n / N), n = 1 .. N"

    def __post_init__(self):
        check_number("max_bias", self.max_bias, above=0)
        check_number("scale", self.scale, above=0)

    def bias(self, params, q_at, k_at, heads):
        slopes = self.scale * alibi_slopes(heads, max_bias=self.max_bias)
        return alibi_bias(slopes, q_at.pos, k_at.pos)
