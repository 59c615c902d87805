"""Hundreds of small programs, each run once or twice: compile them fast rather than well."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
