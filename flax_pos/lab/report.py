"""One self-contained page: nothing is fetched, it opens from a file, an e-mail or an archive."""

import json
from html import escape
from importlib.resources import files
from typing import Any

from rich.console import Console

from flax_pos.lab.figures import COLOURS, Named, make_figures
from flax_pos.lab.findings import findings
from flax_pos.lab.members import parse_scheme
from flax_pos.lab.progress import duration
from flax_pos.lab.records import write_atomic, write_json
from flax_pos.lab.results import CONFIG, Run, summary_json
from flax_pos.lab.table import COST, UNDEFINED, Cell, Table, make_table, print_table, to_markdown
from flax_pos.lab.tasks import Task


def write_outputs(run: Run, console: Console | None = None) -> None:
    """Table, figures, summary and report of a run's finished schemes, into its folder."""
    table = make_table(run)
    if console is not None:
        console.print()
        if run.rows:
            print_table(table, console)
        else:
            console.print("nothing is finished yet", highlight=False)
    write_atomic(run.folder / "table.md", to_markdown(table))
    write_json(run.folder / "summary.json", summary_json(run))
    folder = run.folder / "figures"
    folder.mkdir(exist_ok=True)
    figures = make_figures(run)
    for figure in figures:
        figure.save_png(folder)
    write_atomic(run.folder / "report.html", render(run, table, figures))


def render(run: Run, table: Table, figures: tuple[Named, ...]) -> str:
    """The page's HTML."""
    style = files("flax_pos.lab").joinpath("report.css").read_text(encoding="utf-8")
    title = f"Position schemes compared: {run.config.name}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(_lead(run))}</p>',
        _facts(run),
        *(_results(run, table, figures) if run.rows else ["<p>Nothing is finished yet.</p>"]),
        "<h2>How it was measured</h2>",
        _method(run),
        _seeds(run) if run.rows else "",
        _raw("Configuration", (run.folder / CONFIG).read_text(encoding="utf-8")),
        _raw("Environment", json.dumps(run.environment, indent=2)),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _results(run: Run, table: Table, figures: tuple[Named, ...]) -> list[str]:
    return [
        _findings(run),
        "<h2>Results</h2>",
        _table(run, table, [g for g in table.groups if g[0] != COST]),
        _notes(table),
        "<h2>Figures</h2>",
        *(_figure(f) for f in figures),
        "<h2>Cost</h2>",
        _table(run, table, [g for g in table.groups if g[0] == COST]),
        "<h2>Schemes</h2>",
        _schemes(run),
    ]


def _lead(run: Run) -> str:
    doc = (type(run.config.task).__doc__ or run.config.task.name).strip().split("\n\n")[0]
    return " ".join(doc.split())


def _facts(run: Run) -> str:
    config, environment = run.config, run.environment
    devices = environment.get("devices", [])
    facts = {
        "schemes": f"{len(run.finished)} of {len(config.schemes)}",
        "seeds": f"{config.train.models}",
        "updates": f"{config.train.steps:,}",
        "trained up to": _trained(config.task),
        "batch": f"{config.train.batch_size} sequences",
        "model": f"{config.model.layers} layers, width {config.model.width}",
        "time": duration(run.seconds),
        "ran on": f"{len(devices)} × {environment.get('backend', '')}",
    }
    items = "".join(
        f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items()
    )
    return f'<dl class="facts">{items}</dl>'


def _trained(task: Task) -> str:
    """The training length, and that of whole sequences where it is another."""
    length, whole = f"{task.reach_at_training} {task.unit}", f"{task.train_length} tokens"
    return length if length == whole else f"{length} (whole sequences: {whole})"


def _findings(run: Run) -> str:
    items = "".join(f"<li>{escape(s)}</li>" for s in findings(run))
    return f'<ul class="card findings">{items}</ul>' if items else ""


def _colour(run: Run, label: str) -> str:
    labels = [r.label for r in run.rows]
    return COLOURS[labels.index(label) % len(COLOURS)]


def _dot(run: Run, label: str) -> str:
    return f'<span class="dot" style="background:{_colour(run, label)}"></span>'


def _table(run: Run, table: Table, groups: list[tuple[str, list[int]]]) -> str:
    shown = [i for _, columns in groups for i in columns]
    headings = "".join(
        f'<th colspan="{len(columns)}" scope="colgroup"><span>{escape(group)}</span></th>'
        for group, columns in groups
    )
    headings = f'<tr class="groups"><th class="first"></th>{headings}</tr>'
    titles = "".join(
        f'<th scope="col"><abbr title="{escape(h.help)}">{escape(h.title)}</abbr></th>'
        for h in (table.headers[i] for i in shown)
    )
    rows = "".join(
        f'<tr><th scope="row">{_dot(run, row[0].text)}{escape(row[0].text)}</th>'
        + "".join(_cell(row[i]) for i in shown)
        + "</tr>"
        for row in table.rows
    )
    first = f'<th class="first" scope="col">{escape(table.headers[0].title)}</th>'
    return (
        f'<div class="card scroll"><table><thead>{headings if len(groups) > 1 else ""}'
        f"<tr>{first}{titles}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _notes(table: Table) -> str:
    return f'<div class="notes">{"".join(f"<p>{escape(note)}.</p>" for note in table.notes)}</div>'


def _cell(cell: Cell) -> str:
    kind = "best" if cell.best else "undefined" if cell.text == UNDEFINED else ""
    small = f"<small>{escape(cell.small)}</small>" if cell.small else ""
    return f'<td class="{kind}"><b>{escape(cell.text)}</b>{small}</td>'


def _figure(figure: Named) -> str:
    return (
        f'<figure class="card"><h3>{escape(figure.title)}</h3>{figure.svg()}'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def _schemes(run: Run) -> str:
    cards = []
    for label in run.finished:
        scheme, result = parse_scheme(label), run.finished[label]
        rows = [r.label for r in run.rows if r.scheme == label]
        settings = ", ".join(
            f"{k} = {v}" for k, v in result["settings"].items() if k != "name" and v is not None
        )
        lines = [
            scheme.paper,
            f"Settings: {settings or 'none'}",
            f"Hooks: {', '.join(result['uses']) or 'none'}",
            f"Parameters: {result['positional_parameters']:,}",
        ]
        formula = f"<code>{escape(scheme.formula)}</code>" if scheme.formula else ""
        dots = "".join(_dot(run, row) for row in rows)
        cards.append(
            f'<div class="card"><h3>{dots}{escape(label)}</h3>{formula}'
            + "".join(f"<p>{escape(line)}</p>" for line in lines if line)
            + "</div>"
        )
    return f'<div class="schemes">{"".join(cards)}</div>'


VARY = {
    "both": "A seed is one set of initial weights and one order of the data",
    "init": "A seed is one set of initial weights; the order of the data is the same for all",
    "data": "A seed is one order of the data; the initial weights are the same for all",
    "cross": "A seed is one pair of initial weights and order of the data, all pairs taken",
}


def _method(run: Run) -> str:
    config = run.config
    optimizer = config.optimizer
    data = ", ".join(f"{k} {v}" for k, v in run.about.items() if k != "sha256")
    entries = {
        "Data": data,
        "Seeds": f"{VARY[config.train.vary]}. Batch t of a seed is the same for every scheme.",
        "Optimizer": f"AdamW, peak learning rate {optimizer.learning_rate:g}"
        + (f" (swept: {config.sweep['learning_rate']})" if "learning_rate" in config.sweep else "")
        + f", warm-up over {optimizer.warmup:.0%} of the updates, cosine to {optimizer.final:.0%}, "
        f"weight decay {optimizer.weight_decay:g}, gradients clipped at {optimizer.clip:g}",
    }
    table = make_table(run)
    for header in table.headers[1:]:
        if header.group != COST:
            entries[f"{header.group}: {header.title}"] = header.help
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in entries.items() if v)
    return f'<dl class="card method">{items}</dl>'


def _seeds(run: Run) -> str:
    """Every seed's own numbers."""
    columns = run.config.task.columns
    head = "".join(f'<th scope="col">{escape(f"{c.group}: {c.title}")}</th>' for c in columns)
    rows = []
    for row in run.rows:
        for i, seed in enumerate(row.part["seeds"]):
            values = (row.part["scalars"][c.key][i] for c in columns)
            cells = "".join(_number(v, c.digits) for v, c in zip(values, columns, strict=True))
            name = f"{_dot(run, row.label)}{escape(row.label)}, seed {seed}"
            rows.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    return (
        "<details><summary>Every seed</summary>"
        f'<div class="card scroll"><table><thead><tr><th class="first"></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _number(value: Any, digits: int) -> str:
    if value is None:
        return f'<td class="undefined">{UNDEFINED}</td>'
    return f"<td>{float(value):.{digits}f}</td>"


def _raw(title: str, text: str) -> str:
    return (
        f"<details><summary>{escape(title)}</summary>"
        f'<div class="card"><pre>{escape(text)}</pre></div></details>'
    )
