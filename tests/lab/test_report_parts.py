"""What a report says and draws, from rows made up here."""

import itertools
from math import nan

import numpy as np
import pytest
from matplotlib.figure import Figure

from flax_pos.lab.figures import _draw_seeds, styled
from flax_pos.lab.report import _trained
from flax_pos.lab.results import Row
from flax_pos.lab.tasks import get_task, list_tasks


@pytest.mark.parametrize("log_every", [1, 3, 20, 50])
@pytest.mark.parametrize("steps", [1, 7, 20, 99, 100])
def test_the_training_loss_is_the_mean_of_the_updates_it_says(steps, log_every):
    """Update number i has the loss i: lines hold means of updates, the last of fewer."""
    ends = (*range(log_every, steps, log_every), steps)
    means = tuple(float(np.mean(range(a, b))) for a, b in itertools.pairwise((0, *ends)))
    row = Row(label="a", scheme="a", result={}, part={}, steps=ends, losses=(means, means))
    last = sum(row.tail)
    assert steps / 10 <= last < steps / 10 + log_every
    assert row.train_loss == pytest.approx([np.mean(range(steps - last, steps))] * 2)


def test_a_curve_of_one_point_can_be_seen():
    axes = Figure().add_subplot()
    for seeds, marker in (([[1.0, 2.0]], "None"), ([[1.0]] * 3, "o"), ([[1.0, nan]] * 3, "o")):
        axes.clear()
        _draw_seeds(axes, range(len(seeds[0])), seeds, "rope", {})
        assert {str(line.get_marker()) for line in axes.lines} == {marker}


def test_rows_look_different():
    for count in (2, 6, 70):
        looks = [style for _, style in styled(range(count))]
        assert len({(s["color"], str(s["linestyle"])) for s in looks}) == count
    first = [style for _, style in styled(range(7))]
    assert len({str(s["linestyle"]) for s in first}) == 7
    assert first[0]["zorder"] == min(s["zorder"] for s in first)


@pytest.mark.parametrize("name", list_tasks())
def test_the_trained_length_is_told_in_one_wording(name):
    task = get_task(name)()
    assert _trained(task).startswith(f"{task.reach_at_training} {task.unit}")
    assert (f"whole sequences: {task.train_length} tokens" in _trained(task)) == (
        (task.reach_at_training, task.unit) != (task.train_length, "tokens")
    )
