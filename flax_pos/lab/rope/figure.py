"""The picture: wavelengths against lengths, scores by distance, and the pairs as clocks."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Wedge

from flax_pos.lab.figures import COLOURS, DASHES
from flax_pos.lab.rope.pairs import Case, score_by_distance

CLOCKS = 12
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.25,
}
_PLAIN, _OWN, _SEEN, _NEW = COLOURS[0], COLOURS[3], "#9dc3e6", COLOURS[5]


def save(cases: Sequence[Case], path: Path) -> None:
    """Draws one row of panels for each case and writes a PNG."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(15, 4.6 * len(cases)), layout="constrained")
        for panels, case in zip(
            figure.subfigures(len(cases), 1, squeeze=False), cases, strict=True
        ):
            _draw_case(panels[0], case)
        partial = path.with_name(path.name + ".partial")
        figure.savefig(partial, format="png", dpi=130, facecolor="white")
    partial.replace(path)


def _draw_case(panel, case: Case) -> None:
    kind = "" if case.kind is None else f"{case.kind}: "
    panel.suptitle(
        f"{kind}{case.spec.scaling.rope_type}, theta {case.spec.theta:g}, trained to "
        f"{case.trained:,}, at {case.length:,}"
    )
    left, middle, right = panel.subplots(1, 3)
    _wavelengths(left, case)
    _scores(middle, case)
    _clocks(right, case)


def _wavelengths(axes: Axes, case: Case) -> None:
    curves = {"unscaled": case.plain, "as configured": case.own, **case.others()}
    others = [colour for colour in COLOURS if colour not in (_PLAIN, _OWN, _NEW)]
    for i, (name, w) in enumerate(curves.items()):
        turning = np.flatnonzero(w)
        bold = name == "as configured"
        axes.plot(
            turning,
            2 * np.pi / w[turning],
            color=_OWN if bold else _PLAIN if i == 0 else others[(i - 2) % len(others)],
            linestyle="-" if bold or i == 0 else DASHES[i % len(DASHES)],
            linewidth=2.2 if bold else 1.1,
            label=name,
            zorder=3 if bold else 2,
        )
    outside = np.flatnonzero(case.leaves(case.own))
    axes.plot(
        outside, 2 * np.pi / case.own[outside], "o", ms=4, color=_NEW, label="leaves the range"
    )
    axes.axhline(case.trained, color="black", linewidth=0.8)
    axes.annotate("trained length", (0, case.trained), va="bottom", fontsize=8)
    if case.length != case.trained:
        axes.axhline(case.length, color="black", linewidth=0.8, linestyle=":")
        axes.annotate("this length", (0, case.length), va="bottom", fontsize=8)
    axes.set(yscale="log", xlabel="pair", ylabel="wavelength in tokens", title="Wavelengths")
    axes.legend(loc="lower right", fontsize=8)


def _scores(axes: Axes, case: Case) -> None:
    distances = np.unique(np.geomspace(1, case.length, 900).astype(np.int64))
    for name, w, factor, colour in (
        ("unscaled", case.plain, 1.0, _PLAIN),
        ("as configured", case.own, case.factor, _OWN),
    ):
        axes.plot(distances, score_by_distance(w, factor, distances), color=colour, label=name)
    axes.axvspan(1, case.trained, color="#dfe7f2", zorder=0)
    axes.set(
        xscale="log",
        xlabel="distance in tokens (shaded: trained)",
        ylabel="score of a query with an equal key",
        title="Score by distance",
    )
    axes.legend(fontsize=8)


def _clocks(axes: Axes, case: Case) -> None:
    """Each circle is a pair; blue is the arc it swept in training, red what this length adds."""
    pairs = np.unique(np.linspace(0, len(case.own) - 1, CLOCKS).astype(int))
    columns = 4
    for place, pair in enumerate(pairs):
        x, y = place % columns * 2.6, -(place // columns) * 3.0
        seen = min(math.degrees(case.plain[pair] * case.trained), 360.0)
        now = min(math.degrees(case.own[pair] * case.length), 360.0)
        # Hands start at the top and go round clockwise.
        axes.add_patch(Wedge((x, y), 1, 90 - seen, 90, color=_SEEN, lw=0))
        if now > seen:
            axes.add_patch(Wedge((x, y), 1, 90 - now, 90 - seen, color=_NEW, alpha=0.8, lw=0))
        axes.add_patch(Circle((x, y), 1, fill=False, color="black", lw=0.8))
        angle = math.radians(90 - now)
        axes.plot([x, x + math.cos(angle)], [y, y + math.sin(angle)], color="black", lw=1.4)
        axes.annotate(f"pair {pair}", (x, y - 1.25), ha="center", va="top", fontsize=8)
    axes.set(title="Clocks: seen in training (blue), new at this length (red)", aspect="equal")
    axes.set_xlim(-1.4, columns * 2.6 - 1.2)
    axes.set_ylim(-((len(pairs) - 1) // columns) * 3.0 - 2.2, 1.4)
    axes.axis("off")
