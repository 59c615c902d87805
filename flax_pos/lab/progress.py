"""What a person sees while a run goes on."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.text import Text

QUIET_SECONDS = 10.0
"""Least time between lines where there is no terminal to draw a bar on."""


def duration(seconds: float) -> str:
    """
    >>> duration(7.4), duration(245)
    ('7 s', '4 min 05 s')
    """
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "model"), counted(1200, "seed")
    ('1 model', '1,200 seeds')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def rate(tokens_per_second: float) -> str:
    """
    >>> rate(845.2), rate(84512.3), rate(2.5e6)
    ('845', '85k', '2.5M')
    """
    if tokens_per_second < 1000:
        return f"{tokens_per_second:.0f}"
    if tokens_per_second < 1e6:
        return f"{tokens_per_second / 1e3:.0f}k"
    return f"{tokens_per_second / 1e6:.1f}M"


class _Remaining(ProgressColumn):
    """Time left for the whole run."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        return Text("" if left is None else f"{duration(left)} left", style="cyan")


class RunProgress:
    """A live bar over all updates of a run; plain lines where the output is no terminal.

    Args:
      programs: for each program of the run its updates, and the tokens of all of them, by which
        the time left is reckoned: programs differ in what an update costs.
    """

    def __init__(self, console: Console, programs: Sequence[tuple[int, int]]):
        self.console = console
        self.total = total = sum(updates for updates, _ in programs)
        self.done = done = 0
        self._programs = len(programs)
        self._begun = 0
        self._tokens = sum(tokens for _, tokens in programs)
        self._trained_seconds = 0.0
        self._trained_tokens = 0
        self._entered = self._last_line = 0.0
        self._label = ""
        self._bar = Progress(
            TextColumn("[bold]{task.description:<12}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            _Remaining(),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, completed=done, state="", left=None)

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        self._entered = time.monotonic()
        return self

    def __exit__(self, *exc) -> None:
        self._bar.stop()

    def begin(self) -> None:
        """The next program: it is compiled, trained and scored."""
        self._begun += 1

    def skip(self, updates: int, tokens: int, *, whole: bool = False) -> None:
        """Updates that were made before; with `whole` all of a program."""
        self.done += updates
        self._tokens -= tokens
        self._programs -= whole

    def phase(self, label: str, state: str) -> None:
        """Something without updates: compiling, scoring."""
        self._label = label
        self._bar.update(self._task, description=label, state=state)

    def trained(self, steps: int, seconds: float, loss: float, tokens: int) -> None:
        """`steps` updates of the current scheme took `seconds` for `tokens` tokens."""
        self.done += steps
        self._trained_tokens += tokens
        self._trained_seconds += seconds
        left = self._left()
        state = f"loss {loss:.3f}  {rate(tokens / seconds)} tokens/s"
        self._bar.update(self._task, completed=self.done, state=state, left=left)
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line >= QUIET_SECONDS:
            self._last_line = now
            self.line(
                f"{self._label}: {self.done}/{self.total} updates  {state}  {duration(left)} left"
            )

    def _left(self) -> float:
        """Training at the pace so far, and for each program that has not begun what those that have
        spent on everything else: compiling, scoring, saving."""
        pace = self._trained_seconds / self._trained_tokens
        others = time.monotonic() - self._entered - self._trained_seconds
        to_begin = self._programs - self._begun
        return (self._tokens - self._trained_tokens) * pace + to_begin * others / self._begun

    def line(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
