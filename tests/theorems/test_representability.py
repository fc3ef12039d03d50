"""Errors that are values of the format: every statement counted again in rationals, and what is published."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding
from mcfsim.theorems.catalogue.representability import THEOREMS as STATEMENTS
from mcfsim.theorems.logic.bits import has_bits, is_value
from mcfsim.theorems.logic.sums import equal_sums, is_difference, rest_of_sum
from mcfsim.theorems.operands import significands
from mcfsim.theorems.statement import FAITHFUL
from tests.theorems.trying import NARROW, Rationals, holds_as_expected, on_core, on_domain, on_tables

BY_NAME = {theorem.name: theorem for theorem in STATEMENTS}
EIGHT_BITS = [fmt for fmt in FORMATS.values() if type(fmt) is Format and 4 < fmt.bits <= 8 and fmt.signed]
TOY = Format("toy", precision=3, emin=-3, emax=3)
WIDE_TOY = Format("wide toy", precision=3, emin=-14, emax=15)
MODES = [str(mode) for mode in DETERMINISTIC]


@pytest.mark.parametrize("fmt", EIGHT_BITS, ids=str)
@pytest.mark.sampled(4, each=False)
def test_what_is_claimed_of_a_format_holds_and_what_is_false_fails(fmt):
    for theorem in STATEMENTS:
        for mode in theorem.modes:
            assert holds_as_expected(theorem, fmt, mode), (theorem.name, mode)


@pytest.mark.parametrize("theorem", [t for t in STATEMENTS if t.scaling != "none"], ids=lambda t: t.name)
@pytest.mark.parametrize("fmt", [WIDE_TOY, Format("", precision=4, emin=-6, emax=7)], ids=str)
@pytest.mark.sampled(4)
def test_a_core_tells_what_all_operands_tell(theorem, fmt):
    for mode in theorem.modes:
        core, whole = on_core(theorem, fmt, mode), on_domain(theorem, fmt, mode)
        assert 0 < core.applicable != whole.applicable
        assert (core.violations > 0) == (whole.violations > 0)


# -- counted in rationals -----------------------------------------------------------------------------------
def _of_sums(r, ar, a, b):
    """Yield, for each statement about a sum or difference, whether it is applicable and whether it holds."""
    x, y = Fraction(a), Fraction(b)
    if x * y >= 0 and abs(y) <= 2 * abs(x) and abs(x) <= 2 * abs(y):
        yield "sterbenz", Fraction(ar.sub(a, b)) == x - y
    if abs(x + y) > r.fmt.max:
        return
    s = Fraction(ar.add(a, b))
    error = x + y - s
    held = error in r.values
    yield "add_error_representable", held and abs(error) <= min(r.ulp(s) / 2, abs(x), abs(y))
    gap = 0 if 0 in (x, y) else abs(r.exponent(x) - r.exponent(y))
    if gap <= r.fmt.precision:
        yield "add_error_representable_faithful", held
    if gap <= r.fmt.precision + 1:
        yield "add_error_representable_wider_gap", held


def _of_products(r, ar, a, b):
    exact = Fraction(a) * Fraction(b)
    if abs(exact) > r.fmt.max:
        return
    held = exact - Fraction(ar.mul(a, b)) in r.values
    yield "prod_error_representable", held == ((exact / r.quantum).denominator == 1)
    if exact == 0:
        return
    large = r.exponent(a) + r.exponent(b) >= r.fmt.emin + r.fmt.precision - 1
    yield "prod_error_exponents_iff", held == large
    if large:
        yield "prod_error_exponents_sufficient", held


def _of_quotients(r, ar, y, x):
    if y == 0 or abs(Fraction(x) / Fraction(y)) > r.fmt.max:
        return
    q = Fraction(ar.div(x, y))
    if abs(q) < r.fmt.smallest_normal:
        return
    held = Fraction(x) - q * Fraction(y) in r.values
    yield "div_remainder_any", held
    if r.exponent(y) + r.exponent(q) >= r.fmt.emin + r.fmt.precision - 1:
        yield "div_remainder", held


@pytest.mark.parametrize("mode", ["nearest_even", "nearest_away", "toward_zero", "up", "to_odd"])
@pytest.mark.parametrize("oracle", [_of_sums, _of_products, _of_quotients])
@pytest.mark.sampled(6)
@pytest.mark.slow
def test_counts_are_those_of_rationals(oracle, mode):
    r, ar = Rationals(TOY), OracleArithmetic(TOY, Rounding(mode))
    applicable, violations = {}, {}
    for pair in r.tuples(2):
        for name, held in oracle(r, ar, *pair):
            applicable[name] = applicable.get(name, 0) + 1
            violations[name] = violations.get(name, 0) + (not held)
    assert applicable
    for name in applicable:
        found = on_tables(BY_NAME[name], TOY, mode, r.numbers, r.numbers)
        assert (found.applicable, found.violations) == (applicable[name], violations[name]), name


@pytest.mark.parametrize("mode", MODES)
def test_counts_of_roots_are_those_of_rationals(mode):
    fmt = get_format("float8_e4m3fn")
    r, ar = Rationals(fmt), OracleArithmetic(fmt, Rounding(mode))
    held = []
    for x in (x for x in r.numbers if x > 0):
        s = Fraction(ar.sqrt(x))
        if 2 * r.exponent(s) >= fmt.emin + fmt.precision - 1:
            held.append(Fraction(x) - s * s in r.values)
    name = "sqrt_remainder" if mode.startswith("nearest") else "sqrt_remainder_directed"
    found = on_tables(BY_NAME[name], fmt, mode, r.numbers)
    assert (found.applicable, found.violations) == (len(held), held.count(False))


# -- what is published --------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", sorted(FAITHFUL))
def test_a_directed_sum_of_bfloat16_has_an_error_of_nine_bits_from_a_gap_of_nine_on(mode):
    fmt = get_format("bfloat16")
    first = significands(fmt, [0], signs=False)
    for gap in range(12):
        second = significands(fmt, [-gap], signs=True)
        found = on_tables(BY_NAME["add_error_representable_wider_gap"], fmt, mode, first, second)
        if gap <= 8:
            assert (found.applicable, found.violations) == (2**15, 0)
        elif gap == 9:
            assert found.violations == (8192 if mode == "up" else 8128)
        else:
            assert found.applicable == 0
    known = on_tables(BY_NAME["add_error_representable_wider_gap"], fmt, "up", [1.0], [129 * 2.0**-16])
    assert known.violations == 1


@pytest.mark.parametrize(
    ("fmt", "pairs"),
    [
        (Format("", precision=3, emin=-4, emax=4), 740),
        (Format("", precision=4, emin=-6, emax=7), 4932),
        (Format("", precision=3, emin=-14, emax=15), 1700),
    ],
    ids=str,
)
def test_many_products_have_a_representable_error_although_their_exponents_are_small(fmt, pairs):
    assert on_domain(BY_NAME["prod_error_exponents_iff"], fmt, "nearest_even").violations == pairs


def test_roots_that_are_not_rounded_to_nearest_may_leave_no_representable_remainder():
    directed = BY_NAME["sqrt_remainder_directed"]
    three, four = (Format("", precision=p, emin=-6, emax=6) for p in (3, 4))
    assert on_tables(directed, three, "up", [0.625]).violations == 1  # 0.875 squared is 0.140625 more
    assert on_tables(directed, four, "down", [0.75]).violations == 1  # 0.8125 squared is 0.08984375 less
    found = on_domain(directed, "bfloat16", "up")
    assert (found.applicable, found.violations) == (31_489, 2952)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", ["bfloat16", NARROW])
def test_sixteen_bits(fmt):
    for theorem in STATEMENTS:
        for mode in theorem.modes & {"nearest_even", "toward_zero"}:
            found = on_domain(theorem, fmt, mode, "core")
            assert found.applicable > 0
            assert (found.violations == 0) == theorem.holds


# -- identities that the statements are tested by -----------------------------------------------------------
def test_identities_are_those_of_rationals():
    # Numbers of 24 bits and any exponents in binary32, where sums of them round, overflow and underflow.
    rng = np.random.default_rng(5)
    size = 3000
    x = np.ldexp(rng.integers(-(2**24), 2**24, size), rng.integers(-149, 100, size)).astype(np.float32)
    near = np.ldexp(rng.integers(-(2**24), 2**24, size), rng.integers(-3, 4, size)).astype(np.float32)
    y = np.where(rng.random(size) < 0.8, x * (near / np.float32(2**24)), rng.permutation(x))
    with np.errstate(all="ignore"):
        s = np.where(rng.random(size) < 0.8, x + y, np.float32(np.inf))
        e = (x.astype(np.float64) + y - s).astype(np.float32)
        differences = is_difference(e, x, y), is_difference(y, s, x)
        sums = equal_sums(x, y, s, e)
        rest, held, sure = rest_of_sum(x, y, s)
        held &= sure

    def fraction(number):
        return Fraction(float(number)) if np.isfinite(number) else None

    counts = np.zeros(4, int)
    for i, (a, b, c, d) in enumerate(zip(*(map(fraction, part) for part in (x, y, s, e)), strict=True)):
        exact = None not in (a, b, c, d)
        truth = (
            exact and d == a - b,
            exact and b == c - a,
            exact and a + b == c + d,
        )
        assert (differences[0][i], differences[1][i], sums[i]) == truth
        counts[:3] += truth
        if held[i]:
            assert Fraction(float(rest[i])) == a + b - c
            counts[3] += 1
    assert counts[1:].min() > 200
    assert counts[2] < size - 200


def test_equal_sums_of_numbers_far_apart_are_decided_in_integers():
    x, y = np.float64([1.0, 1.0, 1.0]), np.float64([2.0**-80, 2.0**-80, 2.0**-80])
    s, e = np.float64([0.5, 2.0**-80, 2.0**-80]), np.float64([0.5, 1.0, 1.0 + 2.0**-52])
    assert equal_sums(x, y, s, e).tolist() == [False, True, False]


@pytest.mark.parametrize("fmt", [TOY, get_format("float8_e4m3fn"), get_format("float8_e5m2")], ids=str)
def test_values_are_told_from_other_numbers(fmt):
    r = Rationals(fmt)
    halves = [x / 2 for x in r.numbers] + [x + y / 4 for x, y in itertools.pairwise(r.numbers)]
    numbers = np.array([*r.numbers, *halves, 2 * float(fmt.max), np.nan, np.inf, -np.inf])
    expected = [np.isfinite(x) and Fraction(x) in r.values for x in numbers.tolist()]
    assert is_value(numbers, fmt).tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_bits_are_counted_from_the_first_to_the_last_one():
    x = np.array([0.0, 1.0, 3.0, -5.0, 0.75, 2.0**-1074])
    assert has_bits(x, 0).tolist() == [True, False, False, False, False, False]
    assert has_bits(x[:5], 1).tolist() == [True, True, False, False, False]
    assert has_bits(x[:5], 2).tolist() == [True, True, True, False, True]
