"""The one interface: a position scheme is a frozen dataclass of settings plus pure hooks.

Every scheme does at most three kinds of work: where is the token (once per forward), what does
the token carry (per layer and token; cached for keys), how do two tokens relate (per layer, for
a block of queries against a block of keys).
"""

from flax_pos.scheme.base import CLAIMS, HOOKS, Scheme, Wrapper, merge
from flax_pos.scheme.plain import from_dict, to_dict
from flax_pos.scheme.plan import LayerPlan, plan_layers
from flax_pos.scheme.registry import check_scheme, get_scheme, list_schemes, register

__all__ = [
    "CLAIMS",
    "HOOKS",
    "LayerPlan",
    "Scheme",
    "Wrapper",
    "check_scheme",
    "from_dict",
    "get_scheme",
    "list_schemes",
    "merge",
    "plan_layers",
    "register",
    "to_dict",
]
