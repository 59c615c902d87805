"""What each task asks, read off the ids alone in plain Python, from the tasks' descriptions.

An oracle takes the ids up to and including a scored position and gives the label there.
"""

import functools
import itertools

import jax

from flax_pos.lab.tasks import get_task

PAD, BOS, SEP, EOS = range(4)


def after(ids, mark):
    return ids[len(ids) - 1 - ids[::-1].index(mark) + 1 :]


def listing(answer):
    """The oracle of tasks whose answer follows `<sep>` and ends with `<eos>`."""

    def oracle(ids):
        assert ids[0] == BOS
        at = ids.index(SEP)
        wanted = [*answer(ids[1:at]), EOS]
        given = ids[at + 1 :]
        assert given == wanted[: len(given)]
        return wanted[len(given)]

    return oracle


replace = listing(lambda x: [x[0]] * (len(x) - 1))
copy = listing(lambda x: x)
copy_twice = listing(lambda x: [*x, 4, *x])
reverse = listing(lambda x: x[::-1])
sort = listing(sorted)


def running(states, step, ask):
    """States are tokens from 4 on, symbols follow them."""

    def walk(symbols):
        state, out = 0, []
        for s in symbols:
            state = step(state, s - 4 - states)
            out.append(state + 4)
        return out

    def oracle(ids):
        if ask == "every":
            assert ids[0] == BOS
            assert SEP not in ids
            return walk(ids[1:])[-1]
        if ask == "last":
            assert ids[-1] == SEP
            return walk(ids[1:-1])[-1]
        return listing(walk)(ids)

    return oracle


def permutations(things, swaps):
    """The word problem, permutations applied to a real arrangement of things."""
    elements = list(itertools.permutations(range(things)))
    moves = [e for e in elements if not swaps or sum(a != b for a, b in enumerate(e)) <= 2]

    def step(state, move):
        return elements.index(tuple(moves[move][x] for x in elements[state]))

    return running(len(elements), step, "every")


def addition(order, hints):
    plus, digit, hint = 4, 5, 15

    def value(tokens):
        """Number and the places named, highest digit first."""
        names = [t - hint for t in tokens[::2]] if hints else None
        digits = [t - digit for t in (tokens[1::2] if hints else tokens)]
        assert all(0 <= d <= 9 for d in digits)
        if order == "reversed":
            digits, names = digits[::-1], names and names[::-1]
        return int("".join(map(str, digits))), names, len(digits)

    def oracle(ids):
        at, cut = ids.index(SEP), ids.index(plus)
        (a, names, n), (b, other, m) = value(ids[1:cut]), value(ids[cut + 1 : at])
        assert n == m
        assert names == other
        digits = [int(d) for d in str(a + b).zfill(n + 1)]
        wanted = [d + digit for d in digits]
        if hints:
            assert names == list(range(names[0], names[0] - n, -1))
            places = range(names[0] + 1, names[0] - n, -1)
            wanted = [(p + hint, d) for p, d in zip(places, wanted, strict=True)]
        if order == "reversed":
            wanted = wanted[::-1]
        if hints:
            wanted = [t for pair in wanted for t in pair]
        wanted.append(EOS)
        given = ids[at + 1 :]
        assert given == wanted[: len(given)]
        return wanted[len(given)]

    return oracle


def flip_flop(ids):
    write, read, bit = 4, 5, 7
    assert ids[-1] == read
    pairs = list(zip(ids[1:-1:2], ids[2::2], strict=True))
    assert pairs[0][0] == write
    held = None
    for instruction, value in pairs:
        assert value in (bit, bit + 1)
        if instruction == write:
            held = value
        elif instruction == read:
            assert value == held
    return held


def selective_counting(variables, max_value):
    number = 5
    zero = number + max_value + 1
    add, name = zero + variables, zero + 2 * variables

    def oracle(ids):
        values = [0] * variables
        for t in ids[1:]:
            if t >= name:
                break
            if t >= add:
                values[t - add] += 1
            elif t >= zero:
                values[t - zero] = 0
            else:
                assert t == 4
        assert max(values) <= max_value
        return number + values[ids[-1] - name]

    return oracle


def induction(ids):
    assert ids[1:].count(ids[-1]) == 2
    return ids[ids.index(ids[-1]) + 1]


def mqar(ids):
    at = ids.index(SEP)
    told = dict(zip(ids[1:at:2], ids[2:at:2], strict=True))
    asked = ids[at + 1 :: 2]
    assert len(set(asked)) == len(asked)
    return told[asked[-1]]


def indirect_indexing(symbols, max_shift):
    def oracle(ids):
        x, (source, shift) = ids[1:-3], ids[-2:]
        assert ids[-3] == SEP
        assert len(set(x)) == len(x)
        shift -= 4 + symbols + max_shift
        assert 1 <= abs(shift) <= max_shift
        place = x.index(source) + shift
        assert place >= 0
        return x[place]

    return oracle


def needle(digits):
    key, ask = 4, 5

    def oracle(ids):
        at = len(ids) - 1 - ids[::-1].index(ask)
        name, given = ids[at + 1], ids[at + 2 :]
        places = [i for i, t in enumerate(ids) if t == key and ids[i + 1] == name]
        assert len(places) == 1
        told = ids[places[0] + 2 : places[0] + 2 + digits]
        assert given == told[: len(given)]
        return told[len(given)]

    return oracle


def back(places):
    return lambda ids: ids[len(ids) - 1 - places]


def index(modulus, symbols):
    return lambda ids: 4 + symbols + (len(ids) - 2) % modulus


UP_TO = {"max_size": 6, "test_size": 11, "samples": 3}
WINDOW = {"length": 20, "multiples": (1, 2), "samples": 3}

CASES = {
    "replace": ("replace", UP_TO, replace),
    "random_copy": ("random_copy", UP_TO, copy),
    "different_copy": ("random_copy", UP_TO | {"repeats": False}, copy),
    "copy_twice": ("copy_twice", UP_TO, copy_twice),
    "reverse": ("reverse", UP_TO, reverse),
    "sort": ("sort", UP_TO, sort),
    "parity": ("parity", UP_TO, running(2, lambda s, x: s ^ x, "every")),
    "parity_last": (
        "parity", UP_TO | {"ask": "last"}, running(2, lambda s, x: s ^ x, "last")
    ),
    "parity_scratchpad": (
        "parity", UP_TO | {"ask": "scratchpad"}, running(2, lambda s, x: s ^ x, "pad")
    ),
    "modular_sum": (
        "modular_sum", UP_TO, running(5, lambda s, x: (s + x) % 5, "every")
    ),
    "word_problem": ("word_problem", UP_TO, permutations(3, swaps=False)),
    "word_problem_s5_swaps": (
        "word_problem", UP_TO | {"group": "S5", "moves": "swaps"}, permutations(5, True)
    ),
    "addition": ("addition", UP_TO, addition("reversed", hints=False)),
    "addition_plain": ("addition", UP_TO | {"order": "plain"}, addition("plain", False)),
    "addition_hints": (
        "addition", UP_TO | {"index_hints": True}, addition("reversed", True)
    ),
    "addition_plain_hints": (
        "addition",
        UP_TO | {"index_hints": True, "order": "plain"},
        addition("plain", True),
    ),
    "flip_flop": ("flip_flop", WINDOW, flip_flop),
    "selective_counting": (
        "selective_counting",
        WINDOW | {"max_value": 3, "idle": 0.3, "reset": 0.1},
        selective_counting(1, 3),
    ),
    "selective_counting_3": (
        "selective_counting", WINDOW | {"variables": 3}, selective_counting(3, 9)
    ),
    "induction": ("induction", WINDOW, induction),
    "mqar": ("mqar", UP_TO, mqar),
    "mqar_overwritten": ("mqar", UP_TO | {"writes": 3}, mqar),
    "indirect_indexing": (
        "indirect_indexing", UP_TO | {"max_shift": 4}, indirect_indexing(64, 4)
    ),
    "passkey": ("passkey", WINDOW, needle(3)),
    "multi_needle": (
        "multi_needle", WINDOW | {"length": 40, "needles": 3, "asked": 2}, needle(3)
    ),
    "positional_probe": ("positional_probe", WINDOW, back(5)),
    "positional_probe_index": (
        "positional_probe", WINDOW | {"probe": "index"}, index(8, 16)
    ),
}  # fmt: skip
LABELLED = {"parity", "modular_sum", "word_problem", "word_problem_s5_swaps"} | {
    "positional_probe",
    "positional_probe_index",
}
"""Cases that ask for something else than the next token."""


@functools.cache
def evaluation_of(task):
    return task.evaluation(task.load())


def batch_of(task, seed, size):
    return jax.jit(lambda key: task.batch({}, key, size))(jax.random.key(seed))


def make(case):
    name, settings, oracle = CASES[case]
    return get_task(name)(**settings), oracle
