"""Every registered scheme through the same suite. Nothing here names a scheme."""

import pytest

from flax_pos import get_scheme, list_schemes
from flax_pos.scheme import plan_layers
from flax_pos.testing import BY_LAYER, WHOLE

SCHEMES = [cls(**cls.toy) for cls in map(get_scheme, list_schemes())]
PARTS = dict.fromkeys(part for scheme in SCHEMES for part in plan_layers(scheme, 12).parts)
"""What layers use, each once."""


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_scheme(scheme, subtests):
    for check in WHOLE:
        with subtests.test(check.__name__):
            check(scheme)


@pytest.mark.parametrize("scheme", PARTS, ids=lambda scheme: scheme.name)
def test_layer(scheme, subtests):
    """One process does all checks of a scheme, so that they share what is compiled."""
    for check in BY_LAYER:
        with subtests.test(check.__name__):
            check(scheme)
