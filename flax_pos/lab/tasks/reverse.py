"""Reversing random tokens."""

import dataclasses

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import BOS, EOS, SEP, SPECIAL, Part, backwards, draw, join, token
from flax_pos.lab.tasks.sequence import UpToTask, check_at_least


@register_task("reverse")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Reverse(UpToTask):
    """`<bos> x <sep> reversed x <eos>`: the distance to what is needed grows by two each token
    (Kazemnejad et al. 2023, arXiv 2305.19466, `mc`; Ruoss et al. 2023, arXiv 2305.16843)."""

    symbols: int = 12
    """Different tokens; the vocabulary has four more."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, symbols=1)

    @property
    def symbols_needed(self):
        return SPECIAL + self.symbols

    def tokens(self, size):
        return 2 * size + 2

    def example(self, key, size, largest, variant):
        content = draw(key, largest, self.symbols)
        return join(
            self.tokens(largest),
            token(BOS),
            Part(content, size),
            token(SEP),
            Part(backwards(content, size), size, answer=True),
            token(EOS, answer=True),
        )
