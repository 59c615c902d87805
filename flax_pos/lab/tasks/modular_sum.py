"""Sum of digits modulo a number."""

import dataclasses

import numpy as np

from flax_pos.lab.tasks.automaton import AutomatonTask
from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.sequence import check_at_least


@register_task("modular_sum")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ModularSum(AutomatonTask):
    """The sum of the digits 0 .. m - 1 so far, modulo m (modular arithmetic without brackets in
    Ruoss et al. 2023, arXiv 2305.16843; the summation task of Kazemnejad et al. 2023)."""

    modulus: int = 5
    """m; parity is m = 2."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, modulus=2)

    @property
    def table(self):
        digits = np.arange(self.modulus, dtype=np.int32)
        return (digits[:, None] + digits[None, :]) % self.modulus
