"""Expansions that grow: exact and nonoverlapping for every operand of short formats, in integers."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.multiword.shewchuk import expansion_sum, fast_expansion_sum, grow_expansion, merge, vec_sum
from mcfsim.oracle import round_fraction
from tests.multiword.words import fractions, integers, unbounded
from tests.shared.refusals import check, refusals, refused

NO_BIT = 2**62  # in place of the lowest set bit of zero


def numbers(precision, binades):
    """Return zero and all numbers of either sign from ``2**(p - 1)`` on, in so many binades, as integers."""
    significands = np.arange(2 ** (precision - 1), 2**precision)
    positive = np.concatenate([significands << e for e in range(binades)])
    return np.concatenate([[0], positive, -positive])


def nonoverlapping(h, factor=1):
    """Return where each nonzero component is below the next's lowest set bit; ``factor=2``: nonadjacent."""
    holds, bit = True, NO_BIT
    for x in reversed(h):
        holds = holds & (factor * np.abs(x) < bit)
        bit = np.where(x == 0, bit, x & -x)
    return holds


def expansions(precision, binades):
    """Return all nonoverlapping expansions of two components, smallest first, zeros anywhere."""
    values = numbers(precision, binades)
    pairs = tuple(part.ravel() for part in np.meshgrid(values, values, indexing="ij"))
    there = nonoverlapping(pairs)
    return tuple(part[there] for part in pairs)


def against_each_other(e, f):
    """Return every expansion of the one kind with every one of the other, as floats, and the exact sums."""
    e = tuple(part[:, None] for part in e)
    exact = sum(e) + sum(f)
    return tuple(part.astype(float) for part in e), tuple(part.astype(float) for part in f), exact


def whole(h):
    """Return components as integers, exactly."""
    return tuple(integers(part, 0) for part in h)


def test_the_kinds_of_expansions_are_those_of_the_definitions():
    def kinds(*components):
        h = tuple(map(np.int64, components))
        return bool(nonoverlapping(h)), bool(nonoverlapping(h, 2))

    assert kinds(0b1, 0b1100) == kinds(0, 5, 0) == (True, True)
    assert kinds(0b11, 0b1100) == kinds(0b10, 0, -0b100) == (True, False)  # adjacent
    assert kinds(0b10, 0b101) == kinds(0b1000, 0b1) == (False, False)


#: The algorithm, the binades of the expansion, and the other operand.
SUMS = {
    "grow_expansion": (
        lambda ar, e, f: grow_expansion(ar, e, *f),
        {2: 11, 3: 11, 4: 8},
        lambda precision, _: (numbers(precision, 13 if precision < 4 else 10),),
    ),
    "expansion_sum": (expansion_sum, {3: 6, 4: 5}, lambda _, every: every),
}


@pytest.mark.parametrize("tie", ["nearest_even", "nearest_away"])
@pytest.mark.parametrize(("name", "precision"), [(name, p) for name in SUMS for p in SUMS[name][1]])
@pytest.mark.sampled(5)
def test_sums_of_any_expansions_are_exact_and_nonoverlapping(name, precision, tie):
    algorithm, binades, other = SUMS[name]
    every = expansions(precision, binades[precision])
    added = other(precision, every)
    e, f, exact = against_each_other(every, added)
    h = whole(algorithm(mcf.arithmetic(unbounded(precision), tie), e, f))
    assert exact.size > 40_000
    assert np.array_equal(sum(h), exact)
    assert nonoverlapping(h).all()
    nonadjacent = nonoverlapping(every, 2)[:, None] & nonoverlapping(added, 2)
    assert nonoverlapping(h, 2)[nonadjacent].all() == (tie == "nearest_even")


@pytest.mark.parametrize("algorithm", [vec_sum, fast_expansion_sum])
def test_vector_sums_give_every_partial_sums_error(algorithm):
    """Fast2Sum begins the fast one: its terms come in order of magnitude."""
    fmt, x = unbounded(4), np.random.default_rng(3).choice(numbers(4, 9), (6, 300))
    if algorithm is fast_expansion_sum:
        x = np.take_along_axis(x, np.argsort(np.abs(x), axis=0), axis=0)
    h = algorithm(mcf.arithmetic(fmt), tuple(x.astype(float)))
    for column, found in zip(x.T.tolist(), fractions(h), strict=True):
        total, errors = Fraction(column[0]), []
        for number in column[1:]:
            rounded = Fraction(round_fraction(total + number, fmt))
            errors.append(total + number - rounded)
            total = rounded
        assert found == (*errors, total)


def test_merging_sorts_by_magnitude_and_changes_nothing():
    parts = [0.0, -0.0, 1.0, -1.0, 2.0, np.inf, -3.0]
    for chosen in itertools.permutations(parts, 3):
        merged = merge(chosen[:2], chosen[2:])
        assert [abs(x) for x in merged] == sorted(map(abs, chosen))
        assert sorted(map(repr, map(float, merged))) == sorted(map(repr, chosen))
    assert np.isnan(merge((np.nan,), (1.0,))[1])
    assert [part.tolist() for part in merge((np.float32([3, 1]),), (2.0,))] == [[2, 1], [3, 2]]


@pytest.mark.parametrize("bad", [np.inf, np.nan, 448.0])
def test_infinity_nan_and_overflow_show_as_nan(bad):
    h = grow_expansion(mcf.arithmetic("float8_e4m3fn"), (1.0, 2.0, 256.0), bad)
    assert np.isnan(h[-2:]).all()


def test_an_empty_expansion_is_zero():
    ar = mcf.arithmetic("bf16")
    assert grow_expansion(ar, (), 3.0) == (3.0,)
    assert expansion_sum(ar, (), ()) == ()
    assert expansion_sum(ar, (), (1.0, 256.0)) == (1.0, 256.0) == expansion_sum(ar, (1.0, 256.0), ())


AR = mcf.arithmetic("bf16")


@refusals(
    refused(TypeError, "x must be a tuple of values, not of type ndarray", vec_sum, (AR, np.ones((2, 3)))),
    refused(TypeError, "not of tuples", vec_sum, (AR, ((1.0, 2.0), (3.0, 4.0)))),
    refused(ValueError, "x has length 0; at least 1", vec_sum, (AR, ())),
    refused(TypeError, "e must be a tuple", grow_expansion, (AR, np.ones(3), 1.0)),
    refused(TypeError, "f must be a tuple", expansion_sum, (AR, (1.0,), 1.0)),
    refused(ValueError, "g has length 1; at least 2", fast_expansion_sum, (AR, (1.0,))),
    refused(TypeError, "e must be a tuple", merge, ([1.0], (2.0,))),
    refused(ValueError, "f has length 0", merge, ((1.0,), ())),
)
def test_what_is_no_expansion_is_refused(rows):
    check(rows)
