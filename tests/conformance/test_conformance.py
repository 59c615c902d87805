"""Every registered scheme through the same suite. Nothing here names a scheme."""

import pytest

from flax_pos import get_scheme, list_schemes
from flax_pos.testing import CHECKS


@pytest.mark.parametrize("name", list_schemes())
def test_scheme(name, subtests):
    """One process does all checks of a scheme, so that they share what is compiled."""
    cls = get_scheme(name)
    for check in CHECKS:
        with subtests.test(check.__name__):
            check(cls(**cls.toy))
