"""Passkey retrieval: one needle in noise."""

import dataclasses

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.haystack import HaystackTask


@register_task("passkey")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Passkey(HaystackTask):
    """A number hidden at some depth of the noise, asked at the end (Mohtashami and Jaggi 2023,
    arXiv 2305.16300), over a grid of lengths and depths."""

    @property
    def _needles(self):
        return 1

    _asked = _names = _needles
