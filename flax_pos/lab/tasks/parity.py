"""Parity of bits."""

import dataclasses

import numpy as np

from flax_pos.lab.tasks.automaton import AutomatonTask
from flax_pos.lab.tasks.base import register_task


@register_task("parity")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity(AutomatonTask):
    """Whether the number of ones so far is odd: the plainest state that a fixed number of layers
    cannot track at every length (Hahn 2020, arXiv 1906.06755)."""

    @property
    def table(self):
        return np.array([[0, 1], [1, 0]], np.int32)
