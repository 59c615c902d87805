"""No position information beyond the causal mask (NoPE)."""

from dataclasses import dataclass

from flax_pos.scheme import Scheme, register


@register("none")
@dataclass(frozen=True, kw_only=True)
class NoPE(Scheme):
    """No positions: order is visible only through the causal mask (Kazemnejad et al. 2023)."""

    paper = "Kazemnejad et al. 2023, arXiv:2305.19466"
    formula = "nothing is added; the causal mask alone breaks the symmetry"
