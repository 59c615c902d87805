"""The figures of one task: every curve, by every row that has it, maps and profiles."""

from collections.abc import Sequence

from flax_pos.lab.figures import Named, draw_curve, heat_maps, styled
from flax_pos.lab.grid.context import context_figures
from flax_pos.lab.grid.ranks import draw_profiles, ranks
from flax_pos.lab.grid.results import Row


def make_panel_figures(title: str, rows: Sequence[Row]) -> list[Named]:
    """The figures of the rows of one task and model, which `title` names."""
    task = rows[0].task_settings
    name = lambda text: f"{title}: {text[0].lower()}{text[1:]}"
    key = lambda text: f"{title} {text}".replace("@", " ")
    figures = []
    for curve in (*task.curves, *(context_figures(task) if task.tested_lengths else ())):
        have = [pair for pair in styled(rows) if curve.key in pair[0].part["curves"]]
        draw = lambda axes, shade, c=curve, have=have: draw_curve(axes, shade, have, c)
        if have:
            figures.append(Named(key(curve.key), name(curve.title), curve.caption, draw))
    figures += heat_maps(task, rows, title)
    if ranks(rows):
        caption = (
            "Share of seeds that do at least as well as this, past the trained length. A line that "
            "lies above another everywhere is better whatever one asks for."
        )
        draw = lambda axes, shade: draw_profiles(axes, rows)
        figures.append(Named(key("profile"), name("Performance profiles"), caption, draw))
    return figures
