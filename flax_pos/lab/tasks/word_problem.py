"""The word problem of a permutation group."""

import dataclasses
import itertools
from typing import Literal

import numpy as np

from flax_pos.lab.tasks.automaton import AutomatonTask
from flax_pos.lab.tasks.base import register_task


@register_task("word_problem")
@dataclasses.dataclass(frozen=True, kw_only=True)
class WordProblem(AutomatonTask):
    """The product of permutations so far. For S_5 it is complete for NC1, beyond what attention
    with a fixed number of layers computes at every length; S_3 is solvable (Merrill et al. 2024,
    arXiv 2404.08819)."""

    group: Literal["S3", "S5"] = "S3"
    """Permutations of three or of five things: 6 or 120 states."""
    moves: Literal["all", "swaps"] = "all"
    """What the sequence is made of: all permutations, or the identity and those that swap two."""

    @property
    def elements(self) -> tuple[tuple[int, ...], ...]:
        """All permutations; the first one is the identity."""
        return tuple(itertools.permutations(range(int(self.group[1:]))))

    @property
    def table(self):
        elements = self.elements
        number = {p: i for i, p in enumerate(elements)}
        moved = [sum(i != x for i, x in enumerate(p)) for p in elements]
        moves = [p for p, m in zip(elements, moved, strict=True) if self.moves == "all" or m <= 2]
        after = [[number[tuple(m[i] for i in p)] for m in moves] for p in elements]
        return np.asarray(after, np.int32)
