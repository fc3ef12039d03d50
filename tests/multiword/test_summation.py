"""Sums of many terms: their bits against algorithms on fractions, and where compensation ends.

Their bounds are theorems of the catalogue: see tests/theorems.
"""

from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS, Format
from mcfsim.multiword.summation import dot2, dw_sum, kahan_sum, neumaier_sum, recursive_sum, sum_k
from mcfsim.oracle import round_fraction
from tests.multiword.words import fractions
from tests.oracle.operands import label
from tests.shared.refusals import check, refusals, refused

BF16 = FORMATS["bfloat16"]
P3, P5 = (Format(precision=p, emin=-60, emax=60) for p in (3, 5))


# -- algorithms on fractions, for sums that stay in range ------------------------------------------------
def recursive_text(rn, x):
    total = x[0]
    for term in x[1:]:
        total = rn(total + term)
    return total


def kahan_text(rn, x):
    s, c = x[0], Fraction(0)
    for term in x[1:]:
        corrected = rn(term - c)
        before, s = s, rn(s + corrected)
        c = rn(rn(s - before) - corrected)
    return s, c


def neumaier_text(rn, x):
    """As Neumaier has it: the larger number is subtracted from the sum."""
    s, c = x[0], Fraction(0)
    for term in x[1:]:
        t = rn(s + term)
        large, small = (s, term) if abs(s) >= abs(term) else (term, s)
        c = rn(c + rn(rn(large - t) + small))
        s = t
    return rn(s + c)


def sum_k_text(rn, x, k):
    """With the errors of additions as what they are, exactly."""
    for _ in range(k - 1):
        partial = [x[0]]
        for term in x[1:]:
            partial.append(rn(partial[-1] + term))
        x = [partial[i] + x[i + 1] - partial[i + 1] for i in range(len(x) - 1)] + partial[-1:]
    return recursive_text(rn, x)


def dw_text(rn, x):
    high, low = x[0], Fraction(0)
    for term in x[1:]:
        s = rn(high + term)
        low = rn(low + (high + term - s))
        high, low = rn(s + low), s + low - rn(s + low)
    return high, low


def dot2_text(rn, x, y):
    total = rn(x[0] * y[0])
    errors = x[0] * y[0] - total
    for a, b in zip(x[1:], y[1:], strict=True):
        product, before = rn(a * b), total
        total = rn(before + product)
        errors = rn(errors + rn((before + product - total) + (a * b - product)))
    return rn(total + errors)


def passes(k):
    """Return `sum_k` for one k, and its text."""
    return lambda ar, x: sum_k(ar, x, k), lambda rn, x: sum_k_text(rn, x, k)


ALGORITHMS = {
    "recursive_sum": (recursive_sum, recursive_text),
    "kahan_sum": (kahan_sum, kahan_text),
    "neumaier_sum": (neumaier_sum, neumaier_text),
    "dw_sum": (dw_sum, dw_text),
    **{f"sum_{k}": passes(k) for k in (1, 2, 4)},
    # A product of some terms with others.
    "dot2": (lambda ar, x: dot2(ar, x, x[::-1]), lambda rn, x: dot2_text(rn, x, x[::-1])),
}


def drawn(fmt, n, columns, seed, binades=12):
    """Return n terms of either sign, as arrays, their exponents spread over some binades."""
    rng, p = np.random.default_rng(seed), fmt.precision
    significands = rng.integers(2 ** (p - 1), 2**p, (n, columns)) * rng.choice([-1.0, 1.0], (n, columns))
    x = np.ldexp(significands, rng.integers(0, binades, (n, columns)) - p)
    return tuple(np.where(rng.random((n, columns)) < 0.05, 0.0, x))


def as_tuple(x):
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize("fmt", [P3, P5, BF16], ids=label)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_sums_are_those_of_texts_on_fractions(name, fmt):
    algorithm, text = ALGORITHMS[name]
    for n in (1, 2, 3, 15):
        x = drawn(fmt, n, 6, seed=n)
        found = as_tuple(algorithm(mcf.arithmetic(fmt), x))
        expected = [as_tuple(text(lambda y: Fraction(round_fraction(y, fmt)), row)) for row in fractions(x)]
        assert fractions(tuple(np.broadcast_to(part, 6) for part in found)) == expected


def test_stochastic_sums_are_additions_that_draw_one_after_another(assert_same):
    x = drawn(BF16, 9, 300, seed=6)
    random = mcf.RandomWords(4)
    total = x[0]
    for place, term in enumerate(x[1:]):
        exact = total.astype(np.float64) + term
        total = mcf.round_to(exact, BF16, "stochastic", random=mcf.RandomWords(4).of(place))
    found = recursive_sum(mcf.arithmetic(BF16, "stochastic", random=random), x)
    assert_same(found, total)


# -- where compensation ends ------------------------------------------------------------------------------
@pytest.mark.slow
def test_each_pass_over_many_ones_keeps_32_of_them():
    """A sum of 5 bits stops at 32, and so does the sum of the errors, and that of their errors."""
    ones, ar = (1.0,) * 68, mcf.arithmetic(P5)
    assert [sum_k(ar, ones, k) for k in (1, 2, 3)] == [32, 64, 68]
    assert kahan_sum(ar, ones) == (68.0, 0.0)
    assert dw_sum(ar, ones) == dw_sum(ar, ones, ordered=True) == (68.0, 0.0)


def test_an_ordered_double_word_sum_loses_what_a_larger_term_finds():
    ar = mcf.arithmetic(BF16)
    assert dw_sum(ar, (1.0, 2.0**-9, 600.0)) == (600.0, 1.0)
    assert dw_sum(ar, (1.0, 2.0**-9, 600.0), ordered=True) == (600.0, 2.0**-9)


AR = mcf.arithmetic(BF16)


def test_what_an_overflow_leaves():
    assert kahan_sum(AR, (2.0**127,) * 2) == (np.inf, np.inf)
    assert np.isnan(kahan_sum(AR, (2.0**127,) * 3)).all()
    assert np.isnan(dw_sum(AR, (2.0**127,) * 2)).all()
    assert np.isnan(neumaier_sum(AR, (2.0**127,) * 2))
    terms = 2.0**127, 2.0**119, 127 * 2.0**120  # the largest number, and half an ulp
    assert dw_sum(AR, terms) == (np.inf, -np.inf)
    assert neumaier_sum(AR, terms) == dot2(AR, terms, (1.0,) * 3) == np.inf


@refusals(
    refused(TypeError, "must be a tuple of values, not of type ndarray", recursive_sum, (AR, np.ones(3))),
    refused(TypeError, "x must be a tuple", kahan_sum, (AR, [1.0, 2.0])),
    refused(ValueError, "x has length 0; at least 1", dw_sum, (AR, ())),
    refused(TypeError, "not of tuples", neumaier_sum, (AR, ((1.0, 2.0),))),
    refused(ValueError, "k = 0 must be at least 1", sum_k, (AR, (1.0,), 0)),
    refused(TypeError, "k must be an int, not ", sum_k, (AR, (1.0,), 2.0), (AR, (1.0,), True)),
    refused(TypeError, "y must be a tuple", dot2, (AR, (1.0,), 2.0)),
    refused(ValueError, "x has 2 terms and y has 1", dot2, (AR, (1.0, 2.0), (1.0,))),
    refused(ValueError, "no value of bfloat16", recursive_sum, (AR, (np.float64([1.0]), np.float64([0.3])))),
)
def test_what_cannot_be_summed_is_refused(rows):
    check(rows)
