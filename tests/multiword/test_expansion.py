"""Expansions of a length: double words and longer ones; and those that grow, which are exact.

Bounds and hardest operands of double words are theorems of the catalogue: see tests/theorems.
"""

import itertools
import operator
import random
import re
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS
from mcfsim.multiword import double_word
from mcfsim.multiword.shewchuk import expansion_sum, fast_expansion_sum, grow_expansion, merge, vec_sum
from mcfsim.oracle import round_fraction, round_integers
from tests.multiword.words import double_words, fractions, numbers, total, unbounded
from tests.oracle.operands import SMALL_FORMATS, UNUSUAL_FORMATS, label, values
from tests.oracle.steps import Steps
from tests.shared.refusals import check, refusals, refused

BF16, TF32 = FORMATS["bfloat16"], FORMATS["tf32"]
E4M3FN, E5M2 = FORMATS["float8_e4m3fn"], FORMATS["float8_e5m2"]


# -- double words -----------------------------------------------------------------------------------------
ALGORITHMS = {name: getattr(double_word, name) for name in double_word.__all__ if name != "DoubleWord"}
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def operands_of(name, x, y):
    """Return the double words x and y as an algorithm's operands: y may be a number, or none."""
    if name == "sqrt_dw":
        return (x,)
    return (x, y[0]) if "fp" in name else (x, y)


def of_same_sign(name, x, y):
    """Return operands with the same sign if the algorithm is to be trusted with those alone."""
    if name not in ("sloppy_dw_plus_dw", "sqrt_dw"):
        return x, y
    return tuple(tuple(np.copysign(1.0, z[0]) * part for part in z) for z in (x, y))


@every_algorithm
def test_the_steps_are_those_of_exact_rationals(name):
    """Even where Fast2Sum takes the place of 2Sum: the errors are the exact ones."""
    for precision in (3, 4, 8):
        x, y = (double_words(unbounded(precision), 12, seed, exponents=(-4, 5)) for seed in (6, 7))
        operands = operands_of(name, *of_same_sign(name, x, y))
        rows = zip(*map(fractions, operands), strict=True)
        expected = [getattr(Steps(precision), name)(*row) for row in rows]
        result = ALGORITHMS[name](mcf.arithmetic(unbounded(precision)), *operands)
        assert fractions(result) == expected
        high, low = (part.astype(np.float64) for part in result)
        assert np.array_equal(round_integers(high + low, unbounded(precision)), high)  # a double word


@every_algorithm
def test_the_operations_are_as_many_as_its_docstring_says(name):
    meter = mcf.Meter(mcf.arithmetic("bf16"))
    ALGORITHMS[name](meter, *operands_of(name, (3.0, 2.0**-9), (1.5, 2.0**-10)))
    count = len([operation for operation in meter.trace if operation != "neg"])
    assert re.search(r" (\d+) operations", ALGORITHMS[name].__doc__)[1] == str(count)


@every_algorithm
@pytest.mark.parametrize("fmt", [E5M2, E4M3FN], ids=label)
@pytest.mark.sampled(2)
def test_specials_and_overflow_leave_nans(name, fmt):
    one, largest = (1.5, 0.0), (float(fmt.max), 0.0)
    specials = [(x, 0.0) for x in ((np.nan, np.inf, -np.inf) if fmt.has_infinity else (np.nan,))]
    leave_nan = [((1.5, np.nan), one), *((x, one) for x in specials)]
    if name == "sqrt_dw":
        leave_nan += [((x, 0.0), one) for x in (0.0, -0.0, -1.5)]
    else:
        leave_nan += [(one, x) for x in specials]
        # Where the result overflows the low word is not finite.
        y = float(fmt.smallest_normal if "div" in name else fmt.max)
        operands = operands_of(name, largest, (y, 0.0))
        assert not np.isfinite(ALGORITHMS[name](mcf.arithmetic(fmt), *operands)[1])
    if "div" in name:
        leave_nan += itertools.product((one, (0.0, 0.0)), ((0.0, 0.0), (-0.0, 0.0)))
    for x, y in leave_nan:
        assert np.isnan(ALGORITHMS[name](mcf.arithmetic(fmt), *operands_of(name, x, y))).all(), (x, y)


@every_algorithm
def test_what_is_no_pair_of_words_is_refused(name):
    good, of_bf16 = (1.5, 0.0), mcf.arithmetic("bf16")
    for bad, error, message in (
        ((1.0, 0.0, 0.0), ValueError, r"a tuple \(high, low\), not one of 3 components"),
        (np.array([1.5, 0.0]), TypeError, r"a tuple \(high, low\), not of type ndarray"),
    ):
        with pytest.raises(error, match=message):
            ALGORITHMS[name](of_bf16, *operands_of(name, bad, good))
    if operands_of(name, good, good)[1:] == (good,):
        with pytest.raises(ValueError, match="not one of 1 components"):
            ALGORITHMS[name](of_bf16, good, (1.0,))


def test_the_root_of_zero_is_an_error_in_exact_arithmetic():
    with pytest.raises(ZeroDivisionError):
        double_word.sqrt_dw(mcf.arithmetic(None, backend="exact"), (0.0, 0.0))


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
    reals = [Fraction(draw.randrange(-(2**123), 2**123), 2 ** draw.randrange(120, 127)) for _ in range(50)]
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
    assert merge((np.int8(-128), 3), (np.int8(1), np.array(-(2**63)))) == (1, 3, -128, -(2**63))
    with pytest.raises(ValueError, match="binary64 does not hold"):
        merge((2**53 + 1,), (1.5,))


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
    refused(TypeError, "is a masked array", merge, ((np.ma.masked_array([1.0, 2.0], [1, 0]),), (2.0,))),
    refused(ValueError, f"{UNEQUAL} added", mcf.expansion_add, (AR, TWO, THREE)),
    refused(ValueError, f"{UNEQUAL} multiplied", mcf.expansion_mul, (AR, TWO, THREE)),
    refused(ValueError, f"{UNEQUAL} divided", mcf.expansion_div, (AR, TWO, THREE)),
    refused(ValueError, "cannot be divided; allowed: 1 or 2", mcf.expansion_div, (AR, THREE, THREE)),
    refused(ValueError, "under a square root; allowed: 1 or 2", mcf.expansion_sqrt, (AR, THREE)),
    refused(ValueError, "without components cannot be grown", mcf.grow, (AR, (), 1.0)),
    refused(ValueError, "without components cannot be multiplied", mcf.expansion_mul, (AR, (), ())),
    refused(TypeError, "tuple of components, not a float", mcf.grow, (AR, 1.0, 1.0)),
    refused(ValueError, "component 1 is inf", mcf.expansion.value, ((1.0, np.inf),)),
    refused(ValueError, "component 0 is nan", mcf.expansion.value, ((np.nan,),)),
    refused(TypeError, "an array or a number, not a tuple", mcf.two_sum, (AR, (1.0,), (2.0,))),
    refused(TypeError, "must be an arithmetic, .* not 'bfloat16'", mcf.two_sum, ("bfloat16", 1.0, 2.0)),
    refused(TypeError, r"a result is \[.*allowed are", AR.evaluate, (lambda ar, x: [x], np.ones(1, "f4"))),
    refused(TypeError, "a result is None", AR.evaluate, (lambda ar, x: None, np.ones(1, "f4"))),
)
def test_what_is_no_expansion_or_too_long_is_refused(rows):
    check(rows)


def test_the_value_of_an_expansion_is_its_exact_sum():
    assert mcf.expansion.value((1.0, 2.0**-100)) == 1 + Fraction(1, 2**100)
