"""Stopping a run between two updates."""

import signal
from typing import Any


class StopSignal:
    """Turns the first Ctrl-C (or a polite kill) into a request; the second stops at once."""

    def __init__(self):
        self.asked = False
        self._before: dict[int, Any] = {}

    def _ask(self, number, frame) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __enter__(self) -> "StopSignal":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._ask)
            except ValueError:  # not in the main thread: whoever called us handles signals
                break
        return self

    def __exit__(self, *exc) -> None:
        self._restore()
