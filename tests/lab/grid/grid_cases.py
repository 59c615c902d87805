"""A grid small enough to be read whole."""

TABLE = {
    "name": "tried",
    "schemes": ["none", "rope"],
    "learning_rates": [1e-3, 3e-3],
    "tasks": {"copy": {"max_count": 3, "test_count": 5}, "sort": {"max_size": 3, "test_size": 5}},
    "models": {"small": {"width": 8, "layers": 1, "heads": 2}},
    "train": {"steps": 10, "seeds": 6, "batch_size": 2},
}
