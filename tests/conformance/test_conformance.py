"""Every registered scheme through the same suite. Nothing here names a scheme."""

import pytest

from flax_pos import get_scheme, list_schemes
from flax_pos.scheme import plan_layers
from flax_pos.testing import BY_LAYER, WHOLE, layer, modules

SCHEMES = [cls(**cls.toy) for cls in map(get_scheme, list_schemes())]
PARTS = dict.fromkeys(part for scheme in SCHEMES for part in plan_layers(scheme, 12).parts)
"""What layers use, each once."""

FIRST = (
    layer.check_hooks,
    layer.check_claims,
    layer.check_positions,
    layer.check_blockwise,
    layer.check_memory,
    layer.check_cache,
    layer.check_rows,
    layer.check_padding,
    layer.check_packing,
)
"""What breaks first when attention or a scheme changes. The others take longer than all these."""
LATER = [check for check in BY_LAYER if check not in FIRST]


def run(checks, scheme, subtests):
    """One process does several checks of a scheme, so that they share what is compiled."""
    for check in checks:
        with subtests.test(check.__name__):
            check(scheme)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_scheme(scheme, subtests):
    run([check for check in WHOLE if check is not modules.check_modules], scheme, subtests)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_modules(scheme, subtests):
    run([modules.check_modules], scheme, subtests)


@pytest.mark.parametrize("scheme", PARTS, ids=lambda scheme: scheme.name)
def test_layer(scheme, subtests):
    run(FIRST, scheme, subtests)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", PARTS, ids=lambda scheme: scheme.name)
def test_layer_in_depth(scheme, subtests):
    run(LATER, scheme, subtests)
