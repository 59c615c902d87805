"""Copying random tokens twice."""

import dataclasses

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import BOS, EOS, SEP, SPECIAL, Part, draw, join, token
from flax_pos.lab.tasks.sequence import UpToTask, check_at_least

NEXT = SPECIAL


@register_task("copy_twice")
@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyTwice(UpToTask):
    """`<bos> x <sep> x <next> x <eos>` for n random tokens x: the second copy may be read off
    the first, which is always as far away (Kazemnejad et al. 2023, arXiv 2305.19466, `cmc2x`)."""

    symbols: int = 12
    """Different tokens; the vocabulary has five more."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, symbols=1)

    @property
    def symbols_needed(self):
        return NEXT + 1 + self.symbols

    def tokens(self, size):
        return 3 * size + 3

    def example(self, key, size, largest, variant):
        content = draw(key, largest, self.symbols, first=NEXT + 1)
        copy = Part(content, size, answer=True)
        return join(
            self.tokens(largest),
            token(BOS),
            Part(content, size),
            token(SEP),
            copy,
            token(NEXT, answer=True),
            copy,
            token(EOS, answer=True),
        )
