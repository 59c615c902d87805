"""What the table says, in words that claim no more than it does."""

from flax_pos.lab.results import Row, Run
from flax_pos.lab.statistics import FEWEST, span


def findings(run: Run) -> list[str]:
    """Sentences for the top of the report."""
    if not run.rows:
        return []
    return [*_inside(run), *_carry(run), *_cautions(run)]


def _inside(run: Run):
    column = run.config.task.columns[0]
    known = []
    for row in run.rows:
        scores, value = row.scores(column), row.estimate(column)
        if scores is not None and value is not None:
            known.append((value.value, row.label, span(scores)))
    if len(known) < 2:
        return
    known.sort(reverse=column.better == "high")
    (value, label, own), others = known[0], known[1:]
    where = f"{column.group[:1].upper()}{column.group[1:]}, {column.title}"
    few = run.config.train.models < FEWEST
    span_of = "the range of its seeds" if few else "its interval"
    same = [other for _, other, theirs in others if own[0] <= theirs[1] and theirs[0] <= own[1]]
    if not same:
        yield f"{where}: {label} is best ({value:.3f}), {span_of} apart from all others."
    else:
        yield (
            f"{where}: {label} is best ({value:.3f}), but {span_of} overlaps that of "
            f"{_join(same)}: they are not told apart here."
        )


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
    if config.train.models < FEWEST:
        few = "1 seed is" if config.train.models == 1 else f"{config.train.models} seeds are"
        yield f"{few} too few for an interval: treat what is close as a tie."


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
