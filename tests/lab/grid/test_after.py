"""What is measured after training, on losses and models whose behaviour is known."""

import dataclasses

import jax
import numpy as np
import pytest

from flax_pos.lab.figures import heat_maps
from flax_pos.lab.grid.anatomy import anatomy
from flax_pos.lab.grid.context import GAIN, PLAIN, SLIDING, context_curves, stretches
from flax_pos.lab.grid.ranks import rank_map, ranks
from flax_pos.lab.grid.results import Row
from flax_pos.lab.members import parse_scheme
from flax_pos.lab.program import Model
from flax_pos.lab.tasks import get_task
from flax_pos.lab.tasks.text import Text
from flax_pos.nnx import ModelConfig

# Context ---------------------------------------------------------------------------------------

TASK = Text(length=16, multiples=(1, 2, 4))
TEXT = np.arange(3000, dtype=np.int32)
"""Every token names its own place."""


def curves_of(loss, limit=64, seeds=1):
    """The curves of models whose loss for a target is `loss(tokens before it in its window)`."""
    scored = []
    for stretch in stretches(TASK, TEXT):
        shape = stretch.evaluation.ids.shape
        nll = np.broadcast_to(loss(np.arange(shape[1]) + 1.0), (seeds, *shape))
        scored.append((stretch, nll, stretch.evaluation.length <= limit))
    return context_curves(scored)


def test_every_context_scores_the_same_text_once():
    wanted = np.arange(1, 64 + 1024 + 1)
    seen = []
    for evaluation, made in stretches(TASK, TEXT):
        first = 0
        for n, windows in made.items():
            rows = slice(first, first + len(windows.length))
            first = rows.stop
            seen.append(n)
            assert sorted(evaluation.labels[rows][evaluation.scored[rows]]) == wanted.tolist()
            assert evaluation.length[rows].max() == n
            # At least half a window before each target, save at the start of the text.
            place = np.arange(evaluation.ids.shape[1]) + 1
            least = np.where(evaluation.scored[rows], place, n)[1:].min()
            assert least > n // 2
        assert first == len(evaluation.length)
    assert seen == [4, 8, 16, 32, 64]


def test_short_windows_are_not_padded_to_the_longest():
    inside, beyond = (stretch.evaluation for stretch in stretches(TASK, TEXT))
    assert inside.ids.shape[1] == 16
    assert beyond.ids.shape[1] == 64
    assert inside.length.max() <= 16 < beyond.length.max()


def test_a_model_that_uses_all_context_gains_and_one_that_does_not_does_not():
    found = curves_of(lambda before: 1.0 / before)
    gains = found[GAIN]["y"][0]
    assert gains[0] == 0
    assert (np.diff(gains) > 0).all()
    blind = curves_of(lambda before: np.ones_like(before))
    assert blind[GAIN]["y"][0] == [0.0] * 5
    assert blind[PLAIN]["y"][0] == blind[SLIDING]["y"][0] == [1.0] * 5


def test_the_early_token_curse_shows_in_plain_windows_and_not_in_sliding_ones():
    """Loss depends on the last four tokens alone: longer windows look better, wrongly."""
    found = curves_of(lambda before: np.where(before > 4, 1.0, 2.0))
    plain, sliding = found[PLAIN]["y"][0], found[SLIDING]["y"][0]
    assert plain[1] == pytest.approx(1.5, abs=0.01)
    assert (np.diff(plain) < 0).all()
    assert sliding[2:] == pytest.approx([1.0] * 3, abs=0.01)
    assert found[GAIN]["y"][0][2:] == pytest.approx([found[GAIN]["y"][0][2]] * 3)


def test_lengths_that_a_scheme_does_not_know_have_no_number():
    found = curves_of(np.ones_like, limit=16, seeds=2)
    for key in (PLAIN, SLIDING, GAIN):
        assert found[key]["y"][1][3:] == [None, None]
        assert None not in found[key]["y"][1][:3]


# Anatomy ---------------------------------------------------------------------------------------

COPY = get_task("reverse")(max_size=5, test_size=11, samples=4, test_stride=6)
PI = "rope(spec={'scaling': {'rope_type': 'linear', 'factor': 2.0}})"


def looked_at(text: str, trained: str | None = None):
    scheme = parse_scheme(text)
    config = ModelConfig(
        vocab_size=COPY.symbols_needed, width=16, layers=2, heads=2, max_len=COPY.train_length
    )
    model = Model(config, scheme)
    params = model.init(jax.random.key(0))
    evaluation = COPY.evaluation(COPY.load())
    return anatomy(model, params, COPY, evaluation, parse_scheme(trained or text))


@pytest.fixture(scope="module")
def rope():
    return looked_at("rope")


@pytest.mark.slow
def test_attention_adds_up_and_gradients_come_from_somewhere(rope):
    assert set(rope["lengths"]) == {"12", "24"}
    longest = rope["lengths"]["24"]
    for layer in longest["entropy"]["y"]:
        assert layer[0] == 0  # one token to choose from
        assert max(layer) <= np.log(24) + 1e-3
    assert longest["receptive field"]["y"][0][-1] == 1
    assert (np.diff(longest["receptive field"]["y"][0]) >= 0).all()
    assert 1 <= longest["holds all"] <= 24
    assert longest["attention by distance"]["x"][0] == 0
    assert len(longest["first token"]) == 2


@pytest.mark.slow
def test_shifts_change_what_is_absolute_and_nothing_else(rope):
    assert rope["shift"]["by"] == 12
    assert rope["shift"]["largest"] < 1e-4
    assert looked_at("sinusoidal")["shift"]["largest"] > 0.01
    learned = looked_at("learned")
    assert learned["shift"] is None
    assert set(learned["lengths"]) == {"12"}
    assert learned["bands"] is None


@pytest.mark.slow
def test_interpolation_shows_hardly_an_angle_that_training_did_not(rope):
    assert list(rope["bands"]["unseen"]) == ["14", "16", "24"]
    assert max(rope["bands"]["unseen"]["24"]) > 0.4
    squeezed = looked_at(PI, trained="rope")
    assert max(squeezed["bands"]["unseen"]["24"]) < 0.05  # all but the last place
    for found in (rope, squeezed):
        for layer in found["bands"]["use"]:
            assert sum(layer) == pytest.approx(1, abs=1e-4)


# Ranks and maps --------------------------------------------------------------------------------


def row_of(label, scores, kind="scheme", inside=1.0, task=COPY):
    part = {
        "seeds": [str(i) for i in range(len(scores))],
        "scalars": {"exact inside": [inside] * len(scores), "exact past": scores},
        "curves": {},
    }
    return Row(
        task="t", model="m", label=label, kind=kind, scheme={"name": "rope"}, changed=(),
        learning_rate=1e-3, validation={}, part=part, steps=(), losses=(), fit_steps=(), cost={},
        task_settings=task,
    )  # fmt: skip


def test_ranks_are_of_schemes_that_fitted():
    rows = [
        row_of("b", [0.5] * 5),
        row_of("a", [0.9] * 5),
        row_of("same", [0.5] * 5),
        row_of("unfitted", [1.0] * 5, inside=0.2),
        row_of("control: none", [1.0] * 5, kind="control"),
        row_of("undefined", [None] * 5),
    ]
    assert ranks(rows) == {"b": 2, "a": 1, "same": 2}
    page = rank_map([("one", "m", rows), ("two", "m", rows[:1])])
    assert "control" not in page
    assert page.count("<b>1</b>") == 2  # a of three, b of one
    assert rank_map([("one", "m", rows)]) == ""


def test_a_needle_map_has_a_panel_for_each_row_and_every_number():
    task = get_task("passkey")(length=32, depths=(0.0, 1.0), multiples=(1, 2), samples=1)
    rows = []
    for label, value in (("rope", 0.3), ("alibi", 1.0)):
        row = row_of(label, [0.0] * 5, task=task)
        curves = {
            f"exact by depth@{n}": {"x": [0.0, 1.0], "y": [[value, None if n == 64 else 0.7]] * 5}
            for n in (32, 64)
        }
        rows.append(dataclasses.replace(row, part=row.part | {"curves": curves}))
    (figure,) = heat_maps(task, rows, "needles")
    text = figure.svg()
    for word in (">rope<", ">alibi<", ">depth<", ">32<", ">64<", ">.3<", ">.7<", ">1<"):
        assert word in text
    assert text.count(">.7<") == 2
