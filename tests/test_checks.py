"""Each check on functions that are right and on ones with the mistake it is for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal

from flax_pos.checks import (
    PositionCheckError,
    check_cache_equivalence,
    check_left_padding,
    check_packing,
    check_position_sensitivity,
    check_relative,
)

RNG = np.random.default_rng(0)
VOCAB, WIDTH = 12, 8
TABLE = jnp.asarray(RNG.normal(size=(VOCAB, WIDTH)), jnp.float32)
WEIGHTS = jnp.asarray(RNG.normal(size=(3, 4, WIDTH, WIDTH)) / WIDTH**0.5, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Toy:
    """Attention layers written here, with a switch for every mistake."""

    positions: str = "absolute"
    """"absolute", "relative", "none", or "hidden": absolute ones from an arange of its own."""
    layers: int = 2
    causal: bool = True
    bug: str = ""

    def __call__(self, ids, *, positions=None, mask=None, segments=None):
        return self.run(ids, positions, mask, segments)

    @functools.partial(jax.jit, static_argnums=0)
    def run(self, ids, positions, mask, segments):
        column = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        at = column
        if mask is not None and self.bug != "padding counted":
            at = jnp.maximum(jnp.cumsum(mask, -1) - 1, 0)
        if segments is not None and self.bug != "no restart":
            starts = jnp.where(segments != jnp.roll(segments, 1, 1), column, 0)
            at = column - jax.lax.cummax(starts, axis=1)
        at = at if positions is None or self.positions == "hidden" else positions
        at = at.astype(jnp.float32)
        x = TABLE[ids]
        if self.positions in ("absolute", "hidden"):
            x += jnp.sin(jnp.einsum("bt,d->btd", at, jnp.arange(1.0, WIDTH + 1) / 3))
        seen = jnp.ones((*ids.shape, ids.shape[1]), bool)
        if self.causal:
            seen &= column[:, :, None] >= column[:, None, :]
        if mask is not None and self.bug != "padding seen":
            seen &= mask[:, None, :]
        if segments is not None and self.bug != "documents seen":
            seen &= segments[:, :, None] == segments[:, None, :]
        for q, k, v, out in WEIGHTS[: self.layers]:
            logits = jnp.einsum("btd,bsd->bts", x @ q, x @ k)
            if self.positions == "relative":
                logits -= 0.3 * jnp.abs(at[:, :, None] - at[:, None, :])
            logits = jnp.where(seen, logits, -1e30)
            x += jnp.tanh(jax.nn.softmax(logits) @ (x @ v)) @ out
        return x

    def init_cache(self, batch, size):
        return jnp.zeros((batch, 0), jnp.int32), jnp.zeros((batch, 0), jnp.int32)

    def step(self, ids, cache):
        before, at = cache
        start = 0 if self.bug == "restart" else before.shape[1]
        new = jnp.broadcast_to(start + jnp.arange(ids.shape[1]), ids.shape)
        seen = ids if self.bug == "forgetful" else jnp.concatenate([before, ids], 1)
        at = new if self.bug == "forgetful" else jnp.concatenate([at, new], 1)
        return self(seen, positions=at)[:, -ids.shape[1] :], (seen, at)


sensitivity = functools.partial(check_position_sensitivity, vocab_size=VOCAB)


def test_dog_bites_man_is_man_bites_dog():
    """Attention without a mask and without positions."""
    dog, bites, man = 3, 7, 5
    toy = Toy("none", causal=False)
    a, b = toy(jnp.array([[dog, bites, man]])), toy(jnp.array([[man, bites, dog]]))
    np.testing.assert_allclose(a[:, ::-1], b, atol=1e-5)
    found = check_position_sensitivity(toy, jnp.array([[dog, bites, man]]))
    assert found.seen == "nothing"
    assert not found.ok
    with pytest.raises(PositionCheckError, match="FAIL position sensitivity: order blind"):
        found.raise_if_failed()


@pytest.mark.parametrize(("layers", "blind"), [(1, True), (2, False), (3, False)])
def test_order_through_the_causal_mask(layers, blind):
    found = sensitivity(Toy("none", layers))
    assert (found.seen, found.causal, found.last_token_blind) == ("causal mask", True, blind)
    assert found
    assert ("which tokens came before, not in which order" in found.finding) == blind


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", ["absolute", "relative"])
def test_order_through_positions(positions, causal):
    found = sensitivity(Toy(positions, causal=causal))
    assert (found.seen, found.causal) == ("positions", causal)
    assert sensitivity(Toy(positions, causal=causal), expect="positions")


def test_a_function_that_ignores_positions():
    found = sensitivity(Toy("hidden", causal=False))
    assert found.seen == "order"
    assert "ignores `positions`" in found.finding
    assert not sensitivity(Toy("hidden", causal=False), expect="positions")


def test_a_function_that_takes_no_positions():
    toy = Toy("absolute")
    found = sensitivity(lambda ids: toy(ids))
    assert found.seen == "order"
    assert "takes no `positions`" in found.finding


def test_vectors_as_inputs():
    """A layer of the user's own, without an embedding."""
    x = normal((1, 5, WIDTH))
    attend = lambda x, causal: jax.nn.dot_product_attention(*[x[:, :, None]] * 3, is_causal=causal)
    assert check_position_sensitivity(lambda x: attend(x, False)[:, :, 0], x).seen == "nothing"
    found = check_position_sensitivity(lambda x: attend(x, True)[:, :, 0], x)
    assert found.last_token_blind
    assert found.seen == "order"


def test_expectations():
    assert sensitivity(Toy("none"), expect="causal mask")
    found = sensitivity(Toy("none"), expect="positions")
    assert not found
    assert "expected: positions" in str(found)
    assert sensitivity(Toy("none", causal=False), expect="nothing")


relative = functools.partial(check_relative, vocab_size=VOCAB)


def test_relative():
    assert relative(Toy("relative")).raise_if_failed()
    assert relative(Toy("none"))
    assert not relative(Toy("absolute"))
    assert relative(Toy("absolute"), expect=False)
    assert not relative(Toy("relative"), expect=False)
    with pytest.raises(PositionCheckError, match="not relative"):
        relative(Toy("absolute")).raise_if_failed()


@pytest.mark.parametrize("positions", ["absolute", "relative", "none"])
def test_cache(positions):
    toy = Toy(positions)
    found = check_cache_equivalence(toy, vocab_size=VOCAB, step=toy.step)
    assert found.ok, found
    assert set(found.differences) == {
        "calls of 10", "one by one", "calls of 9+1", "calls of 3+3+4"
    }  # fmt: skip


def test_positions_that_start_again_in_every_call():
    toy = Toy(bug="restart")
    found = check_cache_equivalence(toy, vocab_size=VOCAB, step=toy.step)
    assert not found
    assert found.differences["calls of 10"] < 1e-5
    assert "one by one: outputs differ from token 1 on; positions start at 0 again" in found.finding


def test_a_cache_that_forgets():
    toy = Toy(bug="forgetful")
    found = check_cache_equivalence(toy, vocab_size=VOCAB, step=toy.step, calls=[[4, 6]])
    assert not found
    assert found.finding == "calls of 4+6: outputs differ from token 4 on"


@pytest.mark.parametrize("positions", ["absolute", "relative", "none"])
def test_left_padding(positions):
    assert check_left_padding(Toy(positions), vocab_size=VOCAB).raise_if_failed()


def test_padding_that_is_seen():
    found = check_left_padding(Toy(bug="padding seen"), vocab_size=VOCAB)
    assert not found
    assert "padding is seen" in found.finding


def test_padding_that_is_counted():
    found = check_left_padding(Toy(bug="padding counted"), vocab_size=VOCAB)
    assert not found
    assert "padding is counted" in found.finding
    # A relative scheme does not mind.
    assert check_left_padding(Toy("relative", bug="padding counted"), vocab_size=VOCAB)


@pytest.mark.parametrize("positions", ["absolute", "relative", "none"])
def test_packing(positions):
    assert check_packing(Toy(positions), vocab_size=VOCAB).raise_if_failed()


def test_documents_that_see_each_other():
    found = check_packing(Toy(bug="documents seen"), vocab_size=VOCAB)
    assert not found
    assert "documents see each other" in found.finding


def test_positions_that_run_on():
    found = check_packing(Toy(bug="no restart"), vocab_size=VOCAB)
    assert not found
    assert "positions run on" in found.finding


def test_nan_is_a_difference():
    bad = lambda ids, mask: jnp.where(mask[:, :1, None], TABLE[ids], jnp.nan)
    assert not check_left_padding(bad, vocab_size=VOCAB)


def test_what_a_result_looks_like():
    found = check_left_padding(Toy(bug="padding seen"), vocab_size=VOCAB, pads=(2,))
    first, *rest = str(found).splitlines()
    assert first == (
        "FAIL left padding: padding is seen: what stands there changes the outputs "
        "(mask it in attention)"
    )
    assert [line.split("  ")[-1] for line in rest] == ["2 padded", "2 padded, other content"]
    assert str(check_left_padding(Toy(), vocab_size=VOCAB)).startswith("ok   left padding: ")


def test_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match=r"pass inputs= .* or vocab_size="):
        check_relative(Toy())
    with pytest.raises(TypeError, match="fn takes no 'mask'"):
        check_left_padding(lambda ids: TABLE[ids], vocab_size=VOCAB)
    with pytest.raises(ValueError, match="at least 3 tokens"):
        check_packing(Toy(), jnp.zeros((1, 2), jnp.int32))
    with pytest.raises(ValueError, match="vocab_size=2 is too small"):
        check_packing(Toy(), vocab_size=2)
    with pytest.raises(ValueError, match="no init_cache"):
        check_cache_equivalence(lambda ids, cache=None: ids, vocab_size=VOCAB)
    with pytest.raises(ValueError, match=r"calls \[3\] do not add up to the 10 tokens"):
        check_cache_equivalence(Toy(), vocab_size=VOCAB, step=Toy().step, calls=[[3]])
    with pytest.raises(ValueError, match="one per token is needed"):
        check_relative(
            lambda ids, positions: TABLE[ids][:, : 3 + int(positions[0, 0])], vocab_size=9
        )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [slice(None), slice(4, 5)], ids=["all", "one token"])
def test_outputs_that_are_not_finite(where, bad):
    def broken(ids, *, positions=None, mask=None, segments=None):
        return TABLE[ids].at[:, where].set(bad)

    cache = {"init_cache": lambda batch, size: None, "step": lambda x, cache: (TABLE[x], cache)}
    for found in (
        sensitivity(broken),
        sensitivity(broken, expect="order"),
        relative(broken),
        relative(broken, expect=False),
        check_left_padding(broken, vocab_size=VOCAB),
        check_packing(broken, vocab_size=VOCAB),
        check_cache_equivalence(broken, vocab_size=VOCAB, **cache),
    ):
        assert not found
        assert "the output is not finite" in found.finding


@pytest.mark.parametrize(
    ("check", "options"),
    [
        (check_cache_equivalence, {"calls": []}),
        (check_cache_equivalence, {"calls": [[]]}),
        (check_cache_equivalence, {"calls": [[10, 0]]}),
        (check_relative, {"shifts": ()}),
        (check_relative, {"shifts": (0,)}),
        (check_relative, {"shifts": (1.5,)}),
        (check_relative, {"expect": "junk"}),
        (check_left_padding, {"pads": ()}),
        (check_left_padding, {"pads": (-1,)}),
        (check_left_padding, {"pads": (0,)}),
        (check_position_sensitivity, {"expect": "junk"}),
    ],
)
def test_checks_that_would_check_nothing(check, options):
    steps = {"step": Toy().step} if check is check_cache_equivalence else {}
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be "):
        check(Toy(), vocab_size=VOCAB, **steps, **options)
