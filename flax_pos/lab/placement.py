"""Where the models of one scheme lie: spread over devices, and batched or in turn on each."""

import os
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "member"


def prepare_cpu(members: int, cores: int) -> None:
    """Makes one CPU device for each core, each with single-threaded products.

    Small products gain nothing from threads, and models trained side by side need no
    communication. Called before JAX starts; has no effect after, nor on accelerators, nor where
    the user has set the number of CPU devices.
    """
    devices = min(members, cores)
    flags = os.environ.get("XLA_FLAGS", "")
    if devices < 2 or "xla_force_host_platform_device_count" in flags:
        return
    if jax.config.jax_num_cpu_devices < 1:  # pyright: ignore[reportAttributeAccessIssue]
        try:
            jax.config.update("jax_num_cpu_devices", devices)
        except RuntimeError:  # JAX has started: its devices are what they are
            return
    if members >= cores and "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()


class Placement(NamedTuple):
    """How many members lie where.

    Members are padded to a multiple of the devices by repeating the last; `take` removes what
    padding computed.
    """

    members: int
    mesh: Mesh
    inner: Literal["vmap", "map"]
    """On each device: all members in one batched program, or one after the other."""

    @property
    def padded(self) -> int:
        return -(-self.members // self.mesh.size) * self.mesh.size

    @property
    def sharding(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    def put(self, tree: Any) -> Any:
        """A tree of host arrays with one row for each member, padded and on the devices."""
        rows = np.minimum(np.arange(self.padded), self.members - 1)
        return jax.tree.map(
            lambda a: jax.device_put(np.asarray(a)[rows], self.sharding, may_alias=False), tree
        )

    def put_shared(self, tree: Any) -> Any:
        """A tree that every member reads, on every device."""
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec()))

    def take(self, tree: Any) -> Any:
        """The members' rows as host arrays."""
        return jax.tree.map(lambda a: np.asarray(a)[: self.members], tree)

    def over_members(self, function: Callable) -> Callable:
        """`function(member, shared)` for every member: takes and gives stacked trees."""

        def on_device(members, shared):
            one = lambda member: function(member, shared)
            return jax.vmap(one)(members) if self.inner == "vmap" else jax.lax.map(one, members)

        return jax.shard_map(
            on_device,
            mesh=self.mesh,
            in_specs=(PartitionSpec(AXIS), PartitionSpec()),
            out_specs=PartitionSpec(AXIS),
            check_vma=False,
        )


def place(
    members: int, inner: Literal["auto", "vmap", "map"] = "auto", devices: int | None = None
) -> Placement:
    """A placement over (at most `devices` of) this machine's devices.

    `auto` takes members in turn on CPU, where a batched program of small products runs badly, and
    batches them on accelerators, which it fills.
    """
    usable = jax.devices()[: min(members, devices or members)]
    if inner == "auto":
        inner = "map" if usable[0].platform == "cpu" else "vmap"
    return Placement(members, Mesh(np.asarray(usable), (AXIS,)), inner)


def measure(make_program: Callable[[Placement], Any], members: int) -> Literal["vmap", "map"]:
    """The faster way on this machine, by a short trial of each (which compiles both)."""
    seconds = {}
    for inner in ("map", "vmap"):
        program = make_program(place(members, inner))
        state, _ = program.advance(program.init(), 1)
        clock = time.perf_counter()
        program.advance(state, program.log_every)
        seconds[inner] = time.perf_counter() - clock
    return min(seconds, key=lambda inner: seconds[inner])
