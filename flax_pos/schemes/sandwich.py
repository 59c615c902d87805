"""The inner product of two sinusoidal embeddings as a bias: it falls roughly like a logarithm."""

from dataclasses import dataclass

from flax_pos.functional.curves import sandwich
from flax_pos.functional.fields import check_integer
from flax_pos.functional.rope.frequencies import check_theta
from flax_pos.scheme import Scheme, register


@register("sandwich")
@dataclass(frozen=True, kw_only=True)
class Sandwich(Scheme):
    """`(PE_i . PE_j - d / 2) / (8 n / N)` on the logits of head n, nothing trained.

    It is what is left of sinusoidal embeddings in the logits once their products with words are
    dropped.
    """

    width: int = 128
    """d: width of the sinusoids, which sets how far the bias reaches; not the model's."""
    theta: float = 10000.0

    paper = "Chi et al. 2023, arXiv:2212.10356"
    formula = "b = (sum_m cos((i - j) theta^(-2m/d)) - d/2) N / (8 n), m = 1 .. d/2, n = 1 .. N"

    def __post_init__(self):
        check_integer("width", self.width, at_least=2)
        if self.width % 2:
            raise ValueError(f"width must be even, got {self.width}")
        check_theta(self.theta)

    def bias(self, params, q_at, k_at, heads):
        return sandwich(q_at.pos, k_at.pos, heads, self.width, self.theta)
