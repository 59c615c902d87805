import io

import pytest
from rich.console import Console

from flax_pos.lab import progress as module
from flax_pos.lab.progress import RunProgress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only the test moves."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_time_left_counts_programs_that_are_larger_and_what_is_not_training(clock):
    out = io.StringIO()
    programs = [(10, 100), (10, 100), (10, 400)]  # one is done, one begins, one is four times both
    with RunProgress(Console(file=out, width=200), programs) as shown:
        shown.skip(10, 100, whole=True)
        shown.begin()
        shown.phase("first", "compiling")
        clock[0] += 7.0
        clock[0] += 5.0
        shown.trained(5, 5.0, loss=1.0, tokens=50)
    # 450 tokens at 10 a second, and 7 s of compiling for the program to come.
    assert "15/30 updates" in out.getvalue()
    assert "52 s left" in out.getvalue()
