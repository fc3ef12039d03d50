"""Cells that are said to be equivalent: hypotheses, claim and error are the same in them, case by case."""

import itertools
import random
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import DETERMINISTIC, Mode, Overflow, Rounding, Underflow
from mcfsim.theorems import THEOREMS, hypothesis, reach
from mcfsim.theorems.cells import grouped
from mcfsim.theorems.claims import Claim
from mcfsim.theorems.domain import _reduces, _scales, cover
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.logic import (
    LARGEST,
    Bound,
    Exponent,
    Finite,
    HasBits,
    IsMultiple,
    LowBit,
    OfFormat,
    Result,
    Ulp,
    Within,
    Word,
    equal,
)
from mcfsim.theorems.reach import asked
from mcfsim.theorems.statement import Scaling
from mcfsim.theorems.symmetries import outcome
from tests.theorems.drawn import FORMATS, statement
from tests.theorems.trying import PAIR, add, class_of, mine, on_core

pytestmark = pytest.mark.slow

REDUCED = [
    name
    for name, theorem in THEOREMS.items()
    if theorem.range == "bounded" and theorem.components == len(theorem.operands) == 2
    if theorem.scaling in (Scaling.COMMON, Scaling.EACH)
]


@lru_cache
def numbers_by_class(fmt):
    """Return the numbers of a format by class, each one's class, and where each is in other classes, scaled.

    The last is an array by class and number: where the number lies if it is scaled into the class, or -1.
    """
    classes = range(fmt.emin - 1, fmt.emax + 1)
    tables = [class_of(fmt, e) for e in classes]
    values, ends = np.concatenate(tables), np.cumsum([0, *map(len, tables)])
    of = np.repeat(np.arange(len(tables)), np.diff(ends))
    scaled = np.full((len(tables), values.size), -1)
    for c, table in enumerate(tables):
        there = np.ldexp(values, c - of)
        at = np.minimum(np.searchsorted(table, there), len(table) - 1)
        scaled[c] = np.where(table[at] == there, ends[c] + at, -1)
        scaled[c, ends[c] : ends[c + 1]] = range(ends[c], ends[c + 1])  # both zeros are here
    return values, of, scaled


def unlike(theorem, fmt, rounding, places=None):
    """Return two cells of one number whose cases differ, and how many numbers and cells there are.

    Every case of a cell is compared with that of the first cell of its number, scaled.
    """
    scales = _scales(theorem, fmt, rounding)
    if not theorem.possible(fmt, rounding) or not _reduces(theorem, scales):
        return None
    places = asked(theorem, scales).places if places is None else places
    pairs, number, _ = grouped(np.arange(fmt.emin - 1, fmt.emax + 1), fmt, scales, places)
    values, of, scaled = numbers_by_class(fmt)
    with np.errstate(all="ignore"):
        given = [x.ravel() for x in np.meshgrid(values, values, indexing="ij")]
        trial = try_block(theorem, BlockArithmetic(fmt, rounding, "exact"), given)
        found = np.stack([np.broadcast_to(x, trial.size) for x in outcome(theorem, trial)])
    _, first, cell = np.unique(number, return_index=True, return_inverse=True)
    to = np.empty((2, len(scaled), len(scaled)), int)
    x, y = pairs - fmt.emin + 1
    to[:, x, y] = pairs[:, first[cell]] - fmt.emin + 1
    each = np.arange(of.size)
    a, b = scaled[to[0][of[:, None], of], each[:, None]], scaled[to[1][of[:, None], of], each]
    apart = (found != found[:, (a * of.size + b).ravel()]).any(axis=0) | ((a < 0) | (b < 0)).ravel()
    i, j = np.divmod(np.flatnonzero(apart), of.size)
    x, y = np.unique(np.stack([of[i], of[j]]), axis=1)
    problems = np.stack([x, y, *to[:, x, y]]).T + fmt.emin - 1
    return problems.reshape(-1, 2, 2).tolist(), first.size, number.size


ALL = [*itertools.product(REDUCED, range(len(FORMATS)), DETERMINISTIC)]
EXHAUSTIVE = [pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, 8)]


@pytest.mark.parametrize("part", [0, *EXHAUSTIVE])
def test_equivalent_cells_of_the_catalogue_are_alike(part):
    draw, tried, fewer = random.Random(part), 0, 0.0
    some = draw.sample(ALL, 18) if part == 0 else ALL[part - 1 :: 7]
    for name, place, mode in some:
        theorem, fmt = THEOREMS[name], FORMATS[place]
        for underflow in {theorem.underflow, draw.choice(list(Underflow))}:
            rounding = Rounding(
                mode, overflow=draw.choice([Overflow.IEEE, Overflow.SATURATE]), underflow=underflow
            )
            try:
                found = unlike(theorem, fmt, rounding)
            except UnsupportedFormatError:
                continue
            if found is not None:
                problems, numbers, cells = found
                assert not problems, (name, fmt, rounding, problems[:3])
                tried, fewer = tried + 1, fewer + numbers / cells
    assert tried > (25 if part else 12)
    assert fewer / tried < 0.6


def test_statements_of_the_catalogue_can_be_read():
    """All but those that ask for a unit in the last place of a sum, which cancellation makes subnormal."""
    fmt, unread = Format("", precision=5, emin=-20, emax=20), set()
    for name in REDUCED:
        theorem = THEOREMS[name]
        if (mode := min(theorem.modes)) is not Mode.STOCHASTIC:
            scales = _scales(theorem, fmt, Rounding(mode))
            unread |= {name} if reach._Reader(theorem, scales).unread else set()
    assert unread == {"add_error_representable"}


# -- statements at random -----------------------------------------------------------------------------------
def statements(draw, count):
    """Yield statements that scale and can be read, each with a format and a rounding."""
    while count:
        theorem, fmt, rounding = statement(draw)
        try:
            scales = _scales(theorem, fmt, rounding)
            with np.errstate(all="ignore"):
                one = np.ones(1, np.float32)
                outcome(theorem, try_block(theorem, BlockArithmetic(fmt, rounding, "exact"), [one, one]))
        except ValueError:  # it does not scale, or cannot be judged
            continue
        if scales is None or not _reduces(theorem, scales):
            continue
        if reach._Reader(theorem, scales).unread or not (places := asked(theorem, scales).places):
            continue
        count -= 1
        yield theorem, fmt, rounding, places


A, B, R = Word("a"), Word("b"), Result(0)
PRODUCTS = {
    (lambda ar, a, b: ar.mul(a, b)): (R, A * B),
    (lambda ar, a, b: ar.div(a, b)): (R * B, A),
    (lambda ar, a, b: ar.mul(ar.mul(a, b), a)): (R, A * B * A),
}
SUMS = (Exponent(A) + Exponent(B), Exponent(A) - Exponent(B), abs(Exponent(A) - Exponent(B)), Exponent(R))


def _vanished(ar, a, b):
    return ar.sub(ar.div(ar.mul(a, 2.0**-12), 2.0**-12), a)


def typical():
    """Yield statements on single operations, in every mode and by every policy, and on exponents."""
    fmt = FORMATS[0]
    yield mine(next(iter(PRODUCTS)), Claim(R <= A * B), PAIR, scaling="each"), FORMATS[1], Rounding()
    for text, (found, exact) in PRODUCTS.items():
        for about in (found <= exact, equal(found, exact), Within(found - exact, exact, Bound(1, 1))):
            for options in itertools.product(DETERMINISTIC, (Overflow.IEEE, Overflow.SATURATE), Underflow):
                mode, overflow, underflow = options
                rounding = Rounding(mode, overflow=overflow, underflow=underflow)
                yield mine(text, Claim(about), PAIR, scaling="each"), fmt, rounding
    for form, number in itertools.product(SUMS, range(-12, 9, 4)):
        bound = OfFormat("some", lambda *_, number=number: number)
        for about in (form <= bound, form < bound, equal(form, bound)):
            yield mine(next(iter(PRODUCTS)), Claim(about), PAIR, scaling="each"), fmt, Rounding()
    for number in range(-8, 8):  # what is left of a number that vanishes is not near it
        bound = OfFormat("some", lambda *_, number=number: Fraction(2) ** number)
        yield mine(_vanished, Claim(abs(R) <= bound), PAIR, scaling="each"), fmt, Rounding()


def first_unlike(count):
    """Return the first statement, typical or random, with cells that differ, and how many are not alike.

    With few random ones, few typical ones are tried.
    """
    tried = everything = 0
    known = itertools.islice(typical(), 0, None, 1 if count > 99 else 17)
    some = (given[:3] for given in statements(random.Random(count), count))
    for theorem, fmt, rounding in itertools.chain(known, some):
        problems, numbers, cells = unlike(theorem, fmt, rounding)
        if problems:
            return f"{theorem.statement} {fmt} {rounding}: {problems[:3]}", tried, everything
        tried, everything = tried + numbers, everything + cells
    return None, tried, everything


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.exhaustive
def test_equivalent_cells_of_random_statements_are_alike(count):
    wrong, tried, everything = first_unlike(count)
    assert wrong is None
    assert tried < 0.9 * everything


@pytest.mark.parametrize("count", [16, pytest.param(500, marks=pytest.mark.exhaustive)])
def test_what_a_statement_asks_is_needed(count):
    """Without it, cells would be called equivalent that differ: this is what the tests above would find."""
    found = 0
    for theorem, fmt, rounding, _ in statements(random.Random(7), count):
        problems, *_ = unlike(theorem, fmt, rounding, places=[])
        found += bool(problems)
    assert found > count / 5


@pytest.mark.parametrize("name", ["_against", "_where_value", "_multiples"])
@pytest.mark.costly("some altered readers need many statements to be found")
def test_a_reader_that_decides_too_much_is_found(name, monkeypatch):
    monkeypatch.setattr(reach, name, lambda *given: np.full(given[-1].exponents.shape[1], -1))
    assert any(unlike(*given[:3])[0] for given in statements(random.Random(1), 300))


def test_an_exponent_of_what_may_underflow_is_asked_where_it_is():
    """Of zero it is a constant; then it does not move with the operands."""
    about = Claim(Exponent(Result(0)) - Exponent(Word("a")) <= OfFormat("-12", lambda *_: -12))
    theorem, fmt = mine(lambda ar, a, b: ar.mul(a, b), about, PAIR, scaling="each"), FORMATS[0]
    places = asked(theorem, _scales(theorem, fmt, Rounding())).places
    assert unlike(theorem, fmt, Rounding())[0] == []
    assert unlike(theorem, fmt, Rounding(), [place for place in places if place.func is not reach._normal])[0]


@pytest.mark.parametrize("short", [A, B])
def test_a_pair_with_a_significand_that_its_binade_lacks_stands_for_no_other(short):
    """Of 1.5 and 1 in the last two binades, and of 1 and 1.5, neither can be scaled into the other."""
    one, fmt = OfFormat("1", lambda *_: 1), Format("", precision=2, emin=-14, emax=0, specials="fn")
    about = Claim(~equal(abs(A * B), Fraction(3, 4)) | HasBits(short, one))
    theorem = mine(lambda ar, a, b: ar.mul(a, b), about, PAIR, scaling="each")
    assert on_core(theorem, fmt, "nearest_even").violations


def _sums_of_errors(ar, a, b):
    """Return what is left of a number after three sums with b, and its sum with b."""
    for _ in range(3):
        a = ar.sub(ar.add(a, b), a)
    return ar.add(a, b), a


def test_a_directed_sum_tells_operands_that_are_far_apart():
    """The last sum is two steps from its first term, of five bits, unless b is far below a."""
    about, far = Claim(Result(1) * Fraction(9, 8) <= R), hypothesis((B > 0) & (B <= A) & (Result(1) > 0))
    theorem = mine(_sums_of_errors, about, PAIR, where=[far], scaling="common", modes=["up"])
    fmt = Format("", precision=5, emin=-26, emax=2)
    assert on_core(theorem, fmt, "up").violations


#: Numbers of a format of three bits that are far apart, and far from the ends of its range.
APART = Fraction(5, 4) * 2**16, Fraction(5, 4) / 2**16
#: A power of two, and a number of the last binade.
FAR, NEAR_LARGEST = (OfFormat("far", lambda *_, x=x: x) for x in (2**12, Fraction(5, 4) * 2**24))
#: What cannot be read, and holds.
UNREADABLE = (LowBit(R) <= abs(R)) | equal(R, 0) | ~Finite()


@pytest.mark.parametrize(
    ("said", "scaling"),
    [
        (~(equal(A, APART[0]) & equal(B, APART[1])), "common"),
        ((abs(A) <= 2**16) | ~equal(A * B, Fraction(25, 16)), "common"),
        ((abs(A) <= 2**14 * abs(B)) | equal(B, 0), "common"),
        ((abs(A) >= Fraction(1, 2**14) * abs(B)) | equal(A, 0), "common"),
        ((Exponent(A) - Exponent(B) <= 20) | equal(A, 0) | equal(B, 0), "common"),
        ((abs(A) * Fraction(1, 2**6) <= 2**6 * abs(B)) | equal(B, 0), "common"),
        (~IsMultiple(A, Ulp(B) * FAR) | equal(A, 0) | equal(B, 0), "common"),
        ((abs(B) * 2**8 > LARGEST) | ~equal(abs(A), NEAR_LARGEST) | equal(B, 0), "common"),
        (~(equal(A, APART[0]) & equal(B, APART[1])) & UNREADABLE, "common"),
        (~(equal(A, APART[0]) & equal(B, APART[0] / 4)) & UNREADABLE, "each"),
        (~((Exponent(A) >= 16) & equal(Exponent(B), -6)) & UNREADABLE, "each"),
    ],
)
@pytest.mark.sampled(2)
def test_pairs_far_apart_are_left_out_only_if_nothing_is_asked_of_them(said, scaling):
    fmt = Format("", precision=3, emin=-24, emax=24)
    algorithm = add if scaling == "common" else lambda ar, a, b: ar.mul(a, b)
    theorem = mine(algorithm, Claim(said), PAIR, scaling=scaling)
    core = cover(theorem, fmt, Rounding(), few=0)
    assert core.covers
    assert core.reductions
    assert on_core(theorem, fmt, "nearest_even").violations
