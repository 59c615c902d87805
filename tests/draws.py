"""Random arrays drawn by NumPy: `jax.random` compiles a program for every shape."""

import jax.numpy as jnp
import numpy as np


def normal(shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def integers(shape, stop, seed=0):
    """int32, from 0 up to below `stop`."""
    return jnp.asarray(np.random.default_rng(seed).integers(0, stop, shape), jnp.int32)
