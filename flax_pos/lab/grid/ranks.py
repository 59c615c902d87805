"""Schemes side by side over tasks: ranks, and how large a share of seeds does how well."""

from collections.abc import Sequence
from html import escape

import numpy as np
from matplotlib.axes import Axes

from flax_pos.lab.figures import legend, styled
from flax_pos.lab.grid.results import Row
from flax_pos.lab.statistics import performance_profile
from flax_pos.lab.tasks import Column


def headline(row: Row) -> Column:
    """The column that tells best how a model does past its training length."""
    task = row.task_settings
    return next(c for c in task.columns if c.key == task.headline)


def ranks(rows: Sequence[Row]) -> dict[str, int]:
    """1 for the best, by the interquartile mean of the headline column, of the schemes that
    fitted; equal values share a rank."""
    sign = -1 if headline(rows[0]).better == "high" else 1
    values = {}
    for row in rows:
        found = row.estimate(headline(row))
        if row.kind == "scheme" and row.fitted and found is not None:
            values[row.label] = sign * found.value
    return {name: 1 + sum(v < own for v in values.values()) for name, own in values.items()}


def rank_map(panels: Sequence[tuple[str, str, Sequence[Row]]]) -> str:
    """Schemes by tasks as HTML; empty for one task alone. Never averaged over tasks."""
    if len(panels) < 2:
        return ""
    several = len({model for _, model, _ in panels}) > 1
    columns = [(f"{t}, {m}" if several else t, ranks(rows)) for t, m, rows in panels]
    names = list(
        dict.fromkeys(r.label for _, _, rows in panels for r in rows if r.kind == "scheme")
    )
    head = "".join(f'<th scope="col" class="sort">{escape(task)}</th>' for task, _ in columns)
    lines = []
    for name in names:
        cells = []
        for _, found in columns:
            rank = found.get(name)
            if rank is None:
                cells.append('<td class="undefined">–</td>')
                continue
            share = 100 * (1 - (rank - 1) / max(len(found) - 1, 1))
            cells.append(f'<td class="rank" style="--share:{share:.0f}%"><b>{rank}</b></td>')
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>')
    return (
        "<h2>Ranks by task</h2>"
        '<div class="card scroll"><table class="sortable"><thead><tr><th class="first"></th>'
        f"{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        '<div class="notes"><p>By the interquartile mean past the trained length; –: not fitted or '
        "undefined. Ranks say nothing of how far apart schemes are, and are not averaged.</p></div>"
    )


def draw_profiles(axes: Axes, rows: Sequence[Row]) -> None:
    """For every fitted row the share of seeds that score at least as well as `x`."""
    column = headline(rows[0])
    sign = 1 if column.better == "high" else -1
    shown = [
        (row, style, [sign * v for v in row.scores(column) or ()])
        for row, style in styled(rows)
        if row.fitted and row.estimate(column) is not None
    ]
    every = np.concatenate([scores for _, _, scores in shown])
    low, high = (0.0, 1.0) if column.better == "high" else (every.min(), every.max())
    pad = 0.02 * (high - low) or 0.01
    x = np.linspace(low - pad, high + pad, 400)
    for row, style, scores in shown:
        share = performance_profile([scores], list(x))
        axes.plot(sign * x, share, linewidth=1.8, label=row.label, **style)
    if sign < 0:
        axes.invert_xaxis()
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel(f"{column.group}, {column.title}: at least as good as")
    axes.set_ylabel("share of seeds")
    legend(axes)
