"""The models trained at once for one scheme: seeds, and the points of a sweep."""

import ast
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flax_pos.lab.config import Config
from flax_pos.lab.errors import UserError, suggest
from flax_pos.scheme import Scheme, from_dict, list_schemes


def parse_scheme(text: str) -> Scheme:
    """A scheme from its name, or its name with settings: `rope`, `rope(theta=500.0)`.

    Settings are Python literals; a scheme inside a scheme is written the same way.

    Raises:
      UserError: not of this form, an unknown scheme or setting, or a value that it refuses.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    name = tree.func if isinstance(tree, ast.Call) else tree
    if not isinstance(name, ast.Name):  # names such as "2d" are no Python, but may be registered
        if text in list_schemes():
            return from_dict({"name": text})
        raise UserError(f"scheme {text!r} is neither NAME nor NAME(setting=value, ...)")
    value = _evaluate(tree, text)
    assert isinstance(value, Scheme)
    return value


def _evaluate(node: Any, text: str) -> Any:
    if isinstance(node, ast.Name) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ):
        name = node.id if isinstance(node, ast.Name) else node.func.id  # type: ignore[union-attr]
        keywords = [] if isinstance(node, ast.Name) else node.keywords
        if isinstance(node, ast.Call) and (node.args or any(k.arg is None for k in keywords)):
            raise UserError(f"scheme {text!r}: write settings as name=value")
        known = list_schemes()
        if name not in known:
            raise UserError(f"unknown scheme {name!r}{suggest(name, known)}")
        settings = {str(k.arg): _evaluate(k.value, text) for k in keywords}
        try:
            return from_dict({"name": name, **settings})
        except (TypeError, ValueError) as error:
            raise UserError(f"scheme {text!r}: {error}") from None
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_evaluate(item, text) for item in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise UserError(f"scheme {text!r}: {ast.unparse(node)} is not a plain value") from None


class Entry(NamedTuple):
    """A scheme to be trained, with the points of the sweep that apply to it."""

    label: str
    scheme: Scheme
    points: tuple[dict[str, float], ...]
    """Swept numbers of each point: `learning_rate` or fields of the scheme."""

    @property
    def rows(self) -> tuple[str, ...]:
        """What each point is called in tables and figures."""
        return tuple(
            " ".join([self.label, *(f"{k}={v:g}" for k, v in point.items())])
            for point in self.points
        )

    @property
    def slug(self) -> str:
        """The label as a folder's name."""
        return "".join(c if c.isalnum() or c in "-_=." else "_" for c in self.label)


def make_entries(config: Config) -> tuple[Entry, ...]:
    """The schemes of a run.

    Raises:
      UserError: an unknown scheme or setting, or a swept name that no scheme has.
    """
    entries = []
    swept_somewhere = {"learning_rate"}
    for label in config.schemes:
        scheme = parse_scheme(label)
        floats = {
            f.name for f in dataclasses.fields(scheme) if isinstance(getattr(scheme, f.name), float)
        }
        names = [n for n in config.sweep if n == "learning_rate" or n in floats]
        swept_somewhere |= set(names)
        values = itertools.product(*(config.sweep[n] for n in names))
        points = tuple(dict(zip(names, point, strict=True)) for point in values)
        for point in points:
            settings = {n: v for n, v in point.items() if n != "learning_rate"}
            rate = {n: v for n, v in point.items() if n == "learning_rate"}
            try:
                dataclasses.replace(scheme, **settings)
                dataclasses.replace(config.optimizer, **rate)
            except (TypeError, ValueError) as error:
                raise UserError(f"sweep of scheme {label!r}: {error}") from None
        entries.append(Entry(label, scheme, points))
    for name in config.sweep:
        if name not in swept_somewhere:
            raise UserError(
                f"cannot sweep {name!r}: it is neither learning_rate nor a float setting of any of "
                f"{', '.join(config.schemes)}"
            )
    slugs = [e.slug for e in entries]
    for slug in slugs:
        if slugs.count(slug) > 1:
            raise UserError(f"two schemes would share the folder {slug!r}; name them differently")
    return tuple(entries)


Members = dict[str, Any]
"""One row for each model: `init_seed`, `data_seed` (uint32), `learning_rate` (float32), and
`settings`, a dict of the scheme's swept fields (float32)."""


def make_members(config: Config, entry: Entry) -> Members:
    """Every point with every seed, all seeds of a point together.

    A seed stands for one order of the data and one set of initial weights, so that seed i is
    the same experiment under every scheme and at every point; `train.vary` holds one of the two
    at the first seed.
    """
    init_seeds, data_seeds = np.asarray(list(config.train.runs.values()), np.uint32).T
    points = len(entry.points)
    learning_rate = config.optimizer.learning_rate
    names = [n for n in entry.points[0] if n != "learning_rate"]

    def spread(values: Sequence[float]) -> np.ndarray:
        return np.repeat(np.asarray(values, np.float32), len(init_seeds))

    return {
        "init_seed": np.tile(init_seeds, points),
        "data_seed": np.tile(data_seeds, points),
        "learning_rate": spread([p.get("learning_rate", learning_rate) for p in entry.points]),
        "settings": {name: spread([p[name] for p in entry.points]) for name in names},
    }


def with_settings(scheme: Scheme, settings: Mapping[str, Any]) -> Scheme:
    """The scheme with swept fields replaced by (traced) numbers."""
    return dataclasses.replace(scheme, **settings) if settings else scheme
