"""Expansions of a length: numbers, double words and longer ones; and those that grow, which are exact."""

import itertools
import operator
import random
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS
from mcfsim.multiword import double_word
from mcfsim.multiword.shewchuk import expansion_sum, fast_expansion_sum, grow_expansion, merge, vec_sum
from mcfsim.oracle import round_fraction
from tests.multiword.words import double_words, fractions, numbers, total, unbounded
from tests.oracle.operands import SMALL_FORMATS, UNUSUAL_FORMATS, label, values
from tests.shared.refusals import check, refusals, refused

BF16, TF32 = FORMATS["bfloat16"], FORMATS["tf32"]


# -- one component is a number, two are a double word -----------------------------------------------------
@pytest.mark.parametrize("fmt", [BF16, TF32], ids=label)
def test_one_component_is_computed_with_as_a_number_and_two_as_a_double_word(fmt, assert_same):
    """Bit for bit; only the factors of a product are exchanged, to give Collage's Mul."""
    ar = mcf.arithmetic(fmt)
    (a, b), (c, d) = x, y = [double_words(fmt, 2**12, seed=seed) for seed in (21, 22)]
    for found, expected in (
        (mcf.grow(ar, (a,), c), (ar.add(a, c),)),
        (mcf.expansion_add(ar, (a,), (c,)), (ar.add(a, c),)),
        (mcf.expansion_scale(ar, (a,), c), (ar.mul(a, c),)),
        (mcf.expansion_mul(ar, (a,), (c,)), (ar.mul(a, c),)),
        (mcf.expansion_div(ar, (a,), (c,)), (ar.div(a, c),)),
        (mcf.expansion_sqrt(ar, (np.abs(a),)), (ar.sqrt(np.abs(a)),)),
        (mcf.grow(ar, x, c), double_word.dw_plus_fp(ar, x, c)),
        (mcf.grow(ar, x, c / 2**9, ordered=True), double_word.dw_plus_fp(ar, x, c / 2**9)),
        (mcf.expansion_add(ar, x, y), double_word.accurate_dw_plus_dw(ar, x, y)),
        (mcf.expansion_scale(ar, x, c), double_word.dw_times_fp3(ar, x, c)),
        (mcf.expansion_mul(ar, x, y), double_word.dw_times_dw2(ar, y, x)),
        (mcf.expansion_div(ar, x, y), double_word.dw_div_dw2(ar, x, y)),
        (mcf.expansion_sqrt(ar, x), double_word.sqrt_dw(ar, x)),
        (mcf.renormalize(ar, (c, a)), mcf.two_sum(ar, c, a)),
    ):
        for part, right in zip(found, expected, strict=True):
            assert_same(part, right, a, b, c, d)
    assert not np.array_equal(mcf.expansion_mul(ar, x, y), mcf.expansion_mul(ar, y, x))


def test_ordered_grow_of_unordered_operands_loses_the_compensation():
    ar, x = mcf.arithmetic("bf16"), (1.0, -(2.0**-9))
    assert mcf.grow(ar, x, 600.0, ordered=True) == (600.0, -(2.0**-9))
    assert mcf.grow(ar, x, 600.0) == (600.0, 1.0)


# -- three and four components ----------------------------------------------------------------------------
@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("precision", [8, 11])
def test_the_error_of_longer_expansions_is_of_the_order_of_u_to_the_n(precision, n):
    """By 4 u**n of the product, or of the sum of magnitudes."""
    ar, bound = mcf.arithmetic(unbounded(precision)), Fraction(4, 2 ** (n * precision))
    draw = random.Random(n)
    reals = [Fraction(draw.randrange(-(2**123), 2**123), 2 ** draw.randrange(120, 127)) for _ in range(100)]
    expanded = [mcf.expand(ar, v, n) for v in reals]
    x, y = (tuple(map(np.array, zip(*part, strict=True))) for part in (expanded[::2], expanded[1::2]))
    for function, other, combined in (
        (mcf.grow, y[0], operator.add),
        (mcf.expansion_add, y, operator.add),
        (mcf.expansion_scale, y[0], operator.mul),
        (mcf.expansion_mul, y, operator.mul),
    ):
        errors = []
        for row, a, b in zip(fractions(function(ar, x, other)), fractions(x), fractions(other), strict=True):
            a, b = total(a), total(b)
            errors.append(abs(total(row) - combined(a, b)))
            assert len(row) == n
            assert errors[-1] <= bound * combined(abs(a), abs(b))
        assert any(errors)


# -- renormalizing ----------------------------------------------------------------------------------------
TAKEN = [x for x in (*SMALL_FORMATS, *UNUSUAL_FORMATS) if x.signed and x.zero and x.precision > 1]


@pytest.mark.parametrize("fmt", [BF16, *TAKEN], ids=label)
def test_renormalizing_keeps_the_sum_exactly_in_every_format_that_it_takes(fmt):
    known = values(fmt)
    known = known[np.abs(known) <= float(fmt.max) / 4]
    for n in (2, 3, 5) if fmt is BF16 else (2, 3):
        if fmt is BF16:
            parts = tuple(numbers(fmt, 150, seed=n + i, exponents=(-9, 9)) for i in range(n))
        else:
            parts = tuple(np.random.default_rng(3).choice(known, (n, 150)))
        result = mcf.renormalize(mcf.arithmetic(fmt), parts)
        assert len(result) == n
        for before, after in zip(fractions(parts), fractions(result), strict=True):
            assert total(after) == total(before), before


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.sampled(4, each=False)
def test_a_renormalized_component_is_the_rounding_of_itself_and_the_next(n, assert_same):
    ar = mcf.arithmetic("bf16")
    parts = tuple(numbers(BF16, 20_000, seed=90 + n + i, exponents=(-9, 9)) for i in range(n))
    hard = [np.full(1, part) for part in (-507904.0, 679936.0, 68608.0, *(0.0,) * (n - 3))][:n]
    parts = tuple(np.concatenate(pair) for pair in zip(parts, hard, strict=True))
    for component, following in itertools.pairwise(mcf.renormalize(ar, parts)):
        assert_same(ar.add(component, following), component, *parts)
    # Without cancellation the first one is the sum rounded, or a neighbour.
    parts = tuple(np.abs(part[:500]) for part in parts)
    first = mcf.renormalize(ar, parts)[0]
    rounded = np.array([round_fraction(total(row), BF16) for row in fractions(parts)])
    assert (first >= mcf.codec.next_down(rounded, BF16)).all()
    assert (first <= mcf.codec.next_up(rounded, BF16)).all()


# -- expansions that grow; that their sums are exact is asked in test_eft --------------------------------
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


AR, TWO, THREE = mcf.arithmetic("bf16"), (1.0, 0.0), (1.0, 0.0, 0.0)
UNEQUAL = "expansions of 2 and 3 components cannot be"


@refusals(
    refused(TypeError, "x must be a tuple of values, not of type ndarray", vec_sum, (AR, np.ones((2, 3)))),
    refused(TypeError, "not of tuples", vec_sum, (AR, ((1.0, 2.0), (3.0, 4.0)))),
    refused(ValueError, "x has length 0; at least 1", vec_sum, (AR, ())),
    refused(TypeError, "e must be a tuple", grow_expansion, (AR, np.ones(3), 1.0)),
    refused(TypeError, "f must be a tuple", expansion_sum, (AR, (1.0,), 1.0)),
    refused(ValueError, "g has length 1; at least 2", fast_expansion_sum, (AR, (1.0,))),
    refused(TypeError, "e must be a tuple", merge, ([1.0], (2.0,))),
    refused(ValueError, "f has length 0", merge, ((1.0,), ())),
    refused(ValueError, f"{UNEQUAL} added", mcf.expansion_add, (AR, TWO, THREE)),
    refused(ValueError, f"{UNEQUAL} multiplied", mcf.expansion_mul, (AR, TWO, THREE)),
    refused(ValueError, f"{UNEQUAL} divided", mcf.expansion_div, (AR, TWO, THREE)),
    refused(ValueError, "cannot be divided; allowed: 1 or 2", mcf.expansion_div, (AR, THREE, THREE)),
    refused(ValueError, "under a square root; allowed: 1 or 2", mcf.expansion_sqrt, (AR, THREE)),
)
def test_what_is_no_expansion_or_too_long_is_refused(rows):
    check(rows)


def test_the_value_of_an_expansion_is_its_exact_sum():
    assert mcf.expansion.value((1.0, 2.0**-100)) == 1 + Fraction(1, 2**100)
