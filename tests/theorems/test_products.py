"""Splits, products, fused operations: statements counted again in rationals, and published numbers."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.eft import split, two_prod, two_prod_fma
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding
from mcfsim.theorems.catalogue.products import THEOREMS as STATEMENTS
from mcfsim.theorems.operands import finite_values, significands
from mcfsim.theorems.statement import NEAREST
from tests.theorems.trying import (
    NARROW,
    Rationals,
    altered,
    holds_as_expected,
    on_core,
    on_domain,
    on_tables,
)

pytestmark = pytest.mark.slow

OF_FEW = [theorem for theorem in STATEMENTS if len(theorem.operands) < 3]
BY_NAME = {theorem.name: theorem for theorem in STATEMENTS}
SMALL = [fmt for fmt in FORMATS.values() if type(fmt) is Format and fmt.bits <= 8 and fmt.signed]
TOY = Format("toy", precision=3, emin=-5, emax=6)
WIDE_TOY = Format("wide toy", precision=3, emin=-14, emax=15)


@pytest.mark.parametrize("fmt", [*SMALL, Format("", precision=5, emin=-6, emax=7)], ids=str)
@pytest.mark.sampled(4, each=False)
def test_what_is_claimed_of_a_format_holds_and_what_is_false_fails(fmt):
    for theorem in OF_FEW:
        for mode in theorem.modes:
            assert holds_as_expected(theorem, fmt, mode), (theorem.name, mode)


@pytest.mark.parametrize("theorem", [t for t in STATEMENTS if t.scaling == "each"], ids=lambda t: t.name)
@pytest.mark.parametrize("fmt", [WIDE_TOY, Format("", precision=5, emin=-8, emax=8)], ids=str)
@pytest.mark.sampled(4)
def test_a_core_tells_what_all_operands_tell(theorem, fmt):
    for mode in theorem.modes:
        core, whole = on_core(theorem, fmt, mode), on_domain(theorem, fmt, mode)
        assert 0 < core.applicable < whole.applicable
        assert (core.violations > 0) == (whole.violations > 0)


# -- counted in rationals -----------------------------------------------------------------------------------
def _sum_of(parts):
    return sum(map(Fraction, parts)) if np.isfinite(parts).all() else None


def _of_products(r, ar, a, b, mode):
    """Yield, for each statement about a product, whether it is applicable to a pair, and whether it holds."""
    fmt, exact = r.fmt, Fraction(a) * Fraction(b)
    if abs(exact) <= fmt.max:
        held = _sum_of(two_prod_fma(ar, a, b)) == exact
        yield "two_prod_fma", held == ((exact / r.quantum).denominator == 1)
        yield "two_prod_fma_any", held
    s = (fmt.precision + 1) // 2
    room = fmt.max / (2**s + 1)
    in_range = max(abs(Fraction(a)), abs(Fraction(b))) <= room and abs(exact) <= fmt.max / 2
    large = exact == 0 or abs(exact) >= Fraction(2) ** (fmt.emin + fmt.precision)
    if mode.startswith("nearest") and in_range and large:
        yield "two_prod", _sum_of(two_prod(ar, a, b)) == exact
        yield "two_prod_floor_split", _sum_of(two_prod(ar, a, b, bits=fmt.precision // 2)) == exact


@pytest.mark.parametrize("mode", list(map(str, DETERMINISTIC)))
@pytest.mark.sampled(6, each=False)
def test_counts_are_those_of_rationals(mode):
    r, ar = Rationals(TOY), OracleArithmetic(TOY, Rounding(mode))
    some = r.numbers[::3]
    applicable, violations = {}, {}
    for a in some:
        for b in r.numbers:
            for name, held in _of_products(r, ar, a, b, mode):
                applicable[name] = applicable.get(name, 0) + 1
                violations[name] = violations.get(name, 0) + (not held)
    splits = {"split", "split_to_nearest"}
    assert set(applicable) == {t.name for t in OF_FEW if mode in t.modes} - splits
    for name in applicable:
        found = on_tables(BY_NAME[name], TOY, mode, some, r.numbers)
        assert (found.applicable, found.violations) == (applicable[name], violations[name]), name


def _bits(x):
    """Return how many bits a rational's significand has from its first to its last one."""
    n = abs(x.numerator)
    return (n // (n & -n)).bit_length() if n else 0


@pytest.mark.parametrize("fmt", [TOY, get_format("float8_e4m3fn"), Format("", precision=5, emin=-5, emax=9)])
@pytest.mark.parametrize("mode", ["nearest_even", "nearest_away"])
def test_splits_are_counted_by_rationals(fmt, mode):
    r, ar = Rationals(fmt), OracleArithmetic(fmt, Rounding(mode))
    p = fmt.precision
    s = (p + 1) // 2
    applicable = violations = unlike = 0
    for x in r.numbers:
        if (2**s + 1) * abs(Fraction(x)) > fmt.max:
            continue
        applicable += 1
        high, low = map(Fraction, split(ar, x))
        violations += high + low != Fraction(x) or _bits(high) > p - s or _bits(low) > s - 1
        if x:
            unit = Fraction(2) ** (r.exponent(x) - p + s + 1)
            unlike += high != round(Fraction(x) / unit) * unit
    found = on_tables(BY_NAME["split"], fmt, mode, r.numbers)
    assert (found.applicable, found.violations) == (applicable, violations)
    assert (violations, applicable > 40) == (0, True)
    found = on_tables(BY_NAME["split_to_nearest"], fmt, mode, r.numbers)
    assert (found.applicable, found.violations) == (applicable, unlike)
    assert (unlike > 0) == (mode == "nearest_away")


# -- what is published --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("precision", "pairs"), [(3, 1), (4, 0), (5, 27), (6, 0), (8, 0), pytest.param(11, 150_877)]
)
def test_the_smaller_half_of_an_odd_precision_is_a_wrong_split(precision, pairs):
    fmt = Format("", precision=precision, emin=-60, emax=60)
    one = significands(fmt, [0], signs=False)
    found = on_tables(BY_NAME["two_prod_floor_split"], fmt, "nearest_even", one, one)
    assert (found.applicable, found.violations) == (4 ** (precision - 1), pairs)
    assert on_tables(BY_NAME["two_prod"], fmt, "nearest_even", one, one).violations == 0
    assert on_tables(BY_NAME["two_prod"], fmt, "nearest_away", one, one).violations == 0


@pytest.mark.parametrize("precision", range(3, 12))
def test_the_high_half_is_the_number_rounded_whatever_the_tie(precision):
    fmt = Format("", precision=precision, emin=-60, emax=60)
    found = on_tables(BY_NAME["split_to_nearest"], fmt, "nearest_even", significands(fmt, [0], signs=True))
    assert (found.applicable, found.violations) == (2**precision, 0)


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_every_number_splits_as_far_as_nothing_overflows(fmt):
    for name, mode in (
        ("split", "nearest_even"),
        ("split", "nearest_away"),
        ("split_to_nearest", "nearest_even"),
    ):
        assert on_domain(BY_NAME[name], fmt, mode).violations == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", ["bfloat16", NARROW])
@pytest.mark.parametrize("theorem", STATEMENTS, ids=lambda theorem: theorem.name)
def test_sixteen_bits(theorem, fmt):
    for mode in theorem.modes & {"nearest_even", "up"}:
        found = on_domain(theorem, fmt, mode, "core")
        fails = not theorem.holds and theorem.refuted(get_format(fmt), mode)
        assert (found.violations > 0) == fails


# -- fused multiply-add -------------------------------------------------------------------------------------
@pytest.mark.parametrize("precision", [3, 4])
@pytest.mark.parametrize("mode", sorted(NEAREST))
@pytest.mark.sampled(4)
def test_the_error_of_a_fused_multiply_add_is_two_numbers_and_not_one(precision, mode):
    fmt = Format("", precision=precision, emin=-4, emax=5)
    values = finite_values(fmt)
    some = values[values > 0]
    two = on_tables(BY_NAME["fma_error"], fmt, mode, some, values, values)
    one = on_tables(BY_NAME["fma_error_one"], fmt, mode, some, values, values)
    assert two.violations == 0
    assert two.applicable > two.theorem.precision * 10_000
    assert 0.1 < one.violations / one.applicable < 0.5


@pytest.mark.parametrize("name", ["fma_error", "fma_error_one"])
def test_the_family_of_near_cancellation_interacts(name):
    theorem = BY_NAME[name]
    cases = np.array([[float(x) for x in case] for case in theorem.families(8)])
    a, b, c = cases.T
    assert ((np.abs(a * b + c) < np.abs(a * b) / 64) & (a * b + c != 0)).sum() > 50
    assert len(np.unique(cases, axis=0)) == len(cases)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("mode", sorted(NEAREST))
def test_all_triples_of_eight_bits(name, mode):
    for theorem in (BY_NAME["fma_error"], BY_NAME["fma_error_one"]):
        assert holds_as_expected(theorem, name, mode)


def test_counts_of_fused_operations_are_those_of_rationals():
    fmt = Format("", precision=3, emin=-5, emax=5)
    r, ar = Rationals(fmt), OracleArithmetic(fmt)
    tables = r.numbers[::11], r.numbers[::9], r.numbers
    held = []
    for a, b, c in itertools.product(*tables):
        result = ar.fma(a, b, c)
        exact = Fraction(a) * Fraction(b)
        if np.isfinite(result) and (exact / r.quantum).denominator == 1:
            held.append(exact + Fraction(c) - Fraction(result) in r.values)
    found = on_tables(BY_NAME["fma_error_one"], fmt, "nearest_even", *tables)
    assert (found.applicable, found.violations) == (len(held), held.count(False))
    assert found.violations > 0


# -- that a wrong algorithm is found out --------------------------------------------------------------------
def _without_fma(ar, a, b):
    p = ar.mul(a, b)
    return p, ar.sub(ar.mul(a, b), p)


def _without_low_times_low(ar, a, b):
    p = ar.mul(a, b)
    (a_high, a_low), (b_high, b_low) = split(ar, a), split(ar, b)
    t = ar.sub(ar.mul(a_high, b_high), p)
    return p, ar.add(ar.add(t, ar.mul(a_high, b_low)), ar.mul(a_low, b_high))


def _split_in_two_steps(ar, x):
    high = ar.sub(ar.mul(x, 9.0), ar.mul(x, 8.0))
    return high, ar.sub(x, high)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("two_prod_fma", _without_fma),
        ("two_prod", _without_low_times_low),
        ("split", _split_in_two_steps),
        ("split_to_nearest", _split_in_two_steps),
    ],
)
def test_an_altered_algorithm_is_caught(name, mutant):
    assert on_domain(altered(BY_NAME[name], mutant), "float8_e4m3fn", "nearest_even").violations > 0
