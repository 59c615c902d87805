"""Tables, verdicts on claims and what is said of rows, from given scores."""

import dataclasses

from grid_cases import TABLE

from flax_pos.lab.grid.claims import Claim, ahead, change, check_claim, slower, within
from flax_pos.lab.grid.config import grid_from_table
from flax_pos.lab.grid.published import CLAIMS, check_claims
from flax_pos.lab.grid.report import _claims_html, _claims_markdown
from flax_pos.lab.grid.results import Row
from flax_pos.lab.grid.table import comparisons, panel_table, to_latex
from flax_pos.lab.tasks import get_task, list_tasks
from flax_pos.lab.tasks.copy import Copy
from flax_pos.scheme import list_schemes


def row(label, past, inside=None, kind="scheme", fit=(10,)):
    inside = [1.0] * len(past) if inside is None else inside
    scalars = {"exact inside": inside, "exact past": past, "token past": past}
    part = {
        "seeds": [str(i) for i in range(len(past))],
        "scalars": scalars,
        "curves": {},
        "reach": [{"length": 3, "open": False}] * len(past),
        "skipped": [0] * len(past),
    }
    scheme = {"name": "none"}
    cost = {"parameters": 5, "positional_parameters": 0, "tokens_per_second": 1.0}
    task = Copy(max_count=3, test_count=5)
    return Row(
        task="copy", model="small", label=label, kind=kind, scheme=scheme, changed=(),
        learning_rate=1e-3, validation={1e-3: 0.1}, part=part, steps=(), losses=(),
        fit_steps=fit * len(past), cost=cost, task_settings=task,
    )  # fmt: skip


class Fake:
    """A grid of given rows."""

    def __init__(self, *rows):
        self.rows = rows
        self.config = grid_from_table(TABLE)

    def panel(self, task):
        return self.rows


GOOD, BAD = [0.9, 0.95, 0.9, 0.92, 0.91, 0.97], [0.1, 0.2, 0.15, 0.1, 0.12, 0.1]


def claim(check, *labels, task="copy"):
    return Claim(text="", source="", published="", task=task, labels=labels, check=check)


def test_verdicts():
    run = Fake(row("none", GOOD), row("rope", BAD), row("alibi", GOOD[::-1]))
    verdict = lambda c: check_claim(c, run).verdict
    assert verdict(claim(ahead("exact past"), "none", "rope")) == "reproduced"
    assert verdict(claim(ahead("exact past", low=True), "none", "rope")) == "not reproduced"
    assert verdict(claim(ahead("exact past", by=0.9), "none", "rope")) == "not reproduced"
    assert verdict(claim(ahead("exact past"), "none", "alibi")) == "undecided"
    assert verdict(claim(within("exact past", most=0.3), "rope")) == "reproduced"
    assert verdict(claim(within("exact past", most=0.05), "rope")) == "not reproduced"
    assert verdict(claim(within("exact past", least=0.93), "none")) == "undecided"
    falls = change("exact inside", "exact past", most=-0.5)
    assert verdict(claim(falls, "rope")) == "reproduced"
    assert verdict(claim(falls, "none")) == "not reproduced"


def test_what_cannot_be_said_is_not_said():
    run = Fake(row("none", GOOD), row("t5", GOOD, inside=[0.2] * 6), row("rope", GOOD[:3]))
    found = check_claim(claim(ahead("exact past"), "none", "t5"), run)
    assert found.verdict == "not testable here"
    assert "t5 0% of seeds" in found.figure
    assert check_claim(claim(ahead("exact past"), "none", "fox"), run).figure.startswith("no fox")
    assert "no task text" in check_claim(claim(within("a"), "none", task="text"), run).figure
    few = check_claim(claim(ahead("exact past"), "none", "rope"), run)
    assert few.verdict == "undecided"
    assert "too few seeds" in few.figure
    assert "does not measure" in check_claim(claim(within("loss@4x"), "none"), run).figure


def test_claims_on_tasks_of_other_grids_are_one_line_that_counts_them():
    run = Fake(row("none", GOOD), row("rope", BAD))
    claims = check_claims(run)
    names = {task.name for task in run.config.tasks.values()}
    here = [c for c, _ in claims if c.task in names]
    assert 0 < len(here) < len(claims)
    for write in (_claims_markdown, _claims_html):
        text = write(run, claims)
        assert f"{len(claims) - len(here)} claims on tasks that this grid does not have" in text
        for name in {c.task for c in CLAIMS} - names:
            assert f"{name} ({sum(c.task == name for c in CLAIMS)})" in text
    assert _claims_markdown(run, claims).count("\n") == len(here) + 3


def test_fitting_more_slowly():
    run = Fake(
        row("none", GOOD, fit=(500,)), row("rope", GOOD, fit=(100,)), row("t5", GOOD, fit=(None,))
    )
    assert check_claim(claim(slower, "none", "rope"), run).verdict == "reproduced"
    assert check_claim(claim(slower, "rope", "none"), run).verdict == "not reproduced"
    assert check_claim(claim(slower, "t5", "none"), run).verdict == "reproduced"


def test_published_claims_can_be_tested():
    assert len(CLAIMS) >= 12
    assert len({c.text for c in CLAIMS}) == len(CLAIMS)
    for c in CLAIMS:
        assert c.task in list_tasks()
        assert c.source
        assert c.published
        for label in c.labels:
            assert label in list_schemes() or label.startswith(("control: ", "NTK", "PI", "YaRN"))


def test_rows_that_have_not_fitted_are_shown_and_not_ranked():
    rows = [row("none", GOOD, inside=[0.5] * 6), row("rope", BAD), row("alibi", [0.3] * 6)]
    table = panel_table(rows)
    past = next(i for i, h in enumerate(table.headers) if h.title == "n = 4–5")
    assert [line[past].best for line in table.rows] == [False, False, True]
    assert any("so not ranked: none" in note for note in table.notes)
    assert [(c.first, c.second) for c in comparisons(rows)] == [("alibi", "rope")]


def test_controls_are_never_best():
    table = panel_table([row("none", BAD), row("rope", BAD[::-1]), row("c", GOOD, kind="control")])
    past = next(i for i, h in enumerate(table.headers) if h.title == "n = 4–5")
    assert not table.rows[2][past].best


def test_few_seeds_have_no_interval_in_the_table():
    table = panel_table([row("none", GOOD[:3]), row("rope", BAD[:3])])
    assert any("3 seeds: too few for an interval" in note for note in table.notes)
    past = next(i for i, h in enumerate(table.headers) if h.title == "n = 4–5")
    assert table.rows[0][past].small == "0.900–0.950"  # the smallest and the largest


def test_latex_is_escaped():
    text = to_latex(panel_table([row("rope_x & 50%", GOOD), row("none", BAD)]), "a_b")
    assert "rope\\_x \\& 50\\%" in text
    assert "\\caption{a\\_b" in text
    assert "\\textbf{0.9" in text
    assert text.count("\\\\") == 3


def test_every_task_names_its_headline_and_first_column():
    for name in list_tasks():
        task = get_task(name)()
        keys = [c.key for c in task.columns]
        assert task.headline in keys
        assert dataclasses.is_dataclass(task)
