"""Parameters with logical axis names."""

import jax
from flax import nnx


def axes(*names: str | None) -> dict:
    """Metadata that gives a parameter logical axis names.

    They are names only (nothing is placed on devices when the parameter is made):
    `nnx.get_partition_spec` with `nnx.logical_axis_rules` maps them to a mesh. In use are `vocab`,
    `embed` (model width), `heads`, `kv_heads`, `mlp` and, on stacked parameters, `layers`.
    """
    return {"out_sharding": names, "eager_sharding": False}


def named(value: jax.Array, *names: str | None) -> nnx.Param:
    """A parameter with logical axis names."""
    return nnx.Param(value, **axes(*names))


def arrays(tree):
    """The arrays of a tree of parameters, without the `nnx.Param` around them."""
    return jax.tree.map(
        lambda p: p[...] if isinstance(p, nnx.Variable) else p,
        tree,
        is_leaf=lambda p: isinstance(p, nnx.Variable),
    )


__all__ = ["arrays", "axes", "named"]
