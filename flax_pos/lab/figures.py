"""Figures: every seed thin, the mean over seeds bold, the range seen in training shaded."""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from flax_pos.lab.results import Run
from flax_pos.lab.tasks import Curve

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
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))

# Stand-ins for colours that the page decides: swapped for CSS variables in the SVG.
INK, MUTED, SHADE = "#010203", "#040506", "#070809"
PRINT = {INK: "#1c2024", MUTED: "#6b7480", SHADE: "#dfe7f2"}


Middle = Callable[[np.ndarray], np.ndarray]
"""From `seeds x` to the bold line."""


class Named:
    """A figure with the words that go with it."""

    def __init__(self, key: str, title: str, caption: str, draw):
        self.key = key
        self.title = title
        self.caption = caption
        self._draw = draw

    @property
    def file_name(self) -> str:
        return self.key.replace(" ", "-") + ".png"

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
            figure = Figure(figsize=(6.6, 3.8), layout="constrained")
            self._draw(figure.add_subplot(), shade)
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
    """The figures of a run's finished schemes."""
    figures = [
        Named(
            "loss by step",
            "Training loss by step",
            "Mean over the updates between log lines. Thin: every seed; bold: their mean. Batch t "
            "of a seed is the same for every scheme.",
            lambda axes, shade: _loss_by_step(axes, run),
        )
    ]
    for curve in run.config.task.curves:
        figures.append(
            Named(
                curve.key,
                curve.title,
                curve.caption,
                lambda axes, shade, curve=curve: draw_curve(axes, shade, run.rows, curve),
            )
        )
    return tuple(figures)


def _styles(rows: Sequence[Any]):
    for i, row in enumerate(rows):
        dash = DASHES[(i // len(COLOURS)) % len(DASHES)]
        yield row, {"color": COLOURS[i % len(COLOURS)], "linestyle": dash}


def _mean(seeds: np.ndarray) -> np.ndarray:
    return seeds.mean(axis=0)


def _draw_seeds(axes: Axes, x, seeds, label: str, style: dict, middle: Middle = _mean) -> None:
    seeds = np.asarray(seeds, np.float64)
    if len(seeds) > 1:
        for seed in seeds:
            axes.plot(x, seed, linewidth=0.7, alpha=0.35, **style)
    axes.plot(x, middle(seeds), linewidth=2.1, label=label, **style)


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), handlelength=1.6, borderaxespad=0)


def _loss_by_step(axes: Axes, run: Run) -> None:
    lowest, early = [], []
    for row, style in _styles(run.rows):
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
    _legend(axes)


def draw_curve(
    axes: Axes, shade: str, rows: Sequence[Any], curve: Curve, middle: Middle = _mean
) -> None:
    """A curve of every row, which has a `label` and a `part` as those of a run have."""
    axes.axvspan(0, curve.trained_to, color=shade, linewidth=0, zorder=0)
    right = curve.trained_to
    undefined = []
    for row, style in _styles(rows):
        data = row.part["curves"][curve.key]
        x = np.asarray(data["x"], np.float64)
        seeds = np.asarray([[np.nan if v is None else v for v in seed] for seed in data["y"]])
        _draw_seeds(axes, x, seeds.astype(np.float64), row.label, style, middle)
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
    axes.text(
        curve.trained_to,
        1.0,
        "trained ",
        transform=axes.get_xaxis_transform(),
        ha="right",
        va="bottom",
        fontsize=8.5,
    )
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
    _legend(axes)
