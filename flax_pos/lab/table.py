"""The final table, made once: for the terminal, Markdown and the report."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from flax_pos.lab.progress import rate
from flax_pos.lab.results import Row, Run, estimate_of
from flax_pos.lab.statistics import span, span_name
from flax_pos.lab.tasks import Column, Reach

UNDEFINED = "undefined"
TRAINING, REACH, COST = "training", "carries to", "cost"


class Cell(NamedTuple):
    """A value and, in small print, how sure it is."""

    text: str
    small: str = ""
    best: bool = False
    """Best of its column."""


class Header(NamedTuple):
    group: str
    title: str
    help: str


class Table(NamedTuple):
    """The first column names the row."""

    headers: tuple[Header, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """Headings with the columns under them, without the first column."""
        numbered = list(enumerate(self.headers))[1:]
        return [
            (group, [i for i, _ in columns])
            for group, columns in groupby(numbered, key=lambda item: item[1].group)
        ]


def make_table(run: Run) -> Table:
    """The table of a run's finished schemes."""
    task = run.config.task
    tail = max((sum(r.tail) for r in run.rows), default=0)  # all rows log alike
    training = Column(
        key="train loss",
        group=TRAINING,
        title="loss",
        help=f"Training loss in nats, mean over the last {tail} updates",
    )
    measured: list[tuple[Column, list[list[float] | None]]] = [
        (training, [r.train_loss for r in run.rows])
    ]
    measured += [(c, [r.scores(c) for r in run.rows]) for c in task.columns]
    reach_help = (
        f"How far past the training length ({task.reach_at_training} {task.unit}) the scheme "
        "carries: the largest tested length up to which it holds, median over seeds; ≥ where it "
        "held at the largest one tried"
    )
    headers = [
        Header("", "scheme", "Position scheme, with the settings that differ from its defaults"),
        *(Header(c.group, c.title, c.help) for c, _ in measured),
        Header(REACH, "reach", reach_help),
        Header(COST, "parameters", "All parameters of one model"),
        Header(COST, "positional", "Those of the position scheme"),
        Header(COST, "tokens/s", "Training throughput of all models of the scheme together"),
        Header(COST, "compile s", "Seconds to compile the training program"),
        Header(COST, "memory", "Largest use of a device by the compiled training program"),
    ]
    columns = [column_cells(c, found) for c, found in measured]
    rows = []
    for i, row in enumerate(run.rows):
        result = row.result
        rows.append(
            (
                Cell(row.label),
                *(column[i] for column in columns),
                reach_cell(row, row.reach, task.reach_at_training, task.unit),
                Cell(f"{result['parameters']:,}"),
                Cell(f"{result['positional_parameters']:,}"),
                Cell(rate(result["tokens_per_second"])),
                Cell(f"{result['compile_seconds']:.1f}"),
                Cell(megabytes(result.get("memory_bytes"))),
            )
        )
    return Table(tuple(headers), tuple(rows), tuple(_notes(run, measured)))


def megabytes(count: float | None) -> str:
    """Bytes for people; `–` where they were not measured."""
    return "–" if count is None else f"{count / 1e6:,.0f} MB"


def column_cells(
    column: Column, found: Sequence[list[float] | None], ranked: Sequence[bool] | None = None
) -> list[Cell]:
    """One column of a table.

    Args:
      found: the scores of each row by seed; None where the scheme is undefined.
      ranked: the rows among which there is a best one; None: all.
    """
    values = [estimate_of(scores) for scores in found]
    able = [True] * len(found) if ranked is None else ranked
    best = {e.value for e, rank in zip(values, able, strict=True) if e is not None and rank}
    first = None if len(best) < 2 else min(best) if column.better == "low" else max(best)
    cells = []
    for scores, value, rank in zip(found, values, able, strict=True):
        if scores is None or value is None:
            cells.append(Cell(UNDEFINED if scores is None else "not finite"))
            continue
        low, high = span(scores)
        small = f"{low:.{column.digits}f}–{high:.{column.digits}f}" if len(scores) > 1 else ""
        text = f"{value.value:.{column.digits}f}"
        cells.append(Cell(text, small, best=rank and value.value == first))
    return cells


def reach_cell(row: Row, reach: Reach, trained: int, unit: str) -> Cell:
    """Reach in training lengths, and in the task's unit."""
    if reach.length == 0:
        return Cell("not fitted")
    times = f"{'≥ ' if reach.open else ''}{reach.length / trained:.3g}×"
    return Cell(times, f"{reach.length} {unit}")


def _notes(run: Run, measured: list[tuple[Column, list[list[float] | None]]]):
    if run.rows:
        yield span_name(run.config.train.models)
    if any(scores is None for _, found in measured for scores in found):
        yield "undefined: longer than the scheme has positions for"
    for row in run.rows:
        if skipped := sum(row.part["skipped"]):
            yield f"{row.label}: {skipped} updates with a gradient that was not finite"
    missing = [s for s in run.config.schemes if s not in run.finished]
    if missing:
        yield f"not finished: {', '.join(missing)}"


def print_table(table: Table, console: Console) -> None:
    """The table in the terminal, cut into pieces that fit a narrow one."""
    pieces: dict[str, list[int]] = {}
    for group, columns in table.groups:
        before_task = list(pieces) == [TRAINING]
        at = TRAINING if before_task else list(pieces)[-1] if group == REACH else group
        pieces.setdefault(at, []).extend(columns)
        if before_task:
            pieces[group] = pieces.pop(TRAINING)
    for columns in _fitting(table, pieces.values(), console.width):
        out = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        out.add_column("scheme", no_wrap=True)
        for i in columns:
            out.add_column(_title(table.headers[i]), justify="right")
        for row in table.rows:
            out.add_row(row[0].text, *(_styled(row[i], table.headers[i]) for i in columns))
        console.print(out)
    for note in table.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _title(header: Header) -> str:
    group = header.group if header.group not in (REACH, COST) else ""
    return f"{group}\n{header.title}" if group else header.title


def _fitting(table: Table, pieces: Iterable[list[int]], width: int) -> Iterator[list[int]]:
    """The pieces, those cut further that are wider than `width` characters: no number is cut."""

    def needs(i: int) -> int:
        cells = [row[i] for row in table.rows]
        words = _title(table.headers[i]).split()  # titles may wrap between words
        return 2 + max(map(len, [*words, *(c.text for c in cells), *(c.small for c in cells)]))

    beside = width - needs(0) - 2
    for piece in pieces:
        fitting = []
        for i in piece:
            if fitting and sum(map(needs, [*fitting, i])) > beside:
                yield fitting
                fitting = []
            fitting.append(i)
        yield fitting


def _styled(cell: Cell, header: Header) -> str:
    text = f"[bold green]{cell.text}[/]" if cell.best else cell.text
    return f"{text}\n[dim]{cell.small}[/]" if cell.small and header.group != REACH else text


def to_markdown(table: Table) -> str:
    """The table in Markdown; its notes alone where it has no rows."""
    notes = [*(f"{note}.  " for note in table.notes), ""]
    if not table.rows:
        return "\n".join(notes)
    titles = [
        h.title if h.group in ("", REACH, COST) else f"{h.group}: {h.title}" for h in table.headers
    ]
    lines = [
        "| " + " | ".join(titles) + " |",
        "| --- |" + " ---: |" * (len(titles) - 1),
    ]
    for row in table.rows:
        lines.append("| " + " | ".join(f"{c.text} {c.small}".strip() for c in row) + " |")
    return "\n".join([*lines, "", *notes])
