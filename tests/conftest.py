"""How all tests run: on CPU with eight devices, strict about dtypes and ranks, and the same every
time. `--typecheck` also checks every annotated shape and dtype at run time."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import pytest
from hypothesis import settings

TYPED = ["flax_pos.functional", "flax_pos.attention"]


def pytest_addoption(parser):
    parser.addoption(
        "--typecheck",
        action="store_true",
        help="check jaxtyping annotations by beartype (tests of error messages then fail, since "
        "the checker speaks first)",
    )


def pytest_configure(config):
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    if jax.__version_info__ < (0, 11):  # later ones have no others
        _offer_old_emitters()
    settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=30)
    settings.load_profile("repeatable")
    if config.getoption("--typecheck"):
        from jaxtyping import install_import_hook

        install_import_hook(TYPED, "beartype.beartype")


QUICK = ("attention", "conformance", "grid", "interop", "lab", "nnx", "schemes", "tasks")
"""Packages of hundreds of small programs, each run once or twice: compiled fast rather than
well."""
BITWISE = ("lab",)
"""Of these, packages that compare numbers of different programs bit by bit."""
OLD_EMITTERS = {"on": False}


def _offer_old_emitters():
    """XLA's older emitters of loops: programs compile in half the time."""
    from jax._src import compiler

    own = compiler.get_compile_options

    def options(*args, **settings):
        made = own(*args, **settings)
        if OLD_EMITTERS["on"]:
            made.env_option_overrides = [
                *made.env_option_overrides,
                ("xla_cpu_use_fusion_emitters", False),
            ]
        return made

    compiler.get_compile_options = options


@pytest.fixture(scope="module", autouse=True)
def compilation(request):
    """For all of a module, its own fixtures too: what is compared bit by bit is compiled alike."""
    package = request.path.parent.name
    jax.config.update("jax_disable_most_optimizations", package in QUICK)
    OLD_EMITTERS["on"] = package in QUICK and package not in BITWISE
