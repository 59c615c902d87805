"""One compiled program for each scheme: all its models, many updates at a time."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from flax_pos.lab.members import Members, with_settings
from flax_pos.lab.optimizer import OptimizerConfig, make_optimizer, schedule
from flax_pos.lab.placement import Placement
from flax_pos.lab.tasks import Batch, Evaluation, Loaded, Task
from flax_pos.nnx import CausalLM, ModelConfig
from flax_pos.scheme import Scheme

Params = dict[str, jax.Array]
"""A model's parameters by dotted path."""


class State(NamedTuple):
    """What training changes; one row for each model."""

    step: jax.Array
    """int32: updates done. The only counter: batches and learning rate follow from it."""
    params: Params
    optimizer: Any
    skipped: jax.Array
    """int32: updates left out because a gradient was not finite."""


class Log(NamedTuple):
    """What each update saw, float32 `log_every`; only the first `count` entries are set."""

    loss: jax.Array
    accuracy: jax.Array
    """Share of the batch's sequences with every label right, before the update: sequences that are
    made on the device are new to the model."""
    gradient_norm: jax.Array
    learning_rate: jax.Array


class Model:
    """A scheme's model as pure functions of its parameters."""

    def __init__(self, config: ModelConfig, scheme: Scheme):
        self.config = config
        self.scheme = scheme
        blank = nnx.eval_shape(lambda: CausalLM(config, scheme, rngs=nnx.Rngs(0)))
        self._graph, self._blank = nnx.split(blank)

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters."""
        model = CausalLM(self.config, self.scheme, rngs=nnx.Rngs(key))
        return {_dotted(path): v[...] for path, v in nnx.to_flat_state(nnx.state(model))}

    def with_params(self, params: Params) -> CausalLM:
        """The module that these parameters belong to."""
        filled = [
            (path, variable.replace(params[_dotted(path)]))
            for path, variable in nnx.to_flat_state(self._blank)
        ]
        return nnx.merge(self._graph, nnx.from_flat_state(filled))


def _dotted(path: tuple) -> str:
    return ".".join(map(str, path))


def init_state(model: Model, optimizer: OptimizerConfig, key: jax.Array) -> State:
    """A fresh model before its first update."""
    params = model.init(key)
    # Two arrays: a donated buffer must not be there twice.
    step, skipped = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    return State(step, params, make_optimizer(optimizer).init(params), skipped)


def blank_state(model: Model, optimizer: OptimizerConfig, models: int) -> State:
    """Shapes and dtypes of the state of `models` models."""
    one = jax.eval_shape(lambda: init_state(model, optimizer, jax.random.key(0)))
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((models, *a.shape), a.dtype), one)


class Program:
    """Training and scoring of all models of one scheme.

    Every model's numbers depend on its own row of `members` only: the others, the placement and
    how often it stops in between do not change them.
    """

    def __init__(
        self,
        *,
        model: Model,
        task: Task,
        loaded: Loaded,
        members: Members,
        placement: Placement,
        optimizer: OptimizerConfig,
        steps: int,
        batch_size: int,
        log_every: int,
        skip_nonfinite: bool = True,
    ):
        self.model = model
        self.task = task
        self.optimizer = optimizer
        self.steps = steps
        self.batch_size = batch_size
        self.log_every = log_every
        self.skip_nonfinite = skip_nonfinite
        self.placement = placement
        self.loaded = loaded
        self.init_seeds = np.asarray(members["init_seed"])
        self.data_seeds = np.asarray(members["data_seed"])
        self.members = placement.put(members)
        self.data = placement.put_shared(loaded.data)
        self._update = make_optimizer(optimizer)
        self._advance = None
        self._score = None

    # One model ---------------------------------------------------------------------------------

    def init_one(self, member: Members) -> State:
        return init_state(self.model, self.optimizer, jax.random.key(member["init_seed"]))

    def batch_of(self, member: Members, data: dict[str, jax.Array], step: jax.Array) -> Batch:
        """Batch number `step` of a data seed: the same under every scheme."""
        key = jax.random.fold_in(jax.random.key(member["data_seed"]), step)
        return self.task.batch(data, key, self.batch_size)

    def loss_of(
        self, params: Params, member: Members, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Mean negative log likelihood over the labels that count, and the share of sequences
        with all of them right."""
        logits = self.model.with_params(params)(
            batch.ids,
            segments=batch.segments,
            key=key,
            scheme=with_settings(self.model.scheme, member["settings"]),
            length=batch.ids.shape[-1],
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        right = (jnp.argmax(logits, -1) == batch.labels) | (batch.weights == 0)
        exact = jnp.mean(jnp.all(right, axis=-1).astype(jnp.float32))
        return jnp.sum(losses * batch.weights) / jnp.sum(batch.weights), exact

    def update_one(self, state: State, member: Members, data) -> tuple[State, Log]:
        """One update. A gradient that is not finite is counted, and left out if so configured."""
        batch = self.batch_of(member, data, state.step)
        # A stream of its own for training noise, so that no scheme changes another's data.
        noise = jax.random.fold_in(jax.random.key(member["data_seed"] ^ 0x5EED), state.step)
        graded = jax.value_and_grad(self.loss_of, has_aux=True)
        (loss, exact), gradient = graded(state.params, member, batch, noise)
        rate = member["learning_rate"] * schedule(self.optimizer, state.step, self.steps)
        norm = optax.tree.norm(gradient)
        finite = jnp.isfinite(norm)

        updates, optimizer = self._update.update(gradient, state.optimizer, state.params)
        params = jax.tree.map(lambda p, u: (p - rate * u).astype(p.dtype), state.params, updates)
        if self.skip_nonfinite:
            keep = lambda new, old: jnp.where(finite, new, old)
            params = jax.tree.map(keep, params, state.params)
            optimizer = jax.tree.map(keep, optimizer, state.optimizer)
        skipped = state.skipped + jnp.where(finite, 0, 1).astype(jnp.int32)
        return State(state.step + 1, params, optimizer, skipped), Log(loss, exact, norm, rate)

    def advance_one(self, state: State, member: Members, fed, shared) -> tuple[State, Log]:
        """`shared["count"]` updates, at most `log_every`; update i reads row i of what was fed."""
        empty = Log(*(jnp.zeros(self.log_every, jnp.float32) for _ in Log._fields))

        def body(i, carry):
            state, logs = carry
            own = {name: array[i] for name, array in fed.items()}
            state, log = self.update_one(state, member, shared["data"] | own)
            return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), logs, log)

        return jax.lax.fori_loop(0, shared["count"], body, (state, empty))

    def score_one(self, params: Params, member: Members, batches) -> tuple[jax.Array, jax.Array]:
        """Negative log likelihood and correctness of every label of `G R T` sequences."""
        scheme = with_settings(self.model.scheme, member["settings"])

        def score(batch):
            real = jnp.arange(batch["ids"].shape[-1])[None, :] < batch["length"][:, None]
            logits = self.model.with_params(params)(
                batch["ids"], mask=real, scheme=scheme, length=batch["length"].max()
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
            return losses, jnp.argmax(logits, -1) == batch["labels"]

        return jax.lax.map(score, batches)

    # All models --------------------------------------------------------------------------------

    def init(self) -> State:
        """Fresh models, on the devices.

        Made operation by operation: each shape is compiled once for all schemes, where a program
        that makes a whole model compiles for seconds, for every scheme again.
        """
        made = {seed: self.init_one({"init_seed": seed}) for seed in np.unique(self.init_seeds)}
        rows = [made[seed] for seed in self.init_seeds]
        return self.placement.put(jax.tree.map(lambda *all_: np.stack(all_), *rows))

    def put(self, state: State) -> State:
        """A restored state, on the devices, in buffers that the next update may reuse."""
        return self.placement.put(state)

    def take(self, state: State) -> State:
        """The state as host arrays, without padding."""
        return self.placement.take(state)

    def compile(self, state: State) -> None:
        """Compiles `advance` ahead of its first use."""
        run = self.placement.over_members(
            lambda own, shared: self.advance_one(own[0], own[1], own[2], shared)
        )
        step = jax.jit(
            lambda state, members, fed, shared: run((state, members, fed), shared),
            donate_argnums=0,
        )
        shared = {"data": self.data, "count": self._count(1)}
        self._advance = step.lower(state, self.members, self._fed(state, 1), shared).compile()

    def _fed(self, state: State, count: int) -> dict[str, jax.Array]:
        """What the task feeds for the next updates, one row for each model, always of `log_every`
        updates; models of the same data seed share it on the host."""
        if self.loaded.host is None:
            return {}
        first = int(np.asarray(state.step)[0])
        seeds = [int(s) for s in self.data_seeds]
        feed = lambda seed: self.task.feed(self.loaded, seed, first, count, self.batch_size)
        by_seed = {seed: feed(seed) for seed in set(seeds)}
        filled = lambda a: np.concatenate([a, np.repeat(a[-1:], self.log_every - len(a), axis=0)])
        names = by_seed[seeds[0]]
        return self.placement.put(
            {name: np.stack([filled(by_seed[seed][name]) for seed in seeds]) for name in names}
        )

    def memory_bytes(self) -> int | None:
        """The most that the compiled training program holds on a device, all its models there
        included; None where the backend does not say."""
        found = None if self._advance is None else self._advance.memory_analysis()
        if found is None:
            return None
        held = found.argument_size_in_bytes + found.output_size_in_bytes
        return held - found.alias_size_in_bytes + found.temp_size_in_bytes

    def _count(self, count: int) -> jax.Array:
        return self.placement.put_shared(np.int32(count))

    def advance(self, state: State, count: int) -> tuple[State, Log]:
        """`count` updates of every model; the state given is used up."""
        if self._advance is None:
            self.compile(state)
        assert self._advance is not None
        shared = {"data": self.data, "count": self._count(count)}
        state, log = self._advance(state, self.members, self._fed(state, count), shared)
        return state, jax.tree.map(lambda a: a[:, :count], self.placement.take(log))

    def score(
        self, params: Params, evaluation: Evaluation, rows: int = 16
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores of every model on every sequence that the scheme is defined on.

        Returns:
          nll (float32) and correct (bool), `M N T`, and defined, bool `N`.
        """
        defined = np.ones(len(evaluation.length), bool)
        if not self.model.scheme.unbounded:
            defined = evaluation.length <= self.model.config.max_len
        batches, place = _batches(evaluation, defined, rows)
        run = self.placement.over_members(
            lambda both, batches: self.score_one(both[0], both[1], batches)
        )
        scores = jax.jit(lambda p, members, b: run((p, members), b))(
            params, self.members, self.placement.put_shared(batches)
        )
        nll, correct = self.placement.take(scores)
        members, width = nll.shape[0], batches["ids"].shape[-1]
        shape = (members, *evaluation.ids.shape)
        out_nll, out_correct = np.full(shape, np.nan, np.float32), np.zeros(shape, bool)
        group, row, sequence = place
        out_nll[:, sequence, :width] = nll[:, group, row]
        out_correct[:, sequence, :width] = correct[:, group, row]
        return out_nll, out_correct, defined


def _batches(evaluation: Evaluation, defined: np.ndarray, rows: int):
    """Sequences as `G R T` batches of one length each, cut to the longest; and where each went.

    The total length may change what a scheme does, so a batch never mixes lengths.
    """
    groups = []
    for length in np.unique(evaluation.length[defined]):
        members = np.flatnonzero(defined & (evaluation.length == length))
        groups += [members[i : i + rows] for i in range(0, len(members), rows)]
    rows = max(len(g) for g in groups)
    padded = np.stack([np.resize(g, rows) for g in groups])  # repeats fill the last batch
    width = int(evaluation.length[defined].max())
    batches = {
        "ids": evaluation.ids[padded, :width],
        "labels": evaluation.labels[padded, :width],
        "length": evaluation.length[padded],
    }
    group = np.concatenate([np.full(len(g), i) for i, g in enumerate(groups)])
    row = np.concatenate([np.arange(len(g)) for g in groups])
    return batches, (group, row, np.concatenate(groups))
