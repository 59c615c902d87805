"""A grid's report: one self-contained page, and the same as PNG, CSV, Markdown and LaTeX."""

import json
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from flax_pos.lab.figures import COLOURS, Named
from flax_pos.lab.grid.anatomy_report import anatomy_figures, anatomy_table
from flax_pos.lab.grid.claims import Claim, Finding
from flax_pos.lab.grid.panel_figures import make_panel_figures
from flax_pos.lab.grid.published import check_claims
from flax_pos.lab.grid.ranks import rank_map
from flax_pos.lab.grid.results import GRID, RULE, GridRun, Row, read_grid, results_json
from flax_pos.lab.grid.table import comparisons, interval, panel_table, revision, to_csv, to_latex
from flax_pos.lab.progress import counted
from flax_pos.lab.records import write_atomic, write_json
from flax_pos.lab.table import UNDEFINED, Cell, Table, print_table, to_markdown
from flax_pos.scheme import from_dict

Judged = tuple[Claim, Finding]
Panel = tuple[str, str, tuple[Row, ...]]
"""Label of the task, label of the model, finished rows."""


def write_grid_outputs(folder: Path, console: Console | None = None) -> None:
    """Results, tables, figures and report of a grid's finished cells, into its folder."""
    run = read_grid(folder)
    claims = check_claims(run)
    markdown, latex, figures, inner = [], [], {}, {}
    (folder / "figures").mkdir(exist_ok=True)
    for task, model, rows in panels(run):
        title = _title(run, task, model)
        table = panel_table(rows)
        if console is not None:
            console.print(f"\n{title}", style="bold", highlight=False)
            print_table(table, console)
        markdown.append(f"## {title}\n\n{to_markdown(table)}")
        latex.append(to_latex(table, title))
        figures[title] = make_panel_figures(title, rows)
        inner[title] = anatomy_figures(title, rows)
        for figure in (*figures[title], *inner[title]):
            figure.save_png(folder / "figures")
    markdown.append(f"## Published claims\n\n{_claims_markdown(run, claims)}")
    write_json(folder / "results.json", results_json(run))
    write_atomic(folder / "results.csv", to_csv(run))
    write_atomic(folder / "tables.md", "\n".join(markdown) + "\n")
    write_atomic(folder / "tables.tex", "\n".join(latex))
    write_atomic(folder / "report.html", _page(run, claims, figures, inner))
    if console is not None:
        known = [(c, f) for c, f in claims if f.verdict != "not testable here"]
        none = "" if known else f": none of {len(claims)} can be tested here"
        console.print(f"\nPublished claims{none}", style="bold", highlight=False)
        for claim, found in known:
            console.print(f"  {found.verdict}: {claim.text}. {found.figure}", highlight=False)


def panels(run: GridRun) -> list[Panel]:
    """Finished rows by task and model, in the order of the config."""
    found = [(t, m, run.panel(t, m)) for t in run.config.tasks for m in run.config.models]
    return [panel for panel in found if panel[2]]


def _title(run: GridRun, task: str, model: str) -> str:
    return f"{task}, {model}" if len(run.config.models) > 1 else task


# The page --------------------------------------------------------------------------------------


def _page(
    run: GridRun, claims, figures: dict[str, list[Named]], inner: dict[str, list[Named]]
) -> str:
    style = files("flax_pos.lab").joinpath("report.css").read_text(encoding="utf-8")
    extra = files("flax_pos.lab.grid").joinpath("report.css").read_text(encoding="utf-8")
    script = files("flax_pos.lab.grid").joinpath("report.js").read_text(encoding="utf-8")
    title = f"Position schemes compared: {run.config.name}"
    body = [
        f"<h1>{escape(title)}</h1>",
        _facts(run),
        _warnings(run),
        "<h2>Published claims</h2>",
        _claims_html(run, claims),
        rank_map(panels(run)),
    ]
    for task, model, rows in panels(run):
        name = _title(run, task, model)
        body += [
            f"<h2>{escape(name)}</h2>",
            f'<p class="lead">{escape(_about(rows))}</p>',
            _table_html(rows, panel_table(rows)),
            *(_figure(f) for f in figures[name]),
            _pairs_html(rows),
            _rates_html(rows),
            _seeds_html(rows),
            _inner_html(rows, inner[name]),
        ]
    body += [
        "<h2>Schemes</h2>",
        _cards(run),
        "<h2>How it was measured</h2>",
        _method(run),
        _raw("Configuration", (run.folder / GRID).read_text(encoding="utf-8")),
        _raw("Environment", json.dumps(run.environment, indent=2)),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}{extra}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _about(rows: Sequence[Row]) -> str:
    task = rows[0].task_settings
    doc = (type(task).__doc__ or task.name).strip().split("\n\n")[0]
    return " ".join(doc.split()).replace("`", "")


def _facts(run: GridRun) -> str:
    grid = run.config
    facts = {
        "cells": f"{len(run.cells) - len(run.missing)} of {len(run.cells)}",
        "seeds": f"{grid.train.models}",
        "updates": ", ".join(sorted({f"{grid.train_of(t).steps:,}" for t in grid.tasks})),
        "learning rates": ", ".join(f"{r:g}" for r in grid.learning_rates)
        or f"{grid.optimizer.learning_rate:g}",
    }
    items = "".join(
        f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items()
    )
    return f'<dl class="facts">{items}</dl>'


MIXED = (
    "Counting tasks (copy, replace) and tasks that copy different tokens are not averaged: no "
    "positions win the first by counting alone, and biases towards near tokens win the second, so "
    "that a mean over both says which of them a list of tasks has more of."
)


def _warnings(run: GridRun) -> str:
    names = {task.name for task in run.config.tasks.values()}
    lines = []
    if names & {"copy", "replace"} and names & {"random_copy", "copy_twice", "reverse"}:
        lines.append(MIXED)
    if run.missing:
        lines.append(f"Not finished: {', '.join(run.missing)}.")
    if run.dropped:
        lines.append(f"Dropped to fit the time given: {', '.join(run.dropped)}.")
    if unfitted := sorted({f"{r.label} on {r.task}" for r in run.rows if not r.fitted}):
        lines.append(
            f"Not fitted inside the trained sizes, so neither ranked nor used for a claim: "
            f"{', '.join(unfitted)}."
        )
    if not run.config.learning_rates:
        lines.append("One learning rate for all: what trains slowly is behind for that alone.")
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="card findings">{items}</ul>' if items else ""


def _of_tasks_here(run: GridRun, claims: Sequence[Judged]) -> tuple[list[Judged], str]:
    """The claims on tasks that the grid has, and a line that counts the others."""
    names = {task.name for task in run.config.tasks.values()}
    others = Counter(claim.task for claim, _ in claims if claim.task not in names)
    here = [pair for pair in claims if pair[0].task in names]
    if not others:
        return here, ""
    counts = ", ".join(f"{task} ({count})" for task, count in others.most_common())
    total = counted(others.total(), "claim")
    return here, f"Not testable here: {total} on tasks that this grid does not have: {counts}."


def _claims_html(run: GridRun, claims: Sequence[Judged]) -> str:
    claims, elsewhere = _of_tasks_here(run, claims)
    elsewhere = elsewhere and f'<p class="notes">{escape(elsewhere)}</p>'
    shown = [pair for pair in claims if pair[1].verdict != "not testable here"]
    rest = [pair for pair in claims if pair[1].verdict == "not testable here"]
    table = _claims_table(shown) if shown else '<p class="notes">None can be tested here.</p>'
    if not rest:
        return table + elsewhere
    return (
        f"{table}<details><summary>{counted(len(rest), 'claim')} not testable here, though on "
        f"tasks of this grid</summary>{_claims_table(rest)}</details>{elsewhere}"
    )


def _claims_table(claims: Sequence[Judged]) -> str:
    rows = "".join(
        f'<tr><td class="verdict {found.verdict.split()[0]}-{found.verdict.split()[-1]}">'
        f"{escape(found.verdict)}</td><td>{escape(claim.text)}<small>{escape(claim.source)}: "
        f"{escape(claim.published)}</small></td><td>{escape(found.figure)}</td></tr>"
        for claim, found in claims
    )
    return (
        '<div class="card scroll"><table class="claims"><thead><tr><th scope="col">verdict</th>'
        '<th scope="col">claim</th><th scope="col">here</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _claims_markdown(run: GridRun, claims: Sequence[Judged]) -> str:
    here, elsewhere = _of_tasks_here(run, claims)
    if not here:
        return elsewhere
    lines = ["| claim | source | published | here | verdict |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {claim.text} | {claim.source} | {claim.published} | {found.figure} | {found.verdict} |"
        for claim, found in here
    ]
    return "\n".join([*lines, *(["", elsewhere] if elsewhere else [])])


def _dot(number: int) -> str:
    return f'<span class="dot" style="background:{COLOURS[number % len(COLOURS)]}"></span>'


def _table_html(rows: Sequence[Row], table: Table) -> str:
    groups = "".join(
        f'<th colspan="{len(columns)}" scope="colgroup"><span>{escape(group)}</span></th>'
        for group, columns in table.groups
    )
    titles = "".join(
        f'<th scope="col" class="sort"><abbr title="{escape(h.help)}">{escape(h.title)}</abbr></th>'
        for h in table.headers[1:]
    )
    lines = "".join(
        f'<tr class="{row.kind}"><th scope="row">{_dot(i)}{escape(row.label)}</th>'
        + "".join(_cell(c) for c in line[1:])
        + "</tr>"
        for i, (row, line) in enumerate(zip(rows, table.rows, strict=True))
    )
    notes = "".join(f"<p>{escape(note)}.</p>" for note in table.notes)
    return (
        '<div class="card scroll"><table class="sortable"><thead>'
        f'<tr class="groups"><th class="first"></th>{groups}</tr>'
        f'<tr><th class="first sort" scope="col">scheme</th>{titles}</tr></thead>'
        f'<tbody>{lines}</tbody></table></div><div class="notes">{notes}</div>'
    )


def _cell(cell: Cell) -> str:
    kind = "best" if cell.best else "undefined" if cell.text == UNDEFINED else ""
    small = f"<small>{escape(cell.small)}</small>" if cell.small else ""
    return f'<td class="{kind}"><b>{escape(cell.text)}</b>{small}</td>'


def _figure(figure: Named) -> str:
    return (
        f'<figure class="card"><h3>{escape(figure.title)}</h3>{figure.svg()}'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def _inner_html(rows: Sequence[Row], figures: Sequence[Named]) -> str:
    if not figures:
        return ""
    return (
        "<details><summary>What the models do with positions</summary>"
        f"{anatomy_table(rows)}{''.join(map(_figure, figures))}</details>"
    )


def _pairs_html(rows: Sequence[Row]) -> str:
    found = comparisons(rows)
    if not found:
        return ""
    task = rows[0].task_settings
    column = next(c for c in task.columns if c.key == task.headline)
    number = lambda p: "too few" if p is None else f"{p:.3f}"
    lines = "".join(
        f'<tr><th scope="row">{escape(c.first)} over {escape(c.second)}</th>'
        f"<td>{c.difference.value:.3f}<small>{interval(c.difference)}</small></td>"
        f"<td>{c.better.value:.2f}<small>{interval(c.better)}</small></td>"
        f"<td>{number(c.p)}</td><td>{number(c.adjusted_p)}</td></tr>"
        for c in found
    )
    head = "".join(
        f'<th scope="col" class="sort">{t}</th>'
        for t in ("better by", "probability of being better", "p", "p, Holm")
    )
    return (
        f"<details><summary>Differences, pair by pair</summary><p>{escape(column.group)}, "
        f"{escape(column.title)}: the mean difference between runs that saw the same data, its "
        "bootstrap interval, the probability that a run of the first is better than one of the "
        "second, and p by flipping signs, alone and corrected for the number of pairs.</p>"
        '<div class="card scroll"><table class="sortable"><thead><tr><th class="first"></th>'
        f"{head}</tr></thead><tbody>{lines}</tbody></table></div></details>"
    )


def _rates_html(rows: Sequence[Row]) -> str:
    tried = [row for row in rows if row.steps and len(row.validation) > 1]
    if not tried:
        return ""
    rates = list(tried[0].validation)
    head = "".join(f'<th scope="col">{rate:g}</th>' for rate in rates)
    lines = "".join(
        f'<tr><th scope="row">{escape(row.label)}</th>'
        + "".join(
            f'<td class="{"best" if rate == row.learning_rate else ""}"><b>{value:.4f}</b></td>'
            for rate, value in row.validation.items()
        )
        + "</tr>"
        for row in tried
    )
    return (
        f"<details><summary>Learning rates</summary><p>{escape(RULE)} The table shows that loss."
        '</p><div class="card scroll"><table><thead><tr><th class="first"></th>'
        f"{head}</tr></thead><tbody>{lines}</tbody></table></div></details>"
    )


def _seeds_html(rows: Sequence[Row]) -> str:
    columns = rows[0].task_settings.columns
    head = "".join(
        f'<th scope="col" class="sort">{escape(f"{c.group}: {c.title}")}</th>' for c in columns
    )
    lines = []
    for number, row in enumerate(rows):
        for i, seed in enumerate(row.part["seeds"]):
            values = (row.part["scalars"][c.key][i] for c in columns)
            cells = "".join(
                f'<td class="undefined">{UNDEFINED}</td>'
                if v is None
                else f"<td>{float(v):.{c.digits}f}</td>"
                for v, c in zip(values, columns, strict=True)
            )
            name = f"{_dot(number)}{escape(row.label)}, seed {seed}"
            lines.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    return (
        '<details><summary>Every seed</summary><div class="card scroll"><table class="sortable">'
        f'<thead><tr><th class="first"></th>{head}</tr></thead><tbody>{"".join(lines)}</tbody>'
        "</table></div></details>"
    )


def _cards(run: GridRun) -> str:
    seen, cards = set(), []
    for row in run.rows:
        if row.label in seen:
            continue
        seen.add(row.label)
        scheme = from_dict(row.scheme)
        settings = ", ".join(row.changed)
        lines = [
            scheme.paper,
            f"Not the paper's defaults: {settings}" if settings else "The paper's defaults",
            f"Parameters: {row.cost['positional_parameters']:,}",
            _made_with(row),
        ]
        formula = f"<code>{escape(scheme.formula)}</code>" if scheme.formula else ""
        cards.append(
            f'<div class="card"><h3>{escape(row.label)}</h3>{formula}'
            + "".join(f"<p>{escape(line)}</p>" for line in lines if line)
            + f"<details><summary>All settings</summary><pre>"
            f"{escape(json.dumps(row.scheme, indent=1))}</pre></details></div>"
        )
    return f'<div class="schemes">{"".join(cards)}</div>'


def _made_with(row: Row) -> str:
    made = row.made_with
    if not made:
        return ""
    return f"Made with flax-pos {made['flax-pos']}, jax {made['jax']}, {revision(made) or 'no git'}"


def _method(run: GridRun) -> str:
    grid = run.config
    entries = {
        "Selection": RULE,
        "Seeds": "Seed i of every scheme has the same initial key and sees the same batches, so "
        "that differences are taken seed by seed.",
        "Optimizer": f"AdamW, warm-up over {grid.optimizer.warmup:.0%} of the updates, cosine to "
        f"{grid.optimizer.final:.0%}, weight decay {grid.optimizer.weight_decay:g}, gradients "
        f"clipped at {grid.optimizer.clip:g}; {grid.train.batch_size} sequences per update",
        "Parameters": "MLPs widened until all models are as large as the largest"
        if grid.match_parameters
        else "The same model around every scheme; its own parameters come on top",
    }
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in entries.items())
    return f'<dl class="card method">{items}</dl>'


def _raw(title: str, text: str) -> str:
    return (
        f"<details><summary>{escape(title)}</summary>"
        f'<div class="card"><pre>{escape(text)}</pre></div></details>'
    )
