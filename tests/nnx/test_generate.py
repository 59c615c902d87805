import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import VOCAB, run, some_ids, tiny

from flax_pos import from_dict
from flax_pos.nnx import generate, stream

PROMPTS = some_ids(3, 5)
MASK = jnp.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], bool)


def by_hand(model, prompt, new):
    """Greedy, by whole forwards over one row."""
    ids = jnp.zeros((1, prompt.size + new), jnp.int32).at[0, : prompt.size].set(prompt)
    for t in range(prompt.size, prompt.size + new):
        mask = jnp.arange(ids.shape[1])[None] < t
        ids = ids.at[0, t].set(run(model, ids, mask=mask)[0, t - 1].argmax())
    return ids[0, prompt.size :].tolist()


DYNAMIC = from_dict(
    {
        "name": "rope",
        "spec": {
            "scaling": {
                "rope_type": "dynamic",
                "factor": 4.0,
                "original_max_position_embeddings": 8,
            }
        },
    }
)
"""Depends on the length from the ninth token on."""


@pytest.mark.slow
def test_a_growing_length_moves_earlier_tokens():
    model = tiny(DYNAMIC, layers=3)
    out = generate(model, PROMPTS[:1], max_new_tokens=10)
    assert out[0, 5:].tolist() == by_hand(model, PROMPTS[0], 10)
    streamed = stream(model, PROMPTS[:1], max_new_tokens=10)
    assert [int(token) for (token,) in streamed] == out[0, 5:].tolist()


@pytest.mark.parametrize("name", ["rope", "learned", "fox"])
def test_each_row_goes_on_as_if_alone(name):
    """Left-padded, whole and right-padded rows in one batch, against whole forwards."""
    model = tiny(name)
    out = generate(model, PROMPTS, mask=MASK, max_new_tokens=6)
    assert out.dtype == jnp.int32
    np.testing.assert_array_equal(out[:, :5], PROMPTS)
    for row in range(3):
        assert out[row, 5:].tolist() == by_hand(model, PROMPTS[row][MASK[row]], 6)


def test_separate_layers_give_the_same_text():
    a, b = (
        generate(tiny("rope", scan_layers=scan), PROMPTS, max_new_tokens=6)
        for scan in (True, False)
    )
    np.testing.assert_array_equal(a, b)


def test_a_row_ends_with_its_end_token():
    model = tiny("rope")
    plain = np.asarray(generate(model, PROMPTS, max_new_tokens=8))[:, 5:]
    end = int(plain[0, 2])
    out = np.asarray(generate(model, PROMPTS, max_new_tokens=8, eos_id=[end, 99], pad_id=-7))[:, 5:]
    for row, want in zip(out, plain, strict=True):
        stop = list(want).index(end) + 1 if end in want else 8
        assert row[:stop].tolist() == want[:stop].tolist()
        assert (row[stop:] == -7).all()
    assert (out == -7).any()


def test_streamed_tokens_are_the_same():
    model = tiny("rope")
    end = int(generate(model, PROMPTS, max_new_tokens=8)[0, 7])
    for options in ({}, {"eos_id": end}, {"temperature": 1.0, "key": jax.random.key(3)}):
        want = np.asarray(generate(model, PROMPTS, mask=MASK, max_new_tokens=8, **options))
        got = np.stack(list(stream(model, PROMPTS, mask=MASK, max_new_tokens=8, **options)), 1)
        np.testing.assert_array_equal(got, want[:, 5 : 5 + got.shape[1]])
        assert (want[:, 5 + got.shape[1] :] == 0).all()


def test_a_stream_ends_with_its_last_row():
    model, prompt = tiny("rope"), PROMPTS[:1]
    end = int(generate(model, prompt, max_new_tokens=3)[0, 7])
    first = generate(model, prompt, max_new_tokens=3)[0, 5:].tolist().index(end)
    assert len(list(stream(model, prompt, max_new_tokens=9, eos_id=end))) == first + 1


def test_drawn_tokens():
    model, many = tiny("rope"), jnp.broadcast_to(PROMPTS[:1], (1024, 5))
    draw = lambda seed, **options: np.asarray(
        generate(model, many, max_new_tokens=1, key=jax.random.key(seed), **options)
    )[:, 5]
    p = np.asarray(jax.nn.softmax(run(model, PROMPTS[:1])[0, -1] / 2.0))
    first = draw(0, temperature=2.0)
    np.testing.assert_allclose(np.bincount(first, minlength=VOCAB) / 1024, p, atol=0.05)
    np.testing.assert_array_equal(first, draw(0, temperature=2.0))
    assert (first != draw(1, temperature=2.0)).any()
    best = run(model, PROMPTS[:1])[0, -1].argmax()
    assert (draw(0, temperature=2.0, top_k=1) == best).all()
    top = np.argsort(p)[::-1]
    assert set(draw(0, temperature=2.0, top_k=3)) == set(top[:3].tolist())
    kept = top[: np.searchsorted(np.cumsum(p[top]), 0.5) + 1]
    assert set(draw(0, temperature=2.0, top_p=0.5)) == set(kept.tolist())
    assert set(draw(0, temperature=2.0, min_p=0.6)) == set(np.flatnonzero(p >= 0.6 * p.max()))


def test_steps_draw_anew():
    """Each step has noise of its own: with equal odds for all tokens a row does not repeat one."""
    model = tiny("none", init_std=1e-6)
    out = generate(model, PROMPTS[:1], max_new_tokens=12, temperature=1.0, key=jax.random.key(0))
    assert len(set(out[0, 5:].tolist())) > 4


@pytest.mark.slow
def test_nothing_is_compiled_twice(caplog):
    model = tiny("rope", layers=3)  # a model of its own, so that nothing is compiled before

    def compiled(new=20, run=generate, **options):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("WARNING", "jax"):
            for length in (5, 6, 7):
                list(run(model, some_ids(1, length), max_new_tokens=new, **options))
        names = [r.getMessage().split()[1] for r in caplog.records if "Compiling" in r.getMessage()]
        return [name for name in names if name in ("jit(_prefill)", "jit(_decode)", "jit(_step)")]

    assert sorted(compiled()) == ["jit(_decode)", "jit(_prefill)"]
    assert compiled() == []
    assert compiled(new=11) == []  # how many tokens is a number, not a shape
    drawn = {"temperature": 0.5, "top_p": 0.9, "key": jax.random.key(0)}
    assert len(compiled(**drawn)) == 2
    assert compiled(**{**drawn, "temperature": 0.8, "top_p": 0.5}) == []
    assert compiled(new=3, run=stream) == ["jit(_step)"]
    assert compiled(new=4, run=stream) == []


def test_positions_end_before_the_first_token_is_drawn():
    model = tiny("learned", max_len=8)
    assert generate(model, PROMPTS, max_new_tokens=3).shape == (3, 8)
    for call in (generate, stream):
        with pytest.raises(ValueError, match=r"9 tokens, but scheme 'learned' .*max_len=8"):
            call(model, PROMPTS, max_new_tokens=4)
    # What counts is the longest row without its padding.
    assert generate(model, PROMPTS[:1], mask=MASK[:1], max_new_tokens=5).shape == (1, 10)


def test_another_scheme_for_the_same_weights():
    model = tiny("rope")
    scheme = tiny("none").scheme
    out = generate(model, PROMPTS, max_new_tokens=6, scheme=scheme)
    bare = tiny("none")
    np.testing.assert_array_equal(out, generate(bare, PROMPTS, max_new_tokens=6))
    assert (out != generate(model, PROMPTS, max_new_tokens=6)).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must be 0 .* got -1.0"),
        ({"temperature": 1.0}, "needs key="),
        ({"top_k": 5}, "top_k has no effect at temperature=0"),
        ({"temperature": 1.0, "top_p": 1.5, "key": 0}, r"top_p must be in \(0, 1\]"),
        ({"mask": MASK[:, :4]}, r"mask has shape \(3, 4\)"),
        ({"mask": jnp.zeros((3, 5), bool)}, "row 0 has no tokens"),
        ({"ids": PROMPTS.at[1, 2].set(17)}, r"ids 17 at \[1, 2\] is out of range"),
        ({"ids": PROMPTS[0]}, r"ids must have the axes B T, got shape \(5,\)"),
    ],
)
def test_arguments_that_do_not_fit(options, message):
    options = {"ids": PROMPTS, "max_new_tokens": 2, **options}
    with pytest.raises(ValueError, match=message):
        generate(tiny("none"), options.pop("ids"), **options)


def test_generation_inside_a_program():
    model = tiny("rope")
    inside = jax.jit(lambda m, i: generate(m, i, max_new_tokens=4))(model, PROMPTS)
    np.testing.assert_array_equal(inside, generate(model, PROMPTS, max_new_tokens=4))


def test_tokens_that_move_one_by_one_are_found():
    """Places of the first two tokens may stay where later ones move (randomized positions)."""
    scheme = from_dict({"name": "randomized", "inner": {"name": "rope"}, "range": 48})
    model = tiny(scheme)
    out = generate(model, PROMPTS[:1], max_new_tokens=8)
    assert out[0, PROMPTS[:1].shape[1] :].tolist() == by_hand(model, PROMPTS[0], 8)


def test_a_model_says_what_its_cache_cannot_take():
    model = tiny("rope")
    ids = PROMPTS[:, :3]
    _, cache = model(ids, cache=model.init_cache(ids.shape[0], 4))
    with pytest.raises(ValueError, match="4 slots; row 0 holds 3 tokens and 3 more came"):
        model(ids, cache=cache)
    with pytest.raises(ValueError, match=r"cache is for rows \(9,\), but the ids have \("):
        model(ids, cache=model.init_cache(9, 8))
