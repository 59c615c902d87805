"""What a model is trained on and measured by. A task is one file with one registered dataclass."""

from flax_pos.lab.tasks.base import (
    Batch,
    Column,
    Curve,
    Evaluation,
    HeatMap,
    Loaded,
    Measures,
    Reach,
    Task,
    get_task,
    list_tasks,
    register_task,
)

__all__ = [
    "Batch",
    "Column",
    "Curve",
    "Evaluation",
    "HeatMap",
    "Loaded",
    "Measures",
    "Reach",
    "Task",
    "get_task",
    "list_tasks",
    "register_task",
]
