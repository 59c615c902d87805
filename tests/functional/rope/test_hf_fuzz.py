"""Mutated configs end in a valid spec or a clear ValueError, and in nothing else."""

import copy
import json
import random

import numpy as np
from test_hf_zoo import ROWS

from flax_pos.functional.rope import RopeSpec, rope_layers

MUTATIONS = 10_000
VALUES = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 128, 1e4, 0.5, 0.25, -0.5, 1e-300, 1e300, 10**400,
    float("nan"), float("inf"), "", "yarn", "default", "linear", "su", [], [1.0], [2, 2], [0] * 48,
    ["a"], {}, {"rope_type": "linear"}, {"factor": 2.0}, {"full_attention": None}, (1, 2), b"x",
]  # fmt: skip


def containers(config):
    """Every mapping inside a config, itself first."""
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from containers(value)


def mutated(rng: random.Random, configs):
    config = copy.deepcopy(rng.choice(configs))
    for _ in range(rng.randint(1, 3)):
        where = rng.choice(list(containers(config)))
        keys = list(where)
        other = rng.choice(list(containers(rng.choice(configs))))
        kind = rng.randrange(5)
        if kind == 0 and keys:
            del where[rng.choice(keys)]
        elif kind == 1 and keys:
            where[rng.choice(keys)] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 2 and keys:
            key = rng.choice(keys)
            where[rng.choice([key + "s", key.upper(), "rope_" + key, "type"])] = where.pop(key)
        elif kind == 3 and other:
            key = rng.choice(list(other))
            where[key] = copy.deepcopy(other[key])
        else:
            where[rng.choice(["rope_theta", "rope_type", "type", "factor", "head_dim", "odd"])] = (
                copy.deepcopy(rng.choice(VALUES))
            )
    return config


def test_mutated_configs():
    rng = random.Random(20240229)
    configs = [row.config for row in ROWS]
    read = refused = 0
    for _ in range(MUTATIONS):
        config = mutated(rng, configs)
        kind = rng.choice([None, None, "full_attention", "sliding_attention", "main"])
        try:
            spec = RopeSpec.from_hf_config(config, kind)
        except ValueError:
            refused += 1
            continue
        read += 1
        inv_freq, factor, softmax = spec.frequencies()
        assert np.isfinite(inv_freq).all(), config
        assert (inv_freq >= 0).all(), config
        assert np.isfinite([factor, softmax]).all(), config
        assert RopeSpec.from_hf_config(json.loads(json.dumps(spec.to_hf_config()))) == spec, config
    assert read > MUTATIONS / 10
    assert refused > MUTATIONS / 10


def test_mutated_configs_by_layer():
    rng = random.Random(5)
    configs = [row.config for row in ROWS]
    for _ in range(MUTATIONS // 5):
        config = mutated(rng, configs)
        config["num_hidden_layers"] = rng.choice([1, 4, 4, 4, 0, None, "4"])
        try:
            layers = rope_layers(config)
        except ValueError:
            continue
        assert all(layer.spec is None or isinstance(layer.spec, RopeSpec) for layer in layers)
