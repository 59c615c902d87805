"""Copying random tokens: order counts, not only number."""

import dataclasses

from flax_pos.lab.tasks.base import register_task
from flax_pos.lab.tasks.parts import BOS, EOS, SEP, SPECIAL, Part, draw, draw_different, join, token
from flax_pos.lab.tasks.sequence import UpToTask, check_at_least


@register_task("random_copy")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomCopy(UpToTask):
    """`<bos> x <sep> x <eos>` for n random tokens x (Kazemnejad et al. 2023, arXiv 2305.19466,
    their task `cmc`).

    Where tokens repeat, looking up what followed the last one is not enough, and position is
    needed; without repeats it is enough.
    """

    symbols: int = 12
    """Different tokens; the vocabulary has four more."""
    repeats: bool = True
    """Whether a token may occur more than once in a sequence."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, symbols=1)
        if not self.repeats and self.symbols < self.test_size:
            raise ValueError(
                f"symbols={self.symbols} is too few for {self.test_size} tokens without repeats "
                "(repeats=False): raise it to test_size or more"
            )

    @property
    def symbols_needed(self):
        return SPECIAL + self.symbols

    def tokens(self, size):
        return 2 * size + 2

    def example(self, key, size, largest, variant):
        content = (draw if self.repeats else draw_different)(key, largest, self.symbols)
        return join(
            self.tokens(largest),
            token(BOS),
            Part(content, size),
            token(SEP),
            Part(content, size, answer=True),
            token(EOS, answer=True),
        )
