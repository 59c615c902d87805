"""Positions that follow from the ids, against loops over tokens, in one call and in pieces."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import DIMS, close

from flax_pos.lab.controls import Shuffled
from flax_pos.schemes.abacus import Abacus
from flax_pos.schemes.bipe import BiPE
from flax_pos.schemes.cape import Cape
from flax_pos.schemes.fire import Fire
from flax_pos.schemes.interpolated import Interpolated
from flax_pos.schemes.pose import PoSE
from flax_pos.schemes.position_coupling import PositionCoupling
from flax_pos.schemes.randomized import Randomized
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.shape import Shape
from flax_pos.schemes.stack import Stack
from flax_pos.schemes.window import Window
from flax_pos.types import Coords

DIGITS = tuple(range(10))
ABACUS = Abacus(digits=DIGITS, rows=32, max_shift=5)
BIPE = BiPE(separators=(20, 21), rows=6)
COUPLED = PositionCoupling(digits=DIGITS, equals=11, rows=20)  # 10 is the plus
SUM = [12, 6, 5, 3, 10, 4, 9, 11, 2, 0, 7, 12]  # $653+49=207$, answer as it comes


def run(scheme, ids, *, index=None, key=None, prev=None):
    ids = jnp.asarray(ids, jnp.int32)[None]
    index = jnp.arange(ids.shape[-1], dtype=jnp.int32)[None] if index is None else index
    return scheme.positions(index, length=ids.shape[-1], ids=ids, key=key, prev=prev)


def in_pieces(scheme, ids, cuts):
    """Positions from calls that each see the coords of the token before, as with a cache."""
    out, prev = [], None
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        index = jnp.arange(start, end, dtype=jnp.int32)[None]
        out.append(run(scheme, ids[start:end], index=index, prev=prev))
        prev = Coords(index[:, -1:], out[-1][:, -1:])
    return np.concatenate(out, -1)[0]


def abacus_by_loop(ids):
    count, out = 0, []
    for token in ids:
        count = count + 1 if token in DIGITS else 0
        out.append(count)
    return out


def bipe_by_loop(ids):
    sentence = place = 0
    out = []
    for token in ids:
        out.append((sentence, min(place, 5)))
        place += 1
        if token in (20, 21):
            sentence, place = sentence + 1, 0
    return out


RANDOM_IDS = np.random.default_rng(0).integers(0, 24, 40).tolist()
LONG_SENTENCE = [1] * 9 + [20] + [2] * 3 + [21, 21, 3]


@pytest.mark.parametrize("ids", [SUM, RANDOM_IDS, [1, 2, 3], [12]])
def test_abacus_counts_digits_of_each_number(ids):
    place, plain = ABACUS.levels(run(ABACUS, ids))
    assert place[0].tolist() == abacus_by_loop(ids)
    assert plain[0].tolist() == list(range(len(ids)))


def test_abacus_known_numbers():
    assert ABACUS.levels(run(ABACUS, SUM))[0][0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 0]


def test_abacus_moves_all_digits_alike_in_training():
    shifts = set()
    for key in jax.random.split(jax.random.key(0), 30):
        place = np.asarray(ABACUS.levels(run(ABACUS, SUM, key=key))[0][0])
        plain = np.array(abacus_by_loop(SUM))
        assert (place[plain == 0] == 0).all()
        (shift,) = set((place - plain)[plain > 0].tolist())
        shifts.add(shift)
    assert shifts == set(range(6))


@pytest.mark.parametrize("ids", [SUM, RANDOM_IDS, LONG_SENTENCE])
def test_bipe_counts_sentences_and_places(ids):
    place, sentence = BIPE.levels(run(BIPE, ids))
    assert list(zip(sentence[0].tolist(), place[0].tolist(), strict=True)) == bipe_by_loop(ids)


def test_position_coupling_puts_equal_significance_together():
    pos = run(COUPLED, SUM)
    end = 19
    coupled = [0, end - 3, end - 2, end - 1, end, end - 2, end - 1, end]
    answer = [end - 1, end - 2, end - 3, 0]
    assert COUPLED.levels(pos)[0][0].tolist() == coupled + answer
    assert COUPLED.levels(pos)[1][0].tolist() == list(range(12))
    assert (pos & 1)[0].tolist() == [0] * 7 + [1] * 5


def test_position_coupling_uses_every_row_in_training():
    seen = set()
    for key in jax.random.split(jax.random.key(0), 120):
        row = COUPLED.levels(run(COUPLED, SUM, key=key))[0][0].tolist()
        assert row[0] == 0
        assert min(row[1:-1]) >= 1
        assert max(row) <= 19
        assert row[3] == row[6] == row[8]
        assert row[1] == row[10] == row[3] - 2
        seen.add(row[4])
    assert seen == set(range(5, 20))  # longest operand 3: e is 5 .. 19


@pytest.mark.parametrize("scheme", [ABACUS, BIPE])
@pytest.mark.parametrize("cuts", [[1], [7], [9, 10, 11], list(range(1, 40))])
def test_calls_may_be_cut_anywhere(scheme, cuts):
    ids = (RANDOM_IDS[:20] + SUM + LONG_SENTENCE)[:40]
    np.testing.assert_array_equal(in_pieces(scheme, ids, cuts), run(scheme, ids)[0])


@pytest.mark.parametrize("cuts", [[8], [8, 9, 10, 11], [9], [7, 10]])
def test_the_answer_of_a_sum_may_come_token_by_token(cuts):
    np.testing.assert_array_equal(in_pieces(COUPLED, SUM, cuts), run(COUPLED, SUM)[0])


@pytest.mark.parametrize("scheme", [ABACUS, BIPE, COUPLED])
def test_packed_texts_are_placed_as_alone(scheme):
    index = jnp.concatenate([jnp.arange(12), jnp.arange(12)]).astype(jnp.int32)[None]
    packed = run(scheme, SUM + SUM[1:] + [5], index=index)[0]
    np.testing.assert_array_equal(packed[:12], run(scheme, SUM)[0])
    np.testing.assert_array_equal(packed[12:], run(scheme, [*SUM[1:], 5])[0])


@pytest.mark.parametrize("scheme", [ABACUS, BIPE, COUPLED])
@pytest.mark.parametrize("pad", [-1, 0])
@pytest.mark.parametrize("junk", [1, 20, 11])
def test_padding_on_the_left_does_not_matter(scheme, pad, junk):
    index = jnp.concatenate([jnp.full(4, pad), jnp.arange(12)]).astype(jnp.int32)[None]
    np.testing.assert_array_equal(
        run(scheme, [junk] * 4 + SUM, index=index)[0, 4:], run(scheme, SUM)[0]
    )


@pytest.mark.parametrize("scheme", [ABACUS, BIPE, COUPLED])
def test_a_text_that_goes_on_without_its_past_cannot_be_placed(scheme):
    """Not even a wrong row of the table is read: the lookup raises, and traced gives NaN."""
    index = jnp.arange(5, 8, dtype=jnp.int32)[None]
    pos = run(scheme, [1, 2, 12], index=index)
    assert int(pos[0, 0]) < 0
    params = scheme.init_model(jax.random.key(0), DIMS)
    x = jnp.zeros((1, 3, DIMS.width))
    with pytest.raises(ValueError, match=r"position -2 at .* is out of range"):
        scheme.embed(params, x, pos)
    assert bool(jnp.isnan(jax.jit(scheme.embed)(params, x, pos)[0, 0]).all())


def test_numbers_longer_than_the_table_cannot_be_placed():
    assert int(run(Abacus(digits=DIGITS, rows=4), [1] * 5)[0, 3]) < 0
    assert int(run(PositionCoupling(digits=DIGITS, equals=11, rows=4), [1] * 5)[0, 0]) < 0


def test_ids_must_be_given():
    with pytest.raises(ValueError, match="scheme 'abacus' reads token ids; pass ids"):
        ABACUS.positions(jnp.arange(3, dtype=jnp.int32), length=3)


def test_rows_are_added_and_the_inner_scheme_sees_its_own_positions():
    params = BIPE.init_model(jax.random.key(0), DIMS)
    pos = run(BIPE, LONG_SENTENCE)
    places = np.array([p for _, p in bipe_by_loop(LONG_SENTENCE)])
    x = jnp.ones((1, len(LONG_SENTENCE), DIMS.width))
    close(BIPE.embed(params, x, pos)[0], 1 + np.asarray(params["rows"])[places], 1e-6)
    sentences = jnp.array([[s for s, _ in bipe_by_loop(LONG_SENTENCE)]])
    own, plain = BIPE.features(pos, DIMS), Rope().features(sentences, DIMS)
    np.testing.assert_array_equal(own["rope_cos"], plain["rope_cos"])


def test_abacus_with_fire_reads_plain_distances():
    scheme = Abacus(inner=Fire(), digits=DIGITS, rows=32)
    params = Fire().init_layer(jax.random.key(0), DIMS)
    pos = run(scheme, SUM)
    index = jnp.arange(12, dtype=jnp.int32)[None]
    at = lambda pos: Coords(index, pos)
    np.testing.assert_array_equal(
        scheme.bias(params, at(pos), at(pos), 4), Fire().bias(params, at(index), at(index), 4)
    )
    assert scheme.uses == {"positions", "embed", "init_model", "init_layer", "bias"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Abacus(digits=()), "digits must hold at least one token id"),
        (lambda: Abacus(digits=[1, 2]), r"digits must be a tuple of token ids, got \[1, 2\]"),
        (lambda: BiPE(separators=(1, -2)), r"separators\[1\] must be at least 0, got -2"),
        (lambda: BiPE(rows=0), "rows must be at least 1, got 0"),
        (lambda: PositionCoupling(equals="="), "equals must be a whole number, got '='"),
    ],
)
def test_settings_that_make_no_sense_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize("cut", [2, 3, 6])
def test_a_call_that_ends_within_an_operand_is_found_out(cut):
    assert (in_pieces(COUPLED, SUM, [cut])[cut:] < 0).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Randomized(inner=ABACUS),
        lambda: Shape(inner=COUPLED),
        lambda: PoSE(inner=Window(inner=BIPE)),
        lambda: Interpolated(inner=ABACUS),
        lambda: Cape(inner=COUPLED),
        lambda: Shuffled(inner=BIPE),
        lambda: Stack(parts=(ABACUS, Fire())),
        lambda: Stack(parts=(Rope(), Window(inner=BIPE))),
    ],
)
def test_two_numbers_in_one_are_not_read_as_a_place(make):
    with pytest.raises(ValueError, match=r"hold two numbers each.*inside, \w+\(inner="):
        make()


@pytest.mark.parametrize("inner", [Interpolated(), Cape()], ids=lambda s: s.name)
@pytest.mark.parametrize("scheme", [ABACUS, COUPLED], ids=lambda s: s.name)
def test_places_between_whole_numbers_are_refused(scheme, inner):
    with pytest.raises(ValueError, match="puts tokens at real numbers"):
        run(dataclasses.replace(scheme, inner=inner), SUM)


@pytest.mark.parametrize("inner", [Interpolated(), Randomized(), PoSE(), Shape()])
def test_sentences_are_numbered_as_they_come(inner):
    with pytest.raises(ValueError, match=f"{inner.name!r} moves positions"):
        BiPE(inner=inner)


@pytest.mark.parametrize("scheme", [ABACUS, COUPLED], ids=lambda s: s.name)
def test_places_that_do_not_fit_32_bits_are_not_taken_for_others(scheme):
    far, ids = jnp.int32(2**31 // scheme.rows), jnp.array([[12]])
    prev = Coords(jnp.array([[far - 1]]), jnp.array([[1]]))
    place = lambda at: scheme.positions(at[None, None], length=at + 1, ids=ids, prev=prev)
    assert place(far // 2 - 1)[0, 0] >= 0
    assert place(far)[0, 0] < 0


@pytest.mark.parametrize(("sentence", "fits"), [(2**31 // 12 - 2, True), (2**31 // 12 - 1, False)])
def test_sentences_that_do_not_fit_32_bits_are_not_taken_for_others(sentence, fits):
    prev = Coords(jnp.array([[5]]), jnp.array([[2 * (sentence * BIPE.rows + 2) + 1]], jnp.int32))
    place = BIPE.positions(jnp.array([[6]]), length=7, ids=jnp.array([[1]]), prev=prev)
    assert (place[0, 0] >= 0) == fits
