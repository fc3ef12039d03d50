"""Long algorithms: what repeats in them is found, compiled once, and has the bits of NumPy."""

from __future__ import annotations

import random
from functools import partial
from zlib import crc32

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="LLVM is not installed")

import mcfsim as mcf
from mcfsim.compile import folds, rolling
from mcfsim.compile.rolling import RepeatedBody, roll
from mcfsim.compile.tracing import record
from mcfsim.formats import get_format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.multiword.summation import dot2, dw_sum, kahan_sum, neumaier_sum, recursive_sum, sum_k
from mcfsim.random import RandomWords
from mcfsim.rounding import DETERMINISTIC
from tests.shared.algorithms import alike

pytestmark = [pytest.mark.slow, pytest.mark.costly("loops of a long text are compiled")]


def pairwise(ar, x):
    while len(x) > 1:
        x = (*(ar.add(a, b) for a, b in zip(x[::2], x[1::2], strict=False)), *x[len(x) - len(x) % 2 :])
    return x[0]


def halved(ar, x, factor=0.3):
    """Return a sum whose terms are halved, and its product with the first one."""
    total = x[0]
    for term in x[1:]:
        total = ar.add(ar.mul(total, factor), ar.abs(term))
    return ar.mul(total, x[0])


def names(count):
    return tuple(f"x{i}" for i in range(count))


SUMS = {
    "recursive": recursive_sum,
    "kahan": kahan_sum,
    "double word": dw_sum,
    "neumaier": neumaier_sum,
    "sum_3": partial(sum_k, k=3),
    "pairwise": pairwise,
    "halved": halved,
    "dot": lambda ar, x: dot2(ar, x, x[::-1]),
}


def arithmetics(fmt, mode="nearest_even", **options):
    words = RandomWords(2**40 + 3, step=5, stream=7) if mode == "stochastic" else None
    return [mcf.arithmetic(fmt, mode, random=words, compiled=x, **options) for x in (True, False)]


def terms(fmt, n, shape, seed=0, strange=0.0):
    """Return n terms, exponents spread; some of them special."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, *shape)) * 2.0 ** rng.integers(-5, 6, (n, *shape))
    special = rng.choice([np.nan, -np.nan, np.inf, -np.inf, -0.0, float(get_format(fmt).max)], x.shape)
    x = mcf.round_to(np.where(rng.random(x.shape) < strange, special, x), fmt)
    return tuple(x.astype(carrier_of(get_format(fmt))))


def unclean(x):
    """Return terms with codes of NaN whose fraction is full, to which what is added makes a number of it."""
    codes = [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001, 0x7FC10000, 0x7F810000, 0xFFFFFFF8, 0x7FC00000]
    x = [term.copy() for term in x]
    for place in (0, 1, 50):
        x[place].view(np.uint32)[0, :8] = codes
    return tuple(x)


#: What is made of 80 terms of shape (7, 30), special numbers among them.
GIVEN = {
    "as they are": lambda x: x,
    "large": lambda x: tuple(np.resize(term, (3, 450)) for term in x),
    "few": lambda x: x[:33],
    "unclean": unclean,
    "columns": lambda x: tuple(np.stack(x, axis=-1)[..., i] for i in range(len(x))),
    "of binary64": lambda x: tuple(term.astype(np.float64) for term in x),
    "big endian": lambda x: tuple(term.astype(">f4") for term in x),
    "broadcast": lambda x: (np.float32(2), *x[1:60], x[60][0], x[61][:, :1], *x[62:]),
    "all the same": lambda x: (x[0],) * len(x),
    "real scalars": lambda x: (0.1, *x[1:70], 3, *x[71:]),
    "no dimension": lambda x: tuple(term[0, 0] for term in x),
    "no elements": lambda x: tuple(term[:0] for term in x),
}
CASES = [
    *((name, mode, "as they are") for name in SUMS for mode in (*DETERMINISTIC, "stochastic")),
    *((name, "nearest_even", "unclean") for name in SUMS),
    *(("kahan", mode, given) for given in GIVEN for mode in ("nearest_even", "stochastic")),
]
USUAL = [("halved", "stochastic", "as they are"), ("sum_3", "nearest_even", "unclean")]
USUAL += [("kahan", "nearest_even", given) for given in ("large", "broadcast", "real scalars", "no elements")]


@pytest.mark.parametrize(
    ("name", "mode", "given"),
    [pytest.param(*x, marks=() if x in USUAL else pytest.mark.exhaustive) for x in CASES],
)
def test_sums_have_the_bits_of_numpy(name, mode, given, assert_same):
    fmt = ("bfloat16", "float16", "float8_e4m3fn", "tf32")[crc32(f"{name} {mode}".encode()) % 4]
    fmt = fmt if given == "as they are" else "bfloat16"
    x = GIVEN[given](terms(fmt, 80, (7, 30), strange=1e-3))
    compiled, plain = arithmetics(fmt, mode)
    alike(assert_same, *(ar.evaluate(SUMS[name], x) for ar in (compiled, plain)))
    assert compiled.random == plain.random
    assert given != "as they are" or roll(record(SUMS[name], fmt, mode, operands=(names(80),)))


@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
@pytest.mark.sampled(2, each=False)
def test_threads_share_the_blocks(mode, monkeypatch, assert_same):
    monkeypatch.setattr(folds, "_WIDEST", 512)  # of which there are five
    x = terms("bfloat16", 80, (2501,))
    for ar in arithmetics("bfloat16", mode, threads=3):
        alike(assert_same, kahan_sum(ar, x), kahan_sum(arithmetics("bfloat16", mode)[1], x))


@pytest.mark.parametrize("which", [0, 70, 79])
def test_a_term_that_is_no_value_is_named(which):
    x = list(terms("bfloat16", 80, (1500,)))
    x[which] = x[which].copy()
    x[which][1234] = 1 + 2**-20
    for text in (kahan_sum, lambda ar, x: ar.evaluate(lambda inner, y: kahan_sum(inner, y[2:]), x)):
        for ar in arithmetics("bfloat16"):
            with pytest.raises(ValueError, match=r"operand element \(1234,\)"):
                text(ar, tuple(x))


def test_numbers_that_change_between_calls_are_those_of_the_call(assert_same):
    x, (compiled, plain) = terms("bfloat16", 80, (200,)), arithmetics("bfloat16")
    for factor in (0.3, -0.0):
        assert_same(compiled.evaluate(halved, x, factor), plain.evaluate(halved, x, factor))
        assert_same(compiled.evaluate(halved, x, factor=factor), plain.evaluate(halved, x, factor))


@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
def test_texts_that_nest_their_results_otherwise_or_draw_more_are_told_apart(mode, assert_same):
    x, (compiled, plain) = terms("bfloat16", 80, (200,)), arithmetics("bfloat16", mode)
    for text in (
        recursive_sum,
        lambda ar, x: (recursive_sum(ar, x),),
        lambda ar, x: ar.round(recursive_sum(ar, x)),  # which at random takes words without effect
    ):
        alike(assert_same, compiled.evaluate(text, x), plain.evaluate(text, x))
        assert compiled.random == plain.random


# -- what repeats -------------------------------------------------------------------------------------------
FORMATS = {"bfloat16": "float8_e4m3fn", "float16": "bfloat16"}
UNARY, BINARY = ("neg", "abs", "sqrt", "round"), ("add", "sub", "mul")


def straight(steps, ar, x):
    """Carry out steps, each an operation, whether in the other format, and operands; return some results."""
    values, other = list(x), ar.like(get_format(FORMATS[str(ar.format)]), mcf.Rounding("toward_zero"))
    for operation, elsewhere, operands in steps:
        given = [values[i] if isinstance(i, int) else i for i in operands]
        if elsewhere:
            values.append(ar.round(other.add(*map(other.round, given))))
        else:
            values.append(getattr(ar, operation)(*given))
    return (*values[-3:], values[len(x) + len(steps) // 2])


def nearly_periodic(rng, inputs):
    """Draw a body, how it finds operands as it repeats, and then change a few steps of all."""
    body = []
    for _ in range(rng.randint(1, 5)):
        operation = rng.choice(UNARY + 3 * BINARY)
        wiring = []
        for _ in range(1 if operation in UNARY else 2):
            on = "on", rng.randrange(inputs), rng.randint(-2, 3)
            wiring.append(rng.choice([("back", rng.randint(1, 12)), on, 0.75]))
        if all(isinstance(x, float) for x in wiring):
            wiring[0] = "back", rng.randint(1, 4)
        body.append((operation, rng.random() < 0.1 and len(wiring) == 2, wiring))
    steps = []

    def found(x, count):
        if isinstance(x, float):
            return x
        return inputs + len(steps) - x[1] if x[0] == "back" else (x[1] + count * x[2]) % inputs

    for count in range(rng.randint(8, 60)):
        for operation, elsewhere, wiring in body:
            steps.append((operation, elsewhere, [found(x, count) for x in wiring]))
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(steps))
        operation, elsewhere, operands = steps[place]
        kind = rng.randrange(4)
        if kind == 0:
            steps[place] = rng.choice(UNARY if len(operands) == 1 else BINARY), elsewhere, operands
        elif kind == 1:
            steps[place] = operation, elsewhere, [rng.randrange(inputs + place) for _ in operands]
        elif kind == 2:
            steps.insert(place, steps[place])
        elif place + inputs + 13 < len(steps):
            del steps[place]
    for n, (_, _, operands) in enumerate(steps):
        operands[:] = [min(x, inputs + n - 1) if isinstance(x, int) else x for x in operands]
    return partial(straight, steps)


def interpreted(rolled, x, words):
    """Carry a rolled text out, one repetition after another, with no more memory than it is said to need."""
    recording, memory = rolled.recording, {}
    where = {number: ("input", number) for number in range(len(x))}
    memory.update({("input", number): (number, term) for number, term in enumerate(x)})

    def read(number):
        holds, value = memory[where[number]]
        assert holds == number, f"{number} was wanted when {holds} had taken its place"
        return value

    def write(number, place, value):
        where[number], memory[place] = place, (number, value)

    for part in rolled.parts:
        if isinstance(part, RepeatedBody):
            for row, (takes, makes) in enumerate(zip(part.takes, part.makes, strict=True)):
                draws = iter(part.draws[row] if part.draws.size else ())
                results = part.body.run(Drawing(words, draws), *map(read, takes))
                made = zip(makes, part.lasting, results, strict=True)
                for place, (number, lasting, value) in enumerate(made):
                    write(int(number), (part.start, place, row % lasting), value)
        else:
            given = [read(code) if code >= 0 else None for code in recording.codes(part)]
            step = recording.step(part, given, "result", recording.draws[part])
            ar = Drawing(words, iter(recording.draws[part : part + 1]), step.result.format, step.rounding)
            write(len(x) + part, part, getattr(ar, step.operation)(*step.operands))
    return tuple(map(read, rolled.results))


class Drawing:
    """The arithmetics of a program; those that draw take the words of the operations that they are told."""

    def __init__(self, words, draws, fmt=None, rounding=None):
        self.words, self.draws, self.fmt, self.rounding = words, draws, fmt, rounding

    def __call__(self, fmt, rounding):
        return Drawing(self.words, self.draws, fmt, rounding)

    def __getattr__(self, operation):
        rounding, words = self.rounding, None
        if rounding.stochastic and operation in ("neg", "abs"):
            rounding = "nearest_even"  # nothing is rounded
        elif rounding.stochastic:
            words = self.words.of(int(next(self.draws)))
        return getattr(mcf.arithmetic(self.fmt, rounding, random=words, compiled=False), operation)


@pytest.mark.parametrize("mode", ["nearest_even", "up", "stochastic"])
@pytest.mark.sampled(3, each=False)
def test_texts_that_nearly_repeat_are_rolled_up_as_they_are(mode, assert_same):
    found = 0
    for seed in range(40):
        rng, inputs = random.Random(f"{mode} {seed}"), 32
        text = nearly_periodic(rng, inputs)
        rolled = roll(record(text, "bfloat16", mode, operands=(names(inputs),)))
        if rolled is None:
            continue
        found += 1
        x = terms("bfloat16", inputs, (4,), seed)
        plain = arithmetics("bfloat16", mode)[1]
        words = plain.random
        expected = plain.evaluate(text, x)
        if mode == "stochastic":
            assert plain.random == words.of(rolled.recording.drawn[0])
        alike(assert_same, interpreted(rolled, x, words), expected)
    assert found > 15


@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.sampled(10, each=False)
def test_texts_that_nearly_repeat_have_the_bits_of_numpy(seed, mode, assert_same):
    x = terms("bfloat16", 40, (1100,), seed, strange=1e-3)
    for number in range(100):
        text = nearly_periodic(random.Random(f"{seed} {number}"), len(x))
        rolled = roll(record(text, "bfloat16", mode, operands=(names(len(x)),)))
        if rolled is not None and 2 < len(rolled.parts) < 6:
            break
    compiled, plain = arithmetics("bfloat16", mode)
    alike(assert_same, compiled.evaluate(text, x), plain.evaluate(text, x))
    assert compiled.random == plain.random


def test_what_does_not_repeat_is_not_rolled_up_and_a_sum_is_to_one_addition():
    rng = random.Random(0)
    steps = [(rng.choice(BINARY), False, [rng.randrange(40 + n) for _ in range(2)]) for n in range(200)]
    assert roll(record(partial(straight, steps), "bfloat16", operands=(names(40),))) is None
    (part,) = roll(record(recursive_sum, "bfloat16", operands=(names(1000),))).parts
    assert len(part.body.steps) == 1
    assert part.takes.tolist() == [[0, 1], *([999 + n, n + 1] for n in range(1, 999))]
    assert part.lasting == (2,)


# -- what does not repeat ------------------------------------------------------------------------------------
def wandering(seed, count, size):
    """Return a text of steps on operands at random, which repeats nothing: each takes the last result."""
    rng = random.Random(seed)
    steps = [(rng.choice(BINARY), rng.randrange(size + n)) for n in range(count)]

    def text(ar, x):
        values, last = list(x), x[0]
        for operation, other in steps:
            last = getattr(ar, operation)(last, values[other])
            values.append(last)
        return last, values[size + count // 2]

    return text


PIECES = [
    *(("bfloat16", mode) for mode in ("nearest_even", "up", "stochastic")),
    *(("tf32", "toward_zero"), ("posit16", "nearest_even")),
]
PIECES = [("int8", "nearest_away"), *(pytest.param(*x, marks=pytest.mark.exhaustive) for x in PIECES)]


@pytest.mark.parametrize(("fmt", "mode"), PIECES)
@pytest.mark.parametrize("count", [5, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_a_long_text_that_repeats_nothing_is_several_loops_with_the_bits_of_numpy(
    fmt, mode, count, assert_same
):
    text, x = wandering(f"{fmt} {mode}", 300, count), terms(fmt, count, (1100,), 1, strange=1e-3)
    rolled = roll(record(text, fmt, mode, operands=(names(count),)))
    sizes = [len(part.body.steps) for part in rolled.repeated()]
    assert len(sizes) > 5
    assert max(sizes) <= rolling._PIECE
    compiled, plain = arithmetics(fmt, mode)
    alike(assert_same, compiled.evaluate(text, x), plain.evaluate(text, x))
    assert compiled.random == plain.random


def test_rows_of_values_that_are_used_up_are_given_to_others():
    rng = random.Random(1)
    steps = [(rng.choice(BINARY), rng.randrange(8)) for _ in range(2000)]

    def chain(ar, x):
        last = x[0]
        for operation, other in steps:
            last = getattr(ar, operation)(last, x[other])
        return last

    rolled = roll(record(chain, "bfloat16", operands=(names(8),)))
    place, rows = folds._placed(rolled, 8 + len(rolled.recording.steps))
    made = sum(part.makes.size for part in rolled.repeated())
    assert len(rolled.parts) > 50
    assert made > 50
    assert rows < 10
    # No part writes to a row that it reads, or that a later part still reads.
    last = {int(x): n for n, part in enumerate(rolled.parts) for x in part.takes.ravel()}
    last |= dict.fromkeys(rolled.results, len(rolled.parts))
    held = {}
    for n, part in enumerate(rolled.parts):
        for x in part.makes.ravel().tolist():
            other = held.get(place[x])
            assert other is None or last.get(other, -1) < n
            held[place[x]] = x


def test_a_part_that_is_too_long_to_compile_is_numpys_and_the_reason_is_given(monkeypatch, assert_same):
    monkeypatch.setattr("mcfsim.compile.choice.MOST", 20)
    text, x = wandering("long", 30, 5), terms("bfloat16", 5, (300,), 1)
    compiled, plain = arithmetics("bfloat16")
    with pytest.warns(RuntimeWarning, match="text has more than 20 operations .* NumPy does the work"):
        found = compiled.evaluate(text, x)
    alike(assert_same, found, plain.evaluate(text, x))
