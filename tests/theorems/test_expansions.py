"""Expansions and long sums: the predicates that they are made of, and errors in units of their bounds."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import get_format
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS
from mcfsim.theorems.check import Check
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.logic import bits
from mcfsim.theorems.selection import Selection

pytestmark = pytest.mark.slow


def lowest_bit(x):
    n, d = float(x).as_integer_ratio()
    return Fraction(n & -n, d)


def nonoverlapping(parts, factor=1):
    pairs = itertools.combinations([part for part in parts if part], 2)
    return all(factor * abs(Fraction(small)) < lowest_bit(large) for small, large in pairs)


def strongly(parts):
    parts = [part for part in parts if part]
    adjacent = [
        (i, j)
        for (i, small), (j, large) in itertools.combinations(enumerate(parts), 2)
        if 2 * abs(Fraction(small)) >= lowest_bit(large)
    ]
    ends = [end for pair in adjacent for end in pair]
    powers = all(abs(Fraction(parts[i])) == lowest_bit(parts[i]) for i in ends)
    return nonoverlapping(parts) and len(set(ends)) == len(ends) and powers


def test_predicates_on_all_triples_of_some_numbers():
    numbers = [0.0, 1.0, -1.5, 2.0, 3.0, 4.0, -6.0, 8.0, 7.0, 0.25, -24.0, 32.0]
    triples = list(itertools.product(numbers, repeat=3))
    columns = [np.array(column, np.float32) for column in zip(*triples, strict=True)]
    for predicate, oracle in (
        (bits.nonoverlapping, nonoverlapping),
        (lambda parts: bits.nonoverlapping(parts, 2), lambda parts: nonoverlapping(parts, 2)),
        (bits.strongly_nonoverlapping, strongly),
    ):
        assert predicate(columns).tolist() == [oracle(triple) for triple in triples]
    rng = np.random.default_rng(1)
    x = np.ldexp(rng.integers(1, 2**53, 3000) >> rng.integers(0, 52, 3000), rng.integers(-1074, 900, 3000))
    x = np.array([*x[x != 0], *-x[x != 0], 2.0**-1074, 3 * 2.0**-1074, 2.0**1023])
    assert bits.low_bit(x).tolist() == [float(lowest_bit(item)) for item in x]
    assert bits.low_bit(np.float32([0.0, -0.0, 6.0])).tolist() == [np.inf, np.inf, 2.0]


def gamma(n, p):
    return Fraction(n, 2**p - n)


#: What the bounds of sums of 16 terms are, for the exact sum s and the sum S of magnitudes; u = 2**-p.
BOUNDS = {
    "recursive_sum": lambda p, s, size: 15 * size / 2**p,
    "kahan_sum": lambda p, s, size: (Fraction(2, 2**p) + Fraction(64, 4**p)) * size,
    "neumaier_sum": lambda p, s, size: abs(s) / 2**p + gamma(15, p) ** 2 * size,
    "sum_k": lambda p, s, size: (
        (Fraction(1, 2**p) + 3 * gamma(15, p) ** 2) * abs(s) + gamma(30, p) ** 3 * size
    ),
    "dw_sum": lambda p, s, size: Fraction(30, 4**p) * (1 + Fraction(2, 4**p)) ** 15 * size,
}


@pytest.mark.parametrize("name", BOUNDS)
def test_errors_of_sums_are_measured_in_units_of_their_bounds(name):
    check = Check(THEOREMS[name], get_format("bfloat16"), Rounding(), Selection(samples=200))
    domain = check.domain()
    ((_, blocks),) = domain.blocks(0, domain.size)
    trial = try_block(check.theorem, BlockArithmetic(domain.format, Rounding(), "exact"), blocks)
    measured = check.theorem.claim.measure(trial)
    some = measured[np.arange(trial.size)[::-1]]
    for i in range(trial.size):
        terms = [Fraction(float(block[i])) for block in blocks]
        total = sum(terms)
        parts = trial.results if name == "dw_sum" else trial.results[:1]
        error = sum(Fraction(float(part[i])) for part in parts) - total
        right = error / BOUNDS[name](domain.format.precision, total, sum(map(abs, terms)))
        for found, place in ((measured, i), (some, trial.size - 1 - i)):
            assert found.error.fraction(place) / found.reference.fraction(place) == right
            assert abs(Fraction(float(found.ratio[place])) - right) <= abs(right) / 2**47
