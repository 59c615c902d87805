"""What is read off a model, against loops, closed forms and models whose behaviour is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import integers
from flax import nnx

from flax_pos.functional.positions import positions_from_mask
from flax_pos.functional.rope import RopeSpec
from flax_pos.lab.mechanism import (
    attention_by_distance,
    attention_entropy,
    band_use,
    reach_of,
    receptive_field,
    shift_change,
    sink_share,
    unseen_phases,
    watch,
)
from flax_pos.nnx import CausalLM, ModelConfig
from flax_pos.scheme import get_scheme

CONFIG = ModelConfig(vocab_size=11, width=16, layers=2, heads=4, kv_heads=2, max_len=32)
IDS = integers((2, 12), 10)


def make(name, config=CONFIG, **settings):
    return CausalLM(config, get_scheme(name)(**settings), rngs=nnx.Rngs(1))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("none", {}), ("rope", {}), ("alibi", {}), ("sinusoidal", {}), ("shaw", {"values": True})],
)
def test_watching_changes_nothing(name, settings):
    model = make(name, **settings)
    logits, views = watch(model, IDS)
    np.testing.assert_allclose(logits, model(IDS), rtol=1e-5, atol=1e-5)
    assert len(views) == 2
    for view in views:
        assert view.weights.shape == (2, 4, 12, 12)
        assert view.q.shape == (2, 12, 4, 4)
        assert view.k.shape == (2, 12, 2, 4)
        np.testing.assert_allclose(view.weights.sum(-1), 1, rtol=1e-5)
        assert not jnp.triu(view.weights, 1).any()


def test_weights_are_those_of_the_formula():
    _, views = watch(make("alibi"), IDS)
    view = views[1]
    k = np.repeat(np.asarray(view.k), 2, axis=2)
    logits = np.einsum("btnh,bsnh->bnts", view.q, k) / 2
    at = np.arange(12)
    slopes = 2.0 ** -np.array([2, 4, 6, 8])
    logits = logits - slopes[:, None, None] * (at[:, None] - at[None, :])
    logits = np.where(at[None, :] <= at[:, None], logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    np.testing.assert_allclose(
        view.weights, weights / weights.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6
    )


def test_watching_a_window_and_padding():
    mask = jnp.arange(12)[None] >= jnp.array([[0], [3]])
    _, views = watch(make("window", window=4), IDS, mask=mask)
    profile = attention_by_distance(views[0].weights, positions_from_mask(mask))
    assert (np.asarray(profile[:, :4]) > 0).all()
    assert (np.asarray(profile[:, 4:]) == 0).all()


def test_profile_by_distance_is_a_loop():
    rng = np.random.default_rng(0)
    weights = np.tril(rng.random((2, 3, 5, 5))).astype(np.float32)
    index = np.array([[0, 1, 2, 3, 4], [-1, -1, 0, 1, 2]], np.int32)
    found = attention_by_distance(jnp.asarray(weights), jnp.asarray(index))
    for head in range(3):
        for distance in range(5):
            values = [
                weights[b, head, t, s]
                for b in range(2)
                for t in range(5)
                for s in range(5)
                if min(index[b, t], index[b, s]) >= 0 and index[b, t] - index[b, s] == distance
            ]
            assert found[head, distance] == pytest.approx(np.mean(values), rel=1e-5)
    short = attention_by_distance(jnp.ones((1, 1, 2, 2)), jnp.array([[-1, 0]], jnp.int32))
    np.testing.assert_array_equal(np.isnan(short), [[False, True]])


def test_entropy_and_sink():
    even = jnp.tril(jnp.ones((1, 2, 4, 4))) / jnp.arange(1.0, 5.0)[:, None][None, None]
    np.testing.assert_allclose(attention_entropy(even)[0, 0], np.log([1, 2, 3, 4]), atol=1e-6)
    np.testing.assert_allclose(sink_share(even), [(1 / 2 + 1 / 3 + 1 / 4) / 3] * 2, rtol=1e-6)
    one = jnp.zeros((1, 1, 3, 3)).at[..., 0].set(1.0)
    assert not attention_entropy(one).any()
    assert sink_share(one)[0] == 1


def test_a_window_limits_what_is_read():
    label = jnp.zeros(2, jnp.int32)
    wide = receptive_field(make("none"), IDS, label)
    assert wide.shape == (12,)
    assert wide[-1] == pytest.approx(1)
    assert (np.diff(wide) >= 0).all()
    assert reach_of(wide, 1.0) == 12
    # Two layers with windows of 3 read 2 + 2 tokens back.
    narrow = receptive_field(make("window", window=3), IDS, label)
    assert reach_of(narrow, 1.0) == 5
    assert reach_of(np.array([0.5, 0.9, 1.0]), 0.9) == 2


@pytest.mark.slow
def test_receptive_field_is_the_gradient():
    """Each token in turn is given a row of its own in the table, whose gradient is then the
    token's."""
    model = make("rope", CONFIG.replace(tied=False))
    ids, label = IDS[:1, :5], jnp.array([3], jnp.int32)

    @jax.jit
    def likelihood(row, token):
        graph, state = nnx.split(model)
        other = nnx.merge(graph, state)
        own = other.embed.embedding[...].at[10].set(row)
        other.embed.embedding = nnx.Param(own)
        return jax.nn.log_softmax(other(ids.at[0, token].set(10))[0, -1])[3]

    assert not (ids == 10).any()
    table = model.embed.embedding[...]
    norms = [float(jnp.linalg.norm(jax.grad(likelihood)(table[ids[0, t]], t))) for t in range(5)]
    wanted = np.cumsum(norms[::-1]) / np.sum(norms)
    np.testing.assert_allclose(receptive_field(model, ids, label), wanted, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "relative"), [("rope", True), ("alibi", True), ("sinusoidal", False)]
)
def test_shifts_change_absolute_schemes_only(name, relative):
    labels = jnp.roll(IDS, -1, axis=1)
    change = shift_change(make(name), IDS, labels, 16)
    assert (change.largest < 1e-4) == relative
    if relative:
        assert abs(change.loss) < 1e-5
    same = shift_change(make(name), IDS, labels, 0)
    assert same == (0.0, 0.0)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_slice", ["leading", "trailing"])
def test_bands_are_the_pairs_that_rotate_together(layout, rotary_slice):
    spec = RopeSpec(layout=layout, rotary_slice=rotary_slice, partial_rotary_factor=0.5)
    start = 0 if rotary_slice == "leading" else 4
    pairs = [(0, 2), (1, 3)] if layout == "half" else [(0, 1), (2, 3)]
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 5, 4, 8)).astype(np.float32)
    k = rng.normal(size=(2, 5, 2, 8)).astype(np.float32)
    found = band_use(jnp.asarray(q), jnp.asarray(k), spec)
    assert found.shape == (4, 2)
    for head in range(4):
        for m, (a, b) in enumerate(pairs):
            norm = lambda x, h, a=a, b=b: np.hypot(
                x[:, :, h, start + a], x[:, :, h, start + b]
            ).mean()
            wanted = norm(q, head) * norm(k, head // 2)
            assert found[head, m] == pytest.approx(wanted, rel=1e-5)


def test_unseen_phases_by_hand():
    turns = 2 * np.pi
    # One pair turns once in 8 tokens, one in 64, one in 1024; trained on 16 tokens.
    frequencies = turns / np.array([8, 64, 1024])
    np.testing.assert_array_equal(unseen_phases(frequencies, 16, frequencies, 16), [0, 0, 0])
    longer = unseen_phases(frequencies, 16, frequencies, 64)
    np.testing.assert_allclose(longer, [0, 48 / 64, 48 / 64])
    # Past a full turn the second pair is back where it has been: 16 of every 64 distances.
    np.testing.assert_allclose(unseen_phases(frequencies, 16, frequencies, 128)[1], 96 / 128)
    # Interpolation keeps all phases inside: distance 60 stands where 15 stood.
    np.testing.assert_array_equal(unseen_phases(frequencies, 16, frequencies / 4, 61), [0, 0, 0])


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="2 queries and 3 keys"):
        attention_by_distance(jnp.ones((1, 1, 2, 3)))
    with pytest.raises(ValueError, match=r"share=1\.5"):
        reach_of(np.ones(3), 1.5)
    with pytest.raises(ValueError, match=r"\(2,\) frequencies in training, \(3,\) in use"):
        unseen_phases(np.ones(2), 4, np.ones(3), 4)
