"""What `anatomy` found, as figures and a table."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np
from matplotlib.axes import Axes

from flax_pos.lab.figures import Named, Styled, legend, styled
from flax_pos.lab.grid.results import Row

FIRST = "Of the first seed."


def anatomy_figures(title: str, every: Sequence[Row]) -> list[Named]:
    """The figures of one task; none where nothing has been measured."""
    rows = [(row, style) for row, style in styled(every) if row.anatomy is not None]
    if not rows:
        return []
    trained = every[0].task_settings.train_length
    made = [
        (
            "Attention by distance",
            f"Mean weight that a query gives to the token at a distance, over layers and heads, in "
            f"sequences of the longest length that the scheme is defined at. {FIRST} Shaded: "
            "distances seen in training.",
            lambda axes, shade: _lines(
                axes, shade, rows, trained, "attention by distance", "distance (tokens)", "weight"
            ),
        ),
        (
            "Entropy of attention",
            "Over layers and heads, by the number of tokens that the query can see; grey: all of "
            f"them alike. A line that rises with the grey one spreads thinner as text grows. "
            f"{FIRST}",
            lambda axes, shade: _lines(
                axes, shade, rows, trained, "entropy", "tokens to choose from", "entropy (nats)"
            ),
        ),
        (
            "Receptive field by gradient",
            "Share of the gradient of the last prediction that comes from the last so many tokens. "
            f"{FIRST}",
            lambda axes, shade: _lines(
                axes, shade, rows, trained, "receptive field", "last tokens", "share of gradient"
            ),
        ),
    ]
    turning = [(row, style) for row, style in rows if row.anatomy["bands"] is not None]
    if turning:
        made += [
            (
                "Use of RoPE's bands",
                "Mean norm of the query's pair times that of the key's, as a share of all pairs, "
                f"over layers and heads, by the tokens that a pair takes for a turn. {FIRST}",
                lambda axes, shade: _bands(axes, shade, turning, trained, "use"),
            ),
            (
                "Angles that training never showed",
                "Share of distances at which a pair stands at an angle it never had in training, "
                "at the longest length. Extensions that squeeze positions bring it down. ",
                lambda axes, shade: _bands(axes, shade, turning, trained, "unseen"),
            ),
        ]
    return [
        Named(
            f"{title} {name}".lower().replace(",", ""),
            f"{title}: {name[0].lower()}{name[1:]}",
            caption,
            draw,
        )
        for name, caption, draw in made
    ]


def _longest(row: Row) -> dict:
    lengths = (row.anatomy or {})["lengths"]
    return lengths[str(max(map(int, lengths)))]


def _lines(
    axes: Axes, shade, rows: Styled, trained: int, key: str, x_label: str, y_label: str
) -> None:
    right, lowest = 1.0, 1.0
    for row, style in rows:
        curve = _longest(row)[key]
        x, y = np.asarray(curve["x"]), np.asarray(curve["y"]).mean(axis=0)
        axes.plot(np.maximum(x, 0.5), y, linewidth=1.8, label=row.label, **style)
        right = max(right, float(x[-1]))
        lowest = min(lowest, float(np.nanmin(y)))
    axes.axvspan(0.4, trained, color=shade, linewidth=0, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.5 if key == "attention by distance" else 1, right)
    axes.xaxis.set_major_formatter("{x:g}")
    if key == "attention by distance":
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(1e-5, 0.5 * lowest))
    if key == "entropy":
        n = np.geomspace(1, right, 50)
        axes.plot(n, np.log(n), color="#8a8f98", linewidth=1, zorder=1)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    legend(axes)


def _bands(axes: Axes, shade, rows: Styled, trained: int, key: str) -> None:
    axes.axvspan(1, trained, color=shade, linewidth=0, zorder=0)
    for row, style in rows:
        bands = row.anatomy["bands"]
        x = np.asarray(bands["wavelength"])
        if key == "use":
            y = np.asarray(bands["use"]).mean(axis=0)
        else:
            y = np.asarray(bands["unseen"][max(bands["unseen"], key=int)])
        turns = x > 0  # pairs that stand still have no place on the axis
        axes.plot(x[turns], y[turns], marker="o", markersize=3, label=row.label, **style)
    axes.set_xscale("log")
    axes.set_xlabel("wavelength (tokens), in training")
    axes.set_ylabel("share of all pairs" if key == "use" else "share of distances")
    legend(axes)


HEADS = (
    (
        "first token",
        "Mean attention of later tokens to the first one, at the longest length",
    ),
    ("sharpness", "Entropy of attention at the last token, as a share of the largest possible"),
    ("reads", "Last tokens that hold 99 % of the gradient, at the longest length"),
    ("shift", "Change of the loss, in nats, when all positions move by the trained length"),
    ("largest", "Largest change of any log probability by that move"),
    ("new angles", "Share of RoPE's angles that training never showed, at the longest length"),
)


def anatomy_table(rows: Sequence[Row]) -> str:
    """One line for each row that has been measured, as HTML; empty where none has."""
    lines = []
    for row in rows:
        if row.anatomy is None:
            continue
        longest, shift, bands = _longest(row), row.anatomy["shift"], row.anatomy["bands"]
        entropy = np.mean([layer[-1] for layer in longest["entropy"]["y"]])
        most = math.log(max(longest["entropy"]["x"][-1], 2))
        unseen = bands and bands["unseen"][max(bands["unseen"], key=int)]
        values = (
            f"{np.mean(longest['first token']):.3f}",
            f"{entropy / most:.2f}",
            f"{longest['holds all']} of {max(map(int, row.anatomy['lengths']))}",
            "undefined" if shift is None else f"{shift['loss']:+.3f}",
            "undefined" if shift is None else f"{shift['largest']:.2g}",
            "–" if unseen is None else f"{np.mean(unseen):.0%}",
        )
        cells = "".join(f"<td><b>{escape(v)}</b></td>" for v in values)
        lines.append(f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>')
    if not lines:
        return ""
    head = "".join(
        f'<th scope="col" class="sort"><abbr title="{escape(text)}">{escape(name)}</abbr></th>'
        for name, text in HEADS
    )
    notes = "".join(f"<dt>{escape(n)}</dt><dd>{escape(t)}</dd>" for n, t in HEADS)
    return (
        '<div class="card scroll"><table class="sortable"><thead><tr><th class="first"></th>'
        f"{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<dl class="card method">{notes}</dl>'
    )
