"""What every position scheme must pass, and what to run on a scheme of your own.

    from flax_pos.testing import CHECKS, check_scheme

    check_scheme(MyScheme())                      # all of it, about ten seconds

    @pytest.mark.parametrize("check", CHECKS)     # or one test per check
    def test_my_scheme(check):
        check(MyScheme())

The checks know no formula: they compare the forms of one scheme with each other (blockwise with
dense, cached with whole, packed with alone) and its claims with what it does. A formula that is
wrong everywhere passes them; compare with numbers from the paper as well.
"""

from collections.abc import Callable

from flax_pos.scheme import Scheme, plan_layers
from flax_pos.scheme import check_scheme as check_instance
from flax_pos.testing import layer, modules, settings
from flax_pos.testing.harness import DIMS

WHOLE: tuple[Callable[[Scheme], None], ...] = (
    settings.check_round_trip,
    settings.check_described,
    modules.check_modules,
)
"""Checks of a scheme as a whole."""

BY_LAYER: tuple[Callable[[Scheme], None], ...] = (
    settings.check_parameters,
    settings.check_fields,
    settings.check_swept_fields,
    layer.check_hooks,
    layer.check_claims,
    layer.check_positions,
    layer.check_seeds,
    layer.check_blockwise,
    layer.check_bidirectional,
    layer.check_memory,
    layer.check_explicit_mesh,
    layer.check_cache,
    layer.check_ring,
    layer.check_rows,
    layer.check_padding,
    layer.check_packing,
    layer.check_grouped_heads,
    layer.check_dtype,
    layer.check_x64,
)
"""Checks of the scheme that one layer uses."""


def _for_layers(check: Callable[[Scheme], None]) -> Callable[[Scheme], None]:
    def run(scheme: Scheme) -> None:
        for part in plan_layers(scheme, max(DIMS.layers, 12)).parts:
            check(part)

    run.__name__, run.__doc__ = check.__name__, check.__doc__
    return run


CHECKS: tuple[Callable[[Scheme], None], ...] = (*WHOLE, *map(_for_layers, BY_LAYER))
"""All checks, each a function of a scheme that raises AssertionError."""


def check_scheme(scheme: Scheme) -> None:
    """Runs all checks on `scheme`, an instance; the first that fails raises AssertionError."""
    check_instance(scheme)
    for check in CHECKS:
        check(scheme)


__all__ = ["BY_LAYER", "CHECKS", "WHOLE", "check_scheme"]
