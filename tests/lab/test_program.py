import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos.lab.members import make_entries, make_members, parse_scheme
from flax_pos.lab.optimizer import OptimizerConfig, decay_mask, make_optimizer, schedule
from flax_pos.lab.program import Model
from flax_pos.lab.tasks.documents import Documents
from flax_pos.nnx import ModelConfig


def train(program, steps=6):
    state = program.init()
    logs = []
    for _ in range(steps // program.log_every):
        state, log = program.advance(state, program.log_every)
        logs.append(log)
    return program.take(state), jax.tree.map(lambda *a: np.concatenate(a, axis=1), *logs)


@pytest.fixture(scope="module")
def trained(tiny, build_program):
    program = build_program(tiny)
    return program, *train(program)


def test_updates_are_counted_and_the_loss_falls(trained):
    _, state, log = trained
    assert state.step.tolist() == [6, 6]
    assert state.skipped.tolist() == [0, 0]
    assert log.loss.shape == (2, 6)
    assert (log.loss[:, -1] < log.loss[:, 0]).all()
    assert (log.gradient_norm > 0).all()


def test_seeds_differ_and_each_is_what_it_is_alone(trained, tiny, build_program, change):
    program, state, log = trained
    first = program.take(program.init()).params
    for name, value in first.items():
        if value.std() > 0:
            assert not np.array_equal(value[0], value[1]), name
    alone = build_program(change(tiny, train={"seeds": 1, "first_seed": 1}))
    own, own_log = train(alone)
    np.testing.assert_array_equal(own_log.loss[0], log.loss[1])
    for name, value in own.params.items():
        np.testing.assert_array_equal(value[0], state.params[name][1], err_msg=name)


@pytest.mark.parametrize(("inner", "devices"), [("vmap", 1), ("map", 2), ("vmap", 2)])
def test_placements_give_the_same_numbers(trained, tiny, build_program, inner, devices):
    _, state, log = trained
    program = build_program(tiny, inner=inner, devices=devices)
    assert program.placement.mesh.size == devices
    other, other_log = train(program)
    np.testing.assert_allclose(other_log.loss, log.loss, rtol=1e-5)
    for name, value in other.params.items():
        np.testing.assert_allclose(value, state.params[name], rtol=2e-3, atol=2e-5, err_msg=name)


def test_members_that_do_not_divide_the_devices_are_padded(trained, tiny, build_program, change):
    _, state, _ = trained
    program = build_program(change(tiny, train={"seeds": 3}), devices=2)
    assert program.placement.padded == 4
    other, log = train(program)
    assert log.loss.shape == (3, 6)
    for name, value in other.params.items():
        assert value.shape[0] == 3
        np.testing.assert_allclose(value[:2], state.params[name], rtol=2e-3, atol=2e-5)


def test_how_often_it_stops_does_not_matter(trained):
    program, state, _ = trained
    other = program.init()
    for count in (1, 3, 2):
        other, _ = program.advance(other, count)
    other = program.take(other)
    for name, value in other.params.items():
        np.testing.assert_array_equal(value, state.params[name], err_msg=name)


def test_after_a_restore_all_goes_on_as_if_undisturbed(trained):
    program, state, log = trained
    half, _ = program.advance(program.init(), 3)
    saved = program.take(half)
    resumed, rest = program.advance(program.put(saved), 3)
    np.testing.assert_array_equal(rest.learning_rate, log.learning_rate[:, 3:])
    np.testing.assert_array_equal(rest.loss, log.loss[:, 3:])
    for name, value in program.take(resumed).params.items():
        np.testing.assert_array_equal(value, state.params[name], err_msg=name)


@pytest.mark.slow
def test_noise_goes_on_where_it_stopped(tiny, build_program, change, monkeypatch):
    """It is another for every update and the same after a restore, as no generator is kept."""
    program = build_program(change(tiny, schemes=("randomized",)))
    _, log = train(program)
    half, _ = program.advance(program.init(), 3)
    _, rest = program.advance(program.put(program.take(half)), 3)
    np.testing.assert_array_equal(rest.loss, log.loss[:, 3:])

    one = jax.tree.map(lambda a: np.asarray(a)[0], program.members)
    batch = program.batch_of(one, program.data, jnp.int32(0))
    monkeypatch.setattr(program, "batch_of", lambda *_: batch)
    update, state = jax.jit(program.update_one), program.init_one(one)
    first, second = (
        update(state._replace(step=jnp.int32(step)), one, program.data)[1].loss for step in (0, 1)
    )
    assert first != second


def test_a_restored_state_is_given_away_to_the_update(trained):
    program, state, _ = trained
    restored = program.put(state)
    leaves = jax.tree.leaves(restored)
    program.advance(restored, 1)
    deleted = sum(a.nbytes for a in leaves if a.is_deleted())
    assert deleted >= 0.95 * sum(a.nbytes for a in leaves)


def test_an_update_gives_back_what_it_was_given(trained):
    program, _, _ = trained
    one = jax.tree.map(lambda a: a[0], program.members)
    before = jax.eval_shape(program.init_one, one)
    after, _ = jax.eval_shape(program.update_one, before, one, program.data)
    describe = lambda a: (a.shape, a.dtype, getattr(a, "weak_type", False))
    assert jax.tree.map(describe, before) == jax.tree.map(describe, after)
    assert not any(getattr(a, "weak_type", False) for a in jax.tree.leaves(before))


def test_batches_depend_on_seed_and_step_alone(tiny, build_program, change):
    both = change(tiny, schemes=("none", "alibi"))
    none, alibi = build_program(both, label="none"), build_program(both, label="alibi")
    member = lambda p, i: jax.tree.map(lambda a: np.asarray(a)[i], p.members)
    batch = lambda p, i, step: np.asarray(p.batch_of(member(p, i), p.data, jnp.int32(step)).ids)
    np.testing.assert_array_equal(batch(none, 0, 4), batch(alibi, 0, 4))
    assert not np.array_equal(batch(none, 0, 4), batch(none, 0, 5))
    assert not np.array_equal(batch(none, 0, 4), batch(none, 1, 4))


@pytest.mark.parametrize(("vary", "init", "data"), [("both", 2, 2), ("init", 2, 1), ("data", 1, 2)])
def test_what_differs_between_seeds(tiny, change, vary, init, data):
    config = change(tiny, train={"vary": vary, "first_seed": 5})
    members = make_members(config, make_entries(config)[0])
    assert len(set(members["init_seed"])) == init
    assert len(set(members["data_seed"])) == data
    assert members["init_seed"][0] == members["data_seed"][0] == 5


def test_crossed_seeds_are_all_pairs(tiny, change):
    config = change(tiny, train={"vary": "cross", "seeds": 2, "data_seeds": 3})
    members = make_members(config, make_entries(config)[0])
    pairs = list(zip(members["init_seed"].tolist(), members["data_seed"].tolist(), strict=True))
    assert sorted(pairs) == [(i, d) for i in range(2) for d in range(3)]
    assert list(config.train.runs) == [f"{i}/{d}" for i, d in pairs]
    with pytest.raises(ValueError, match="data_seeds=2 needs vary='cross'"):
        change(tiny, train={"data_seeds": 2})


def test_a_gradient_that_is_not_finite_is_counted_and_left_out(
    tiny, build_program, change, monkeypatch
):
    guarded = build_program(tiny)
    loss_of = guarded.loss_of

    def poisoned(params, member, batch, key):
        bad = jnp.where(batch.ids.sum() == poisoned.sum, jnp.nan, 0.0)
        table = params["embed.embedding"]
        loss, exact = loss_of(params, member, batch, key)
        return loss + bad * (table - jax.lax.stop_gradient(table)).sum(), exact

    one = jax.tree.map(lambda a: np.asarray(a)[0], guarded.members)
    poisoned.sum = int(guarded.batch_of(one, guarded.data, jnp.int32(1)).ids.sum())
    monkeypatch.setattr(guarded, "loss_of", poisoned)
    update = jax.jit(guarded.update_one)
    first, _ = update(guarded.init_one(one), one, guarded.data)
    second, log = update(first, one, guarded.data)
    assert not np.isfinite(log.gradient_norm)
    assert (int(second.step), int(second.skipped)) == (2, 1)
    jax.tree.map(np.testing.assert_array_equal, second.params, first.params)
    jax.tree.map(np.testing.assert_array_equal, second.optimizer, first.optimizer)
    third, _ = update(second, one, guarded.data)
    assert int(third.skipped) == 1
    assert not np.array_equal(third.params["norm.scale"], second.params["norm.scale"])

    guarded.skip_nonfinite = False
    spoilt, _ = jax.jit(lambda *a: guarded.update_one(*a))(first, one, guarded.data)
    assert int(spoilt.skipped) == 1
    assert np.isnan(spoilt.params["embed.embedding"]).any()


@pytest.mark.slow
def test_a_swept_number_acts_as_if_it_were_set(tiny, build_program, change):
    swept = change(
        tiny,
        schemes=("rope",),
        sweep={"learning_rate": (1e-2, 1e-3), "theta": (50.0, 10000.0)},
        train={"seeds": 1},
        model={"init_std": 0.5},
    )
    entry = make_entries(swept)[0]
    assert entry.rows == (
        "rope learning_rate=0.01 theta=50",
        "rope learning_rate=0.01 theta=10000",
        "rope learning_rate=0.001 theta=50",
        "rope learning_rate=0.001 theta=10000",
    )
    program = build_program(swept)
    state, log = train(program)
    nll, _, _ = program.score(program.put(state).params, swept.task.evaluation(swept.task.load()))

    plain = change(
        tiny,
        schemes=("rope(theta=50.0)",),
        train={"seeds": 1},
        optimizer={"learning_rate": 1e-3},
        model={"init_std": 0.5},
    )
    alone = build_program(plain)
    own, own_log = train(alone)
    own_nll, _, _ = alone.score(alone.put(own).params, plain.task.evaluation(plain.task.load()))
    np.testing.assert_allclose(log.loss[2], own_log.loss[0], rtol=1e-5)
    np.testing.assert_allclose(nll[2], own_nll[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(nll[2], nll[3], rtol=1e-4)


def test_scores_are_those_of_each_sequence_alone(trained, tiny):
    program, state, _ = trained
    evaluation = tiny.task.evaluation(tiny.task.load())
    nll, correct, defined = program.score(program.put(state).params, evaluation, rows=4)
    assert defined.all()
    model = program.model.with_params({n: jnp.asarray(a[1]) for n, a in state.params.items()})
    for row in (0, 5, 6, 11):  # both lengths; the last batch of each is filled up
        length = int(evaluation.length[row])
        logits = model(jnp.asarray(evaluation.ids[row : row + 1, :length]))[0]
        labels = evaluation.labels[row, :length]
        expected = -np.asarray(jax.nn.log_softmax(logits))[np.arange(length), labels]
        np.testing.assert_allclose(nll[1, row, :length], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(
            correct[1, row, :length], np.asarray(logits).argmax(-1) == labels
        )


def test_a_bounded_scheme_is_scored_only_where_it_is_defined(tiny, build_program, change):
    program = build_program(change(tiny, schemes=("learned",)))
    evaluation = tiny.task.evaluation(tiny.task.load())
    nll, _, defined = program.score(program.init().params, evaluation)
    np.testing.assert_array_equal(defined, evaluation.length <= 8)
    assert np.isfinite(nll[:, defined][:, evaluation.scored[defined]]).all()
    assert np.isnan(nll[:, ~defined]).all()


# Optimizer ---------------------------------------------------------------------------------------


def test_schedule_rises_then_falls_along_a_cosine():
    config = OptimizerConfig(warmup=0.25, warmup_max=100, final=0.1)
    rates = [float(schedule(config, jnp.int32(step), 20)) for step in range(20)]
    np.testing.assert_allclose(rates[:5], [0.2, 0.4, 0.6, 0.8, 1.0], rtol=1e-6)
    np.testing.assert_allclose(rates[5], 1.0, rtol=1e-6)
    np.testing.assert_allclose(rates[12], 0.1 + 0.9 * 0.5, rtol=1e-6)
    np.testing.assert_allclose(rates[19], 0.1, rtol=1e-5)
    assert float(schedule(OptimizerConfig(warmup=1.0, warmup_max=2), jnp.int32(1), 20)) == 1.0


@pytest.fixture(scope="module")
def untied():
    config = ModelConfig(
        vocab_size=8, width=8, layers=2, heads=2, tied=False, max_len=4, qkv_bias=True, norm="layer"
    )
    return jax.jit(Model(config, parse_scheme("learned")).init)(jax.random.key(0))


def test_decay_is_for_matrices_of_attention_mlp_and_head(untied):
    decayed = {name for name, on in decay_mask(untied).items() if on}
    kernels = {f"blocks.attention.{n}.kernel" for n in ("q", "k", "v", "out")}
    kernels |= {f"blocks.mlp.{n}.kernel" for n in ("up", "down")}
    assert decayed == kernels | {"embed.head"}
    assert any(name.startswith("position.") for name in untied)
    assert any(name.endswith("bias") for name in untied)


def test_what_has_no_gradient_and_does_not_decay_does_not_move(untied):
    update = make_optimizer(OptimizerConfig(weight_decay=0.5))
    params, state = untied, update.init(untied)
    for _ in range(5):
        updates, state = update.update(jax.tree.map(jnp.zeros_like, params), state, params)
        params = jax.tree.map(lambda p, u: p - 0.1 * u, params, updates)
    mask = decay_mask(untied)
    for name, value in params.items():
        if mask[name]:
            np.testing.assert_allclose(value, untied[name] * (1 - 0.1 * 0.5) ** 5, rtol=1e-5)
        else:
            np.testing.assert_array_equal(value, untied[name], err_msg=name)


@pytest.mark.slow
def test_models_fed_from_the_host_do_not_depend_on_where_they_stop(
    build_program, change, tiny, tmp_path
):
    pytest.importorskip("grain")
    for number in range(8):
        (tmp_path / f"{number}.txt").write_text(f"{number} quick brown foxes " * (number + 1))
    task = Documents(
        paths=(tmp_path,), store=tmp_path / "store", length=8, multiples=(1, 2), windows=3
    )
    config = change(tiny, task=task, train={"log_every": 4})
    ends = []
    for pieces in ((4,), (1, 3), (2, 1, 1)):
        program = build_program(config)
        state = program.init()
        for count in pieces:
            state, log = program.advance(state, count)
            assert log.loss.shape[1] == count
        ends.append(program.take(state).params)
    for other in ends[1:]:
        jax.tree.map(np.testing.assert_array_equal, ends[0], other)
    assert any((a[0] != a[1]).any() for a in ends[0].values())  # seeds see other data
