import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_pos import get_scheme
from flax_pos.interop import load_pretrained, save_pretrained
from flax_pos.interop.surgery import (
    params_of,
    resize_positions,
    resize_vocab,
    swap_scheme,
    tie,
    untie,
)
from flax_pos.nnx import CausalLM, ModelConfig

IDS = jnp.array([[3, 1, 4, 1, 5, 9, 2, 6]])
run = jax.jit(lambda model, ids: model(ids))
CONFIG = ModelConfig(vocab_size=10, width=16, layers=2, heads=2, max_len=8)


def load(name="llama_default", **options):
    return load_pretrained(golden.DIRECTORY / name, **options)


def new(scheme="rope", **changes):
    scheme = get_scheme(scheme)() if isinstance(scheme, str) else scheme
    return CausalLM(CONFIG.replace(**changes), scheme, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("changes", [{}, {"tied": False, "head_bias": True}, {"vocab_rows": 16}])
def test_new_tokens_start_at_the_mean(changes):
    old = new(**changes)
    wide = resize_vocab(old, 13, pad_to_multiple=8)
    assert wide.config.vocab_size == 13
    assert wide.embed.embedding.shape == (16, 16)
    assert wide.config.tied == old.config.tied
    before, after = run(old, IDS), run(wide, IDS)
    assert after.shape[-1] == 13
    np.testing.assert_array_equal(after[..., :10], before)
    mean = old.embed.embedding[...][:10].mean(0)
    np.testing.assert_allclose(wide.embed.embedding[...][10:13], jnp.stack([mean] * 3), atol=1e-6)
    np.testing.assert_allclose(
        after[..., 10:], jnp.repeat(before.mean(-1, keepdims=True), 3, -1), atol=1e-5
    )
    with pytest.raises(ValueError, match="13"):
        wide(jnp.array([[13]]))
    np.testing.assert_array_equal(run(resize_vocab(wide, 10), IDS), before)


def test_no_surplus_block_and_the_true_size(tmp_path):
    assert resize_vocab(new(), 16, pad_to_multiple=8).config.vocab_rows is None
    model = resize_vocab(load(), 100, pad_to_multiple=64)
    assert (model.config.vocab_size, model.config.vocab_rows) == (100, 128)
    for changed, size in ((model, 100), (resize_vocab(load(), 128), 128)):
        save_pretrained(changed, tmp_path)
        again = load_pretrained(tmp_path)
        assert (again.config.vocab_size, again.config.vocab_rows) == (size, None)
        np.testing.assert_allclose(run(again, IDS), run(changed, IDS), atol=1e-5)


def test_untying_and_tying():
    tied = new()
    apart = untie(tied)
    assert apart.embed.head is not None
    assert untie(apart) is apart
    np.testing.assert_array_equal(run(apart, IDS), run(tied, IDS))
    assert len(params_of(apart)) == len(params_of(tied)) + 1
    together = tie(apart)
    assert tie(together) is together
    np.testing.assert_array_equal(run(together, IDS), run(tied, IDS))
    other = load()
    np.testing.assert_array_equal(tie(other).embed.embedding[...], other.embed.embedding[...])
    by_head = tie(other, keep="head")
    np.testing.assert_array_equal(by_head.embed.embedding[...], other.embed.head[...].T)
    with pytest.raises(ValueError, match="keep"):
        tie(other, keep="both")


def test_a_changed_model_is_saved_as_what_it_is(tmp_path):
    model = tie(resize_vocab(load("qwen3"), 99))
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path)
    assert again.config == model.config
    np.testing.assert_array_equal(run(again, IDS), run(model, IDS))


def test_without_positions_order_is_lost():
    """Of a single layer's last token: what stands before it, in any order, is the same to it."""
    model, other = load("llama_default"), IDS[:, jnp.array([1, 0, 2, 3, 4, 5, 6, 7])]
    dropped = swap_scheme(model, get_scheme("none")())
    assert np.abs(run(model, IDS) - run(model, other))[0, -1].max() > 0.1
    assert np.abs(run(dropped, IDS) - run(model, IDS))[0, -1].max() > 0.1
    assert dropped.origin == model.origin
    first = lambda model, ids: model.blocks[0].attention(
        model.embed(ids), model.position(model.embed(ids))[1].layer(0)
    )[0]
    np.testing.assert_allclose(first(dropped, IDS)[0, -1], first(dropped, other)[0, -1], atol=1e-6)


@pytest.mark.parametrize("name", ["t5", "learned"])
def test_another_scheme_can_be_trained_on(name):
    model = load(scan_layers=True)
    with_rngs = swap_scheme(model, get_scheme(name)(), rngs=nnx.Rngs(1))
    graph, params = nnx.split(with_rngs)
    ids = jnp.asarray(golden.io("llama_default")["long_input_ids"])

    def loss(params):
        model = nnx.merge(graph, params)
        h, _ = model.hidden(ids[:, :-1])
        return model.cross_entropy(h, ids[:, 1:])

    @jax.jit
    def step(params):
        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), value

    losses = []
    for _ in range(8):
        params, value = step(params)
        losses.append(float(value))
    assert losses[-1] < losses[0] - 0.3
    np.testing.assert_array_equal(model.embed.embedding[...], load().embed.embedding[...])


def test_a_scheme_with_parameters_needs_a_seed():
    with pytest.raises(ValueError, match="'t5' has parameters: pass rngs"):
        swap_scheme(new(), get_scheme("t5")())


@pytest.mark.parametrize("offset", [0, 2])
def test_learned_positions(offset):
    model = new(get_scheme("learned")(offset=offset))
    rows = lambda model: np.asarray(model.position.params["0"]["model"]["table"][...])
    old = rows(model)
    for how, size in (("interpolate", 15), ("repeat", 20), ("cut", 5), ("interpolate", 4)):
        resized = resize_positions(model, size, how=how)
        table = rows(resized)
        assert table.shape == (size + offset, 16)
        np.testing.assert_array_equal(table[:offset], old[:offset])
        with pytest.raises(ValueError, match=str(size + 1)):
            resized(jnp.zeros((1, size + 1), jnp.int32))
        table, own = table[offset:], old[offset:]
        if how == "interpolate" and size == 15:  # every second row is an old one
            np.testing.assert_allclose(table[::2], own, atol=1e-6)
            np.testing.assert_allclose(table[1::2], (own[1:] + own[:-1]) / 2, atol=1e-6)
        elif how == "interpolate":
            np.testing.assert_allclose(table[[0, -1]], own[[0, -1]], atol=1e-6)
        else:
            np.testing.assert_array_equal(table, np.concatenate([own, own, own])[:size])


def test_positions_of_a_file_are_saved_in_their_new_number(tmp_path):
    model = resize_positions(load("gpt2"), 100)
    save_pretrained(model, tmp_path)
    assert load_pretrained(tmp_path).config.max_len == 100


@pytest.mark.parametrize(
    ("size", "how", "message"),
    [
        (9, "cut", "how='cut' cannot make 9 positions of 8"),
        (7, "repeat", "how='repeat' cannot make 7 positions of 8"),
        (0, "interpolate", "cannot make 0"),
        (9, "guess", "how must be"),
    ],
)
def test_sizes_that_do_not_fit(size, how, message):
    with pytest.raises(ValueError, match=message):
        resize_positions(new("learned"), size, how=how)
    with pytest.raises(ValueError, match="only a table of learned positions"):
        resize_positions(new("rope"), 9)


def test_sizes_of_a_vocabulary():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        resize_vocab(new(), 0)
