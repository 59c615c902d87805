"""Whether what a task makes is what it says, before anything is trained on it."""

import jax
import numpy as np

from flax_pos.lab.errors import UserError
from flax_pos.lab.own import told_in_one_line
from flax_pos.lab.tasks.base import Evaluation, Loaded, Task
from flax_pos.lab.tasks.parts import PAD


def load_checked(task: Task, batch_size: int) -> tuple[Loaded, Evaluation]:
    """A task's data and its test sequences.

    Raises:
      UserError: data that cannot be used; or a task that makes ids outside its own vocabulary, or
        sequences of other lengths than it says.
    """
    with told_in_one_line(task):
        length = task.train_length
        if not isinstance(length, int | np.integer) or length < 1:
            raise _wrong(
                task,
                f"training sequences have {length!r} ids; `train_length`, or `tokens` of the "
                "largest size, must be a whole number of at least 1",
            )
        loaded = task.load()
        evaluation = task.evaluation(loaded)
        _check_evaluation(task, loaded, evaluation)
        _check_batch(task, loaded, batch_size)
    return loaded, evaluation


def _check_evaluation(task: Task, loaded: Loaded, made: Evaluation) -> None:
    shape = made.ids.shape
    for name, value in (("labels", made.labels), ("scored", made.scored)):
        if value.shape != shape:
            raise _wrong(task, f"test ids have shape {shape} and {name} {value.shape}")
    if made.length.shape != shape[:1]:
        raise _wrong(task, f"there are {shape[0]} test sequences and {made.length.shape} lengths")
    longest = int(made.length.max())
    if longest > shape[1]:
        raise _wrong(
            task, f"test sequences are {shape[1]} ids wide, and one is said to have {longest}"
        )
    past = np.arange(shape[1])[None, :] >= made.length[:, None]
    if (made.scored & past).any():
        row, at = np.argwhere(made.scored & past)[0]
        raise _wrong(
            task,
            f"a test sequence said to have {made.length[row]} ids is scored on the label at its id "
            f"number {at + 1}; `tokens` must count every id but the last token, which is only a "
            "label",
        )
    last = np.arange(len(made.length)), made.length - 1
    padding = (made.ids[last] == PAD) & (made.labels[last] == PAD) & ~made.scored[last]
    if padding.all():
        raise _wrong(
            task,
            f"each test sequence said to have {longest} ids or fewer ends in padding; `tokens` "
            "counts more ids than `example` makes",
        )
    if not made.scored.any(axis=1).all():
        raise _wrong(task, "a test sequence has no label that is scored; mark the answer")
    if not task.inside(made).any():
        raise _wrong(
            task,
            f"no test sequence is like those of training, of up to {task.train_length} ids: "
            "learning rates are chosen by the loss on such",
        )
    real = ~past
    _check_ids(task, loaded, "test", made.ids[real], made.labels[real & made.scored])


def _check_batch(task: Task, loaded: Loaded, batch_size: int) -> None:
    fed = {} if loaded.host is None else task.feed(loaded, 0, 0, 1, batch_size)
    data = loaded.data | {name: array[0] for name, array in fed.items()}
    make = jax.jit(lambda data, key: task.batch(data, key, batch_size))
    batch = make(data, jax.random.key(0))
    shape = (batch_size, task.train_length)
    for name in ("ids", "labels", "weights"):
        found = getattr(batch, name).shape
        if found != shape:
            raise _wrong(
                task, f"{name} of a training batch have shape {found}; they must have {shape}"
            )
    counts = np.asarray(batch.weights) > 0
    if not counts.any():
        raise _wrong(task, "no label of a training batch counts; mark the answer")
    labels = np.asarray(batch.labels)[counts]
    _check_ids(task, loaded, "training", np.asarray(batch.ids), labels)


def _check_ids(task: Task, loaded: Loaded, which: str, ids, labels) -> None:
    for name, values in (("id", ids), ("label", labels)):
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= loaded.vocab_size:
            raise _wrong(
                task,
                f"{which} sequences hold the {name} {low if low < 0 else high}, and the vocabulary "
                f"(`symbols_needed`, `vocab_size`) has 0 .. {loaded.vocab_size - 1}",
            )


def _wrong(task: Task, what: str) -> UserError:
    return UserError(f"task {task.name!r}: {what}")
