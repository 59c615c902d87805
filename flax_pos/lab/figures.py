"""Figures: every seed thin, their interquartile mean bold, the range seen in training shaded."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from flax_pos.lab.results import Run
from flax_pos.lab.statistics import iqm
from flax_pos.lab.tasks import Curve, HeatMap, Task
from flax_pos.lab.tasks.base import SEEDS

COLOURS = (
    "#7f7f7f",
    "#e8871e",
    "#b5609c",
    "#2f7fd1",
    "#1a9e77",
    "#d64550",
    "#8f6bd1",
    "#a08a1f",
    "#20a5b5",
    "#94624a",
)
"""Told apart with the common colour blindnesses and on light and dark grounds."""
PANELS_IN_ROW = 3
DASHES = (
    "-",
    (0, (4, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (2, 2)),
    (0, (8, 3)),
    (0, (4, 1.5, 1, 1.5, 1, 1.5)),
)
"""As many as have no common divisor with the colours, so that pairs of both are many."""

# Stand-ins for colours that the page decides: swapped for CSS variables in the SVG.
INK, MUTED, SHADE = "#010203", "#040506", "#070809"
PRINT = {INK: "#1c2024", MUTED: "#6b7480", SHADE: "#dfe7f2"}


class Named:
    """A figure with the words that go with it."""

    def __init__(self, key: str, title: str, caption: str, draw, panels: int = 1):
        """`draw(axes, shade)` draws it; with more panels than one it gets a list of axes, the
        panels, which share their scales."""
        self.key = key
        self.title = title
        self.caption = caption
        self._draw = draw
        self._panels = panels

    @property
    def file_name(self) -> str:
        return "".join(c for c in self.key.replace(" ", "-") if c.isalnum() or c in "-.") + ".png"

    def _figure(self, ink: str, muted: str, shade: str) -> Figure:
        style: dict[Any, Any] = {
            "font.family": "sans-serif",
            "font.size": 10,
            "text.color": ink,
            "axes.labelcolor": ink,
            "axes.edgecolor": muted,
            "xtick.color": muted,
            "ytick.color": muted,
            "xtick.labelcolor": ink,
            "ytick.labelcolor": ink,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": muted,
            "grid.alpha": 0.18,
            "grid.linewidth": 0.7,
            "legend.frameon": False,
            "svg.fonttype": "none",
            "svg.hashsalt": self.key,
        }
        with matplotlib.rc_context(style):
            if self._panels == 1:
                figure = Figure(figsize=(6.6, 3.8), layout="constrained")
                self._draw(figure.add_subplot(), shade)
            else:
                rows = -(-self._panels // PANELS_IN_ROW)
                figure = Figure(figsize=(6.6, 0.5 + 2.0 * rows), layout="constrained")
                every = figure.subplots(
                    rows, PANELS_IN_ROW, sharex=True, sharey=True, squeeze=False
                )
                panels = list(every.flat)
                for unused in panels[self._panels :]:
                    unused.set_visible(False)
                self._draw(panels[: self._panels], shade)
        return figure

    def save_png(self, folder: Path) -> Path:
        """The figure on white, for slides and Markdown."""
        path = folder / self.file_name
        partial = path.with_suffix(".partial")
        self._figure(**_named(PRINT)).savefig(partial, format="png", dpi=160, facecolor="white")
        partial.replace(path)
        return path

    def svg(self) -> str:
        """An `<svg>` element whose ink, grid and shade are the CSS variables `--ink`, `--muted`
        and `--shade` of the page that holds it."""
        stream = io.StringIO()
        figure = self._figure(INK, MUTED, SHADE)
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": self.key}):
            figure.savefig(
                stream,
                format="svg",
                transparent=True,
                metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
            )
        text = stream.getvalue()
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
        for colour, variable in ((INK, "--ink"), (MUTED, "--muted"), (SHADE, "--shade")):
            text = text.replace(colour, f"var({variable})")
        # The size comes from the page; the fonts too.
        text = re.sub(r'(<svg [^>]*?)width="[^"]*" ?', r"\1", text, count=1)
        text = re.sub(r'(<svg [^>]*?)height="[^"]*" ?', r"\1", text, count=1)
        text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
        text = re.sub(r"(font: [0-9.]+px) [^;\"]*", r"\1 var(--font)", text)
        label = f'<svg role="img" aria-label="{self.title}" '
        return text.replace("<svg ", label, 1)


def _named(colours: dict[str, str]) -> dict[str, str]:
    return {"ink": colours[INK], "muted": colours[MUTED], "shade": colours[SHADE]}


def make_figures(run: Run) -> tuple[Named, ...]:
    """The figures of a run's finished schemes; none where none is finished."""
    if not run.rows:
        return ()
    figures = [
        Named(
            "loss by step",
            "Training loss by step",
            f"Mean over the updates between log lines. {SEEDS} Batch t of a seed is the same for "
            "every scheme.",
            lambda axes, shade: _loss_by_step(axes, run),
        )
    ]
    for curve in run.config.task.curves:
        figures.append(
            Named(
                curve.key,
                curve.title,
                curve.caption,
                lambda axes, shade, curve=curve: draw_curve(axes, shade, styled(run.rows), curve),
            )
        )
    figures += heat_maps(run.config.task, run.rows)
    return tuple(figures)


def heat_maps(task: Task, rows: Sequence[Any], title: str = "") -> list[Named]:
    """One figure for each of the task's heat maps, with a panel for each row."""
    return [
        Named(
            f"{title} {found.title}".strip().lower(),
            f"{title}: {found.title[0].lower()}{found.title[1:]}" if title else found.title,
            f"{found.caption} Interquartile mean over seeds.",
            lambda axes, shade, found=found: _draw_heat_map(axes, rows, found),
            panels=max(len(rows), 2),
        )
        for found in task.heat_maps
    ]


def _draw_heat_map(panels: Sequence[Axes], rows: Sequence[Any], found: HeatMap) -> None:
    for axes, row in zip(panels, rows, strict=False):
        lines = [np.asarray(row.part["curves"][key]["y"], np.float64) for key in found.keys]
        values = np.stack([iqm(line.T) for line in lines])
        axes.set_title(row.label, fontsize=9)
        image = axes.pcolormesh(np.ma.masked_invalid(values), cmap="cividis", vmin=0, vmax=1)
        for y, x in np.ndindex(values.shape):
            if np.isfinite(values[y, x]):
                ink = "black" if values[y, x] > 0.6 else "white"
                where = (x + 0.5, y + 0.5)
                axes.annotate(f"{values[y, x]:.1f}"[-2:] if values[y, x] < 0.95 else "1", where,
                              ha="center", va="center", fontsize=7, color=ink)  # fmt: skip
        axes.grid(visible=False)
        axes.tick_params(labelbottom=True)
        axes.xaxis.set_major_locator(FixedLocator(list(np.arange(values.shape[1]) + 0.5)))
        axes.xaxis.set_major_formatter(FixedFormatter(list(found.x_labels)))
        axes.yaxis.set_major_locator(FixedLocator(list(np.arange(values.shape[0]) + 0.5)))
        axes.yaxis.set_major_formatter(FixedFormatter(list(found.y_labels)))
    for unused in panels[len(rows) :]:
        unused.set_visible(False)
    panels[0].set_ylabel(found.y)
    panels[0].set_xlabel(found.x)
    panels[0].figure.colorbar(image, ax=list(panels), shrink=0.8)


Styled = Sequence[tuple[Any, dict[str, Any]]]
"""Rows with how their lines look."""


def styled(rows: Sequence[Any]) -> Styled:
    """The rows of a table with the looks that they keep in all figures. Whole lines lie below
    broken ones, so that rows which coincide can both be seen."""
    looks = [
        {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": DASHES[i % len(DASHES)],
            "zorder": 2 + (i % len(DASHES)) / 10,
        }
        for i in range(len(rows))
    ]
    return list(zip(rows, looks, strict=True))


def _draw_seeds(axes: Axes, x, seeds, label: str, style: dict) -> None:
    seeds = np.asarray(seeds, np.float64)
    if np.isfinite(seeds).sum(1).max() < 2:  # a single point makes no line
        style = {**style, "marker": "o", "clip_on": False}
    if len(seeds) > 1:
        for seed in seeds:
            axes.plot(x, seed, linewidth=0.7, alpha=0.35, **style)
    axes.plot(x, iqm(seeds.T), linewidth=2.1, label=label, **style)


def legend(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), handlelength=1.6, borderaxespad=0)


def _loss_by_step(axes: Axes, run: Run) -> None:
    lowest, early = [], []
    for row, style in styled(run.rows):
        _draw_seeds(axes, row.steps, row.losses, row.label, style)
        flat = np.asarray(row.losses, np.float64)
        if np.isfinite(flat).any():
            lowest.append(np.nanmin(flat))
            early.append(np.nanquantile(flat, 0.97))
    if lowest:
        low, high = min(lowest), max(early)
        pad = 0.04 * (high - low) or 0.1
        axes.set_ylim(low - pad, high + pad)
    axes.set_xlim(0, run.config.train.steps)
    axes.set_xlabel("updates")
    axes.set_ylabel("loss (nats)")
    legend(axes)


def draw_curve(axes: Axes, shade: str, rows: Styled, curve: Curve) -> None:
    """A curve of every row, which has a `label` and a `part` as those of a run have."""
    axes.axvspan(0, curve.trained_to, color=shade, linewidth=0, zorder=0)
    right = curve.trained_to
    undefined = []
    for row, style in rows:
        data = row.part["curves"][curve.key]
        x = np.asarray(data["x"], np.float64)
        seeds = np.asarray([[np.nan if v is None else v for v in seed] for seed in data["y"]])
        _draw_seeds(axes, x, seeds.astype(np.float64), row.label, style)
        right = max(right, float(x[-1]), *curve.ticks)
        if any(v is None for v in data["y"][0]):
            undefined.append(row.label)
    axes.set_xlim(0, right)
    if curve.ticks:
        axes.xaxis.set_major_locator(FixedLocator(list(curve.ticks)))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{t:g}" for t in curve.ticks]))
        axes.xaxis.set_minor_locator(NullLocator())
    if curve.y_range:
        axes.set_ylim(*curve.y_range)
    axes.text(0, 1.0, "trained", transform=axes.transAxes, va="bottom", fontsize=8.5)
    if undefined:
        axes.text(
            1.0,
            1.0,
            f"{', '.join(undefined)}: undefined past the trained length",
            transform=axes.transAxes,
            ha="right",
            va="bottom",
            fontsize=8.5,
        )
    axes.set_xlabel(curve.x)
    axes.set_ylabel(curve.y)
    legend(axes)
