"""What the table says, in words that claim no more than it does."""

from flax_pos.lab.results import Row, Run
from flax_pos.lab.statistics import Summary

FEW = 5
"""Below this many seeds the reader is told that order and intervals may not hold up."""


def findings(run: Run) -> list[str]:
    """Sentences for the top of the report."""
    if not run.rows:
        return []
    return [*_inside(run), *_carry(run), *_cautions(run)]


def _inside(run: Run):
    column = run.config.task.columns[0]
    scored = [(row.label, row.summary(column)) for row in run.rows]
    known = [(label, s) for label, s in scored if s is not None]
    if len(known) < 2:
        return
    sign = 1 if column.better == "low" else -1
    known.sort(key=lambda item: sign * item[1].mean)
    (label, first), others = known[0], known[1:]
    where = f"{column.group[:1].upper()}{column.group[1:]}, {column.title}"
    if any(s.too_few for _, s in known):
        yield f"{where}: {label} has the best mean ({first.mean:.3f}); too few seeds to say more."
        return
    same = [other for other, s in others if _overlap(first, s)]
    if not same:
        yield f"{where}: {label} is best ({first.mean:.3f}), its interval apart from all others."
    else:
        yield (
            f"{where}: {label} has the best mean ({first.mean:.3f}), but its interval overlaps "
            f"that of {_join(same)}: they are not told apart here."
        )


def _overlap(a: Summary, b: Summary) -> bool:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return True
    return a.low <= b.high and b.low <= a.high


def _carry(run: Run):
    trained = run.config.task.reach_at_training
    all_the_way = [r.label for r in run.rows if r.reach.open]
    past = [r for r in run.rows if not r.reach.open and r.reach.length > trained]
    ended = [r.label for r in run.rows if _table_ends(r) and r.reach.length == trained]
    at_once = [
        r.label
        for r in run.rows
        if not r.reach.open and r.reach.length == trained and r.label not in ended
    ]
    unfitted = [r.label for r in run.rows if r.reach.length < trained]
    if all_the_way:
        yield f"Held at every length tried: {_join(all_the_way)}."
    for row in past:
        times = row.reach.length / trained
        yield f"{row.label} carries to {row.reach.length} {run.config.task.unit} ({times:.3g}×)."
    if at_once:
        yield f"Worse at the first length past it already: {_join(at_once)}."
    if ended:
        yield f"Undefined past the training length: {_join(ended)}."
    if unfitted:
        yield f"Not fitted inside the training range, so not compared past it: {_join(unfitted)}."


def _table_ends(row: Row) -> bool:
    return any(None in values for values in row.part["scalars"].values())


def _cautions(run: Run):
    config = run.config
    if "learning_rate" not in config.sweep and len(config.schemes) > 1:
        yield (
            f"All schemes trained with one learning rate ({config.optimizer.learning_rate:g}) for "
            f"{config.train.steps} updates: one that trains more slowly is behind for that alone."
        )
    if config.train.models < FEW:
        few = "1 seed is" if config.train.models == 1 else f"{config.train.models} seeds are"
        yield f"{few} few: treat close means as ties."


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
