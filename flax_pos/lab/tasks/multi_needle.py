"""Several needles in noise, some of which are asked."""

import dataclasses

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.haystack import HaystackTask
from flax_pos.lab.tasks.sequence import check_at_least


@register_task("multi_needle")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiNeedle(HaystackTask):
    """Numbers under different names at several depths of the noise, of which one is asked, or more
    in any order (multi-key and multi-query retrieval of RULER, Hsieh et al. 2024,
    arXiv 2404.06654). The grid goes by the depth of the one asked first."""

    needles: int = 4
    asked: int = 1
    names: int = 16
    """Different names, more of them than needles."""

    def __post_init__(self):
        check_at_least(self, needles=1, asked=1, names=self.needles)
        if self.asked > self.needles:
            raise ValueError(f"asked={self.asked} must be at most needles={self.needles}")
        super().__post_init__()

    @property
    def _needles(self):
        return self.needles

    @property
    def _asked(self):
        return self.asked

    @property
    def _names(self):
        return self.names
