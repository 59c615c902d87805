import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal

from flax_pos.functional.sampling import Sampling, filter_logits, sample

P = jnp.array([0.5, 0.3, 0.15, 0.05])
LOGITS = jnp.log(P)


def kept(how):
    return np.isfinite(filter_logits(LOGITS, how)).tolist()


def test_best_token():
    logits = normal((3, 4, 11))
    got = sample(logits)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, np.argmax(logits, -1))


def test_frequencies_follow_the_temperature():
    draws = sample(jnp.broadcast_to(LOGITS, (40000, 4)), Sampling(2.0), jax.random.key(0))
    want = np.sqrt(P) / np.sqrt(P).sum()
    np.testing.assert_allclose(np.bincount(draws, minlength=4) / 40000, want, atol=0.01)


def test_top_k():
    assert kept(Sampling(1.0, top_k=2)) == [True, True, False, False]
    assert kept(Sampling(1.0, top_k=9)) == [True] * 4


@pytest.mark.parametrize(
    ("p", "count"), [(1e-6, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)]
)
def test_top_p_keeps_the_token_that_reaches_it(p, count):
    assert kept(Sampling(1.0, top_p=p)) == [True] * count + [False] * (4 - count)
    shuffled = filter_logits(LOGITS[jnp.array([2, 0, 3, 1])], Sampling(1.0, top_p=p))
    assert int(np.isfinite(shuffled).sum()) == count


def test_min_p():
    assert kept(Sampling(1.0, min_p=0.2)) == [True, True, True, False]
    assert kept(Sampling(1.0, min_p=1.0)) == [True, False, False, False]


def test_filters_see_what_the_temperature_left():
    assert kept(Sampling(1.0, top_p=0.6)) == [True, True, False, False]
    assert kept(Sampling(0.2, top_p=0.6)) == [True, False, False, False]
    # Of 0.5 and 0.3 the first has 0.625.
    assert kept(Sampling(1.0, top_k=2, top_p=0.6)) == [True, False, False, False]


def test_excluded_tokens_stay_excluded():
    logits = jnp.array([[0.0, -jnp.inf, 0.0]])
    draws = sample(
        jnp.broadcast_to(logits, (1000, 3)), Sampling(5.0, top_p=0.99), jax.random.key(0)
    )
    assert set(np.unique(draws)) == {0, 2}


def test_numbers_may_be_traced():
    count = []

    @jax.jit
    def draw(how, key):
        count.append(1)
        return sample(LOGITS, how, key)

    for temperature in (0.5, 1.0):
        for p in (0.5, 0.9):
            how = Sampling(jnp.float32(temperature), top_k=3, top_p=jnp.float32(p))
            draw(how, jax.random.key(0))
    assert len(count) == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (Sampling(0.0), "temperature must be greater than 0, got 0.0"),
        (Sampling(1.0, top_k=0), "top_k must be at least 1, got 0"),
        (Sampling(1.0, top_p=0.0), r"top_p must be in \(0, 1\], got 0.0"),
        (Sampling(1.0, min_p=1.5), r"min_p must be in \(0, 1\], got 1.5"),
    ],
)
def test_settings_out_of_range(how, message):
    with pytest.raises(ValueError, match=message):
        sample(LOGITS, how, jax.random.key(0))


def test_a_key_is_needed():
    with pytest.raises(ValueError, match="needs key"):
        sample(LOGITS, Sampling(1.0))
