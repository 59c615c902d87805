"""Decoding from the cache gives what the whole sequence at once gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import run, scheme_of, some_ids, tiny

from flax_pos import from_dict, list_schemes

T, PREFILL = 8, 3
# One for each way to decode; the others follow from conformance, and `slow` checks them in models.
ALWAYS = (
    "none",
    "learned",
    "rope",
    "alibi",
    "fox",
    "cope",
    "path",
    "randomized",
    "abacus",
    "irope",
)
SCHEMES = [
    name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow)
    for name in list_schemes()
]


@jax.jit
def both_ways(model, ids):
    """Logits at once, and logits of a prefill followed by single tokens."""
    length = ids.shape[1]
    whole = model(ids, length=length)
    cache = model.init_cache(ids.shape[0], length)
    first, cache = model(ids[:, :PREFILL], cache=cache, length=length)

    def step(cache, token):
        logits, cache = model(token[:, None], cache=cache, length=length)
        return cache, logits[:, 0]

    _, rest = jax.lax.scan(step, cache, ids[:, PREFILL:].T)
    return whole, jnp.concatenate([first, jnp.swapaxes(rest, 0, 1)], 1)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_decodes_as_it_trains(name):
    model = tiny(name, layers=1 if scheme_of(name).for_layer(1) == scheme_of(name) else 4)
    whole, decoded = both_ways(model, some_ids(2, T))
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(decoded, whole, atol=1e-4)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_mixed_layers_decode(scan_layers):
    parts = [{"name": name} for name in ("rope", "alibi", "fox")]
    scheme = from_dict({"name": "by_layer", "parts": parts, "pattern": [0, 2, 0, 1]})
    whole, decoded = both_ways(tiny(scheme, layers=4, scan_layers=scan_layers), some_ids(2, T))
    np.testing.assert_allclose(decoded, whole, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_rank": 8, "q_rank": 6, "shared_key_dim": 4, "head_dim": 12, "value_dim": 6},
        {"dtype": "bfloat16", "qk_norm": "projection"},
    ],
    ids=["latent", "bfloat16"],
)
def test_other_blocks_decode(settings):
    kv_heads = None if "kv_rank" in settings else 2
    model = tiny("rope", kv_heads=kv_heads, **settings)
    whole, decoded = both_ways(model, some_ids(2, T))
    tolerance = 1e-5 if model.config.dtype == "float32" else 0.05 * np.abs(whole).max()
    np.testing.assert_allclose(decoded, whole, atol=tolerance)


@pytest.mark.parametrize("calls", [(10,), (4, 4, 2), (9, 1), (1,) * 10], ids=str)
def test_cutting_into_calls_changes_nothing(calls):
    model, ids = tiny("rope"), some_ids(1, 10)
    cache, start = model.init_cache(1, 12), 0
    for n in calls:
        logits, cache = run(model, ids[:, start : start + n], cache=cache)
        start += n
    np.testing.assert_allclose(logits[:, -1], run(model, ids)[:, -1], atol=1e-5)
    assert cache[0].at.pos[0, 0, :10].tolist() == list(range(10))
    assert cache[0].length.tolist() == [[10], [10]]  # layers x rows


def test_cached_keys_are_written_once():
    model, ids = tiny("rope"), some_ids(1, 8)
    _, cache = run(model, ids[:, :3], cache=model.init_cache(1, 8))
    before = jax.tree.map(np.asarray, cache[0])
    for t in range(3, 8):
        _, cache = run(model, ids[:, t : t + 1], cache=cache)
    np.testing.assert_array_equal(cache[0].k[:, :, :3], before.k[:, :, :3])
    assert not np.array_equal(cache[0].k[:, :, 3:], before.k[:, :, 3:])


def test_unequal_rows_continue_at_their_own_positions():
    model, ids = tiny("learned"), some_ids(2, 5)
    mask = jnp.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], bool)
    _, cache = run(model, ids, mask=mask, cache=model.init_cache(2, 8))
    assert cache[0].length[0].tolist() == [3, 5]
    token = some_ids(2, 1, seed=1)
    logits, cache = run(model, token, cache=cache)
    assert [row[n].item() for row, n in zip(cache[0].at.pos[0], (3, 5), strict=True)] == [3, 5]
    for row, first in ((0, 2), (1, 0)):
        solo = jnp.concatenate([ids[row, first:], token[row]])[None]
        np.testing.assert_allclose(logits[row, -1], run(model, solo)[0, -1], atol=1e-5)


def test_a_full_cache_raises():
    model, ids = tiny("none", scan_layers=False, layers=1), some_ids(1, 4)
    _, cache = model(ids, cache=model.init_cache(1, 4))
    with pytest.raises(ValueError, match="4 slots; row 0 holds 4 tokens and 1 more came"):
        model(ids[:, :1], cache=cache)
    logits, _ = run(model, ids[:, :1], cache=cache)  # lengths are traced: nothing can be raised
    assert np.isnan(logits).all()


def test_length_scaling_follows_the_tokens_seen():
    """A large cache changes nothing; what counts is how long the text is now. One layer:
    deeper ones read what tokens carried at the length of their time."""
    scheme = from_dict(
        {
            "name": "rope",
            "spec": {"scaling": {"rope_type": "dynamic", "factor": 4.0,
                                 "original_max_position_embeddings": 6}},
        }
    )  # fmt: skip
    model, ids = tiny(scheme, layers=1), some_ids(1, 10)
    for size in (10, 30):
        cache = model.init_cache(1, size)
        for t in range(10):
            logits, cache = run(model, ids[:, t : t + 1], cache=cache)
            if t in (3, 9):
                want = run(model, ids[:, : t + 1])[:, -1]
                np.testing.assert_allclose(logits[:, -1], want, atol=1e-5)
