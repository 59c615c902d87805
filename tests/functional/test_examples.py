"""The examples in the docstrings run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import flax_pos.functional as package

MODULES = sorted(m.name for m in pkgutil.walk_packages(package.__path__, "flax_pos.functional."))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    modules = map(importlib.import_module, MODULES)
    assert sum(len(test.examples) for m in modules for test in finder.find(m)) > 20
