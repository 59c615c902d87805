"""Every registered scheme through the same suite. Nothing here names a scheme."""

import pytest

from flax_pos import get_scheme, list_schemes
from flax_pos.testing import CHECKS


@pytest.mark.parametrize("name", list_schemes())
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_scheme(name, check):
    cls = get_scheme(name)
    check(cls(**cls.toy))
