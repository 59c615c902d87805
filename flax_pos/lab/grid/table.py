"""A panel of a grid as a table, and tables as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from flax_pos.lab.grid.results import FITTED, GridRun, Row
from flax_pos.lab.progress import rate
from flax_pos.lab.statistics import Comparison, Estimate, compare, span_name
from flax_pos.lab.table import COST, REACH, TRAINING, Cell, Header, Table, column_cells, megabytes
from flax_pos.lab.tasks import Reach, Task


def panel_table(rows: Sequence[Row]) -> Table:
    """The rows of one task and model. Rows that have not fitted are shown and never ranked."""
    task = rows[0].task_settings
    fits = task.columns[0].better == "high"
    headers = [
        Header("", "scheme", "Position scheme; settings that are not the paper's are in its card"),
        Header(TRAINING, "learning rate", "The one selected for the scheme"),
    ]
    if fits:
        headers += [
            Header(
                TRAINING,
                "fitted",
                f"Share of seeds that get {FITTED:.0%} of sequences like those of training right",
            ),
            Header(
                TRAINING,
                "updates to fit",
                "Median over seeds of the updates until 99 % of new training sequences are right",
            ),
        ]
    headers += [Header(c.group, c.title, c.help) for c in task.columns]
    headers += [
        Header(
            REACH,
            "reach",
            f"How far past the training length ({task.reach_at_training} {task.unit}) the scheme "
            "carries: the largest tested length up to which it holds, median over seeds",
        ),
        Header(COST, "parameters", "All parameters of one model"),
        Header(COST, "positional", "Those of the position scheme"),
        Header(COST, "tokens/s", "Training throughput of all models of the scheme together"),
        Header(COST, "memory", "Largest use of a device by the compiled training program"),
    ]
    ranked = [row.fitted and row.kind == "scheme" for row in rows]
    measured = {
        c.key: column_cells(c, [row.scores(c) for row in rows], ranked) for c in task.columns
    }
    lines = []
    for i, row in enumerate(rows):
        line = [Cell(row.label), Cell(f"{row.learning_rate:g}")]
        if fits:
            line += [Cell(f"{row.fitted_share:.0%}"), _fit_steps(row)]
        line += [measured[c.key][i] for c in task.columns]
        line += [
            _reach(row, task),
            Cell(f"{row.cost['parameters']:,}"),
            Cell(f"{row.cost['positional_parameters']:,}"),
            Cell(rate(row.cost["tokens_per_second"])),
            Cell(megabytes(row.cost.get("memory_bytes"))),
        ]
        lines.append(tuple(line))
    return Table(tuple(headers), tuple(lines), tuple(_notes(rows)))


def interval(found: Estimate, digits: int = 2) -> str:
    """`low–high`, or `too few`."""
    if found.low is None or found.high is None:
        return "too few"
    return f"{found.low:.{digits}f}–{found.high:.{digits}f}"


def _fit_steps(row: Row) -> Cell:
    if not row.fit_steps:
        return Cell("–")
    steps = sorted(float("inf") if s is None else s for s in row.fit_steps)
    middle = steps[(len(steps) - 1) // 2]
    return Cell("never" if middle == float("inf") else f"{middle:.0f}")


def _reach(row: Row, task: Task) -> Cell:
    reach: Reach = row.reach
    if not row.fitted or reach.length == 0:
        return Cell("not fitted")
    times = f"{'≥ ' if reach.open else ''}{reach.length / task.reach_at_training:.3g}×"
    return Cell(times, f"{reach.length} {task.unit}")


def _notes(rows: Sequence[Row]):
    yield f"{span_name(len(rows[0].part['seeds']))}. Best: of the schemes that fitted"
    if unfitted := [r.label for r in rows if not r.fitted]:
        yield (
            f"Not fitted inside the trained sizes, so not ranked: {', '.join(unfitted)}. More "
            "updates or another learning rate may change that"
        )
    for row in rows:
        if skipped := sum(int(s) for s in row.part["skipped"]):
            yield f"{row.label}: {skipped} updates with a gradient that was not finite"


def comparisons(rows: Sequence[Row]) -> tuple[Comparison, ...]:
    """All pairs of fitted schemes by the task's headline column, better first."""
    if not rows:
        return ()
    task = rows[0].task_settings
    column = next(c for c in task.columns if c.key == task.headline)
    sign = -1.0 if column.better == "low" else 1.0
    scores = {}
    for row in rows:
        values = row.scores(column)
        if row.kind != "scheme" or not row.fitted or values is None or row.estimate(column) is None:
            continue
        scores[row.label] = [[sign * v for v in values]]
    order = sorted(scores, key=lambda label: -sum(scores[label][0]))
    return compare({label: scores[label] for label in order})


# Formats ---------------------------------------------------------------------------------------


CSV_FIXED = ("task", "model", "row", "kind", "learning_rate", "fitted")


def to_csv(run: GridRun) -> str:
    """Every seed's numbers, one line each: the long form that plotting tools want."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*CSV_FIXED, "version", "revision", "seed", "measure", "value"])
    for row in run.rows:
        made = [row.made_with.get("flax-pos", ""), revision(row.made_with)]
        for key, values in row.part["scalars"].items():
            for seed, value in zip(row.part["seeds"], values, strict=True):
                known = "" if value is None else value
                fixed = [row.task, row.model, row.label, row.kind, row.learning_rate, row.fitted]
                writer.writerow([*fixed, *made, seed, key, known])
    return out.getvalue()


def revision(made_with: dict[str, Any]) -> str:
    """Revision of the checkout that a row was made in (else of the package's own), `+` where files
    differed from it."""
    git = made_with.get("checkout") or made_with.get("git")
    return "" if not git else git["sha"][:12] + ("+" if git["dirty"] else "")


def to_latex(table: Table, caption: str) -> str:
    """A `booktabs` table: value and interval, the best of each column bold."""
    shown = [i for i, h in enumerate(table.headers) if h.group not in (COST,)]
    titles = [
        table.headers[i].title
        if table.headers[i].group in ("", REACH, TRAINING)
        else f"{table.headers[i].group}, {table.headers[i].title}"
        for i in shown
    ]
    lines = [
        "\\begin{table}",
        f"\\caption{{{_tex(caption)}. {_tex('. '.join(table.notes))}.}}",
        f"\\begin{{tabular}}{{l{'r' * (len(shown) - 1)}}}",
        "\\toprule",
        " & ".join(_tex(t) for t in titles) + " \\\\",
        "\\midrule",
    ]
    for row in table.rows:
        cells = []
        for i in shown:
            text = _tex(row[i].text)
            text = f"\\textbf{{{text}}}" if row[i].best else text
            cells.append(f"{text} {{\\scriptsize {_tex(row[i].small)}}}" if row[i].small else text)
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


_TEX = {
    "\\": "\\textbackslash{}",
    "&": "\\&",
    "%": "\\%",
    "$": "\\$",
    "#": "\\#",
    "_": "\\_",
    "{": "\\{",
    "}": "\\}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "–": "--",
    "×": "$\\times$",
    "≥": "$\\geq$",
    "±": "$\\pm$",
    "<": "$<$",
    ">": "$>$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)
