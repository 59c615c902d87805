"""What the table says, in words that claim no more than it does."""

from flax_pos.lab.results import Row, Run
from flax_pos.lab.statistics import FEWEST, span


def findings(run: Run) -> list[str]:
    """Sentences for the top of the report."""
    if not run.rows:
        return []
    return [*_too_few(run), *_inside(run), *_carry(run), *_cautions(run)]


def _too_few(run: Run):
    if (count := run.config.train.models) < FEWEST:
        few = "1 seed is" if count == 1 else f"{count} seeds are"
        yield (
            f"{few} too few for an interval, and so to rank schemes: treat what is close as a tie."
        )


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
    same = [other for _, other, theirs in others if own[0] <= theirs[1] and theirs[0] <= own[1]]
    if run.config.train.models < FEWEST:
        seeds = "only seed" if run.config.train.models == 1 else "seeds"
        apart = f"level with {_join(same)}" if same else "apart from all others"
        yield f"{where}: {label} is ahead by its {seeds} ({value:.3f}), {apart}."
    elif not same:
        yield f"{where}: {label} is best ({value:.3f}), its interval apart from all others."
    else:
        yield (
            f"{where}: {label} is best ({value:.3f}), but its interval overlaps that of "
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


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
