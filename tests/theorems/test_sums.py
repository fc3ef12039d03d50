"""2Sum and Fast2Sum: statements counted again in rationals, cores and all operands, published numbers."""

from fractions import Fraction

import numpy as np
import pytest

from mcfsim.eft import fast_two_sum, two_sum
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding, Underflow
from mcfsim.theorems.catalogue.sums import THEOREMS as STATEMENTS
from mcfsim.theorems.domain import cover
from mcfsim.theorems.operands import finite_values, significands
from mcfsim.theorems.statement import FAITHFUL, NEAREST
from tests.theorems.trying import (
    NARROW,
    Rationals,
    altered,
    constant,
    holds_as_expected,
    on_core,
    on_domain,
    on_tables,
)

pytestmark = pytest.mark.slow

BY_NAME = {theorem.name: theorem for theorem in STATEMENTS}
SMALL = [fmt for fmt in FORMATS.values() if type(fmt) is Format and fmt.bits <= 8 and fmt.signed]
TOY = Format("toy", precision=3, emin=-4, emax=4)
SMALLER_TOY = Format("smaller toy", precision=3, emin=-3, emax=3)
WIDE_TOY = Format("wide toy", precision=3, emin=-14, emax=15)
FAITHFUL_ERRORS = ("two_sum_faithful_error", "fast_two_sum_faithful_error")


@pytest.mark.parametrize("fmt", [*SMALL, Format("", precision=2, emin=-6, emax=7)], ids=str)
@pytest.mark.sampled(4, each=False)
def test_what_is_claimed_of_a_format_holds_and_what_is_false_fails(fmt):
    for theorem in STATEMENTS:
        for mode in theorem.modes:
            assert holds_as_expected(theorem, fmt, mode), (theorem.name, mode)


@pytest.mark.parametrize("theorem", STATEMENTS, ids=lambda theorem: theorem.name)
@pytest.mark.parametrize(
    "fmt", [get_format("float8_e5m2"), Format("", precision=4, emin=-6, emax=7)], ids=str
)
@pytest.mark.sampled(4)
def test_a_core_tells_what_all_operands_tell(theorem, fmt):
    for mode in theorem.modes:
        core, whole = on_core(theorem, fmt, mode), on_domain(theorem, fmt, mode)
        assert 0 < core.applicable != whole.applicable
        assert (core.violations > 0) == (whole.violations > 0)
        if theorem.name in FAITHFUL_ERRORS:  # which grow as the gap does
            assert 1.5 < constant(core) <= constant(whole) < 2
        else:
            assert constant(core) == constant(whole)


# -- counted in rationals -----------------------------------------------------------------------------------
def _of_pair(r, ar, a, b, mode):
    """Yield, for each statement of a mode, whether it is applicable to a pair, and whether it holds."""
    x, y, u = Fraction(a), Fraction(b), r.fmt.unit_roundoff
    in_range, in_order = abs(x + y) <= r.fmt.max, abs(x) >= abs(y)
    nearest = mode.startswith("nearest")
    not_largest = abs(x) < r.fmt.max
    exponents = 0 in (x, y) or r.exponent(x) >= r.exponent(y)
    s, e = (float(part) for part in two_sum(ar, a, b))
    exact = np.isfinite(e) and Fraction(s) + Fraction(e) == x + y
    small = np.isfinite(e) and abs(Fraction(s) + Fraction(e) - x - y) <= 2 * u**2 * abs(x + y)
    if in_range and not_largest:
        yield "two_sum" if nearest else "two_sum_directed", exact
        if not nearest:
            yield "two_sum_faithful_error", small
    if nearest:
        if in_range:
            yield "two_sum_any", exact
        if np.isfinite(s) and not_largest:
            yield "two_sum_overflow", np.isfinite(e)
    s, e = (float(part) for part in fast_two_sum(ar, a, b))
    finite = np.isfinite(e)
    exact = finite and Fraction(s) + Fraction(e) == x + y
    if nearest:
        if in_range and in_order:
            yield "fast_two_sum", exact
        if in_range and exponents:
            yield "fast_two_sum_exponents", exact
        if in_range and (x / r.ulp(y)).denominator == 1:
            yield "fast_two_sum_multiple", exact
        if in_range:
            yield "fast_two_sum_unordered", exact
        if finite:
            yield "fast_two_sum_unordered_error", abs(Fraction(s) + Fraction(e) - x - y) <= u * abs(x + y)
        if in_order and np.isfinite(s):
            yield "fast_two_sum_overflow", finite
    elif in_range and exponents:
        moved, possible = Fraction(s) - x in r.values, x + y - Fraction(s) in r.values
        yield "fast_two_sum_faithful", moved and finite and exact == possible
        error = abs(Fraction(s) + Fraction(e) - x - y)
        yield "fast_two_sum_faithful_error", error <= 2 * u**2 * abs(x + y)


@pytest.mark.parametrize("mode", list(map(str, DETERMINISTIC)))
@pytest.mark.sampled(6, each=False)
def test_counts_are_those_of_rationals(mode):
    r, ar = Rationals(SMALLER_TOY), OracleArithmetic(SMALLER_TOY, Rounding(mode))
    applicable, violations = {}, {}
    for a, b in r.tuples(2):
        for name, held in _of_pair(r, ar, a, b, mode):
            applicable[name] = applicable.get(name, 0) + 1
            violations[name] = violations.get(name, 0) + (not held)
    flushed = {"two_sum_flushed", "fast_two_sum_flushed"}
    assert set(applicable) == {t.name for t in STATEMENTS if mode in t.modes} - flushed
    for name in applicable:
        found = on_tables(BY_NAME[name], SMALLER_TOY, mode, r.numbers, r.numbers)
        assert (found.applicable, found.violations) == (applicable[name], violations[name]), name


@pytest.mark.parametrize(
    ("fmt", "pairs"), [(TOY, 464), (Format("", precision=4, emin=-6, emax=7), 3696)], ids=str
)
def test_flushed_sums_of_normal_numbers_lose_their_error(fmt, pairs):
    for mode in NEAREST:  # an order of the two is as often wrong as the other
        assert 2 * on_domain(BY_NAME["fast_two_sum_flushed"], fmt, mode).violations == pairs
    r = Rationals(fmt)
    normal = [x for x in r.numbers if x == 0 or abs(x) >= fmt.smallest_normal]
    ar = OracleArithmetic(fmt, Rounding(underflow="flush_after"))
    wrong = 0
    for a in normal[::5]:
        for b in normal[::2]:
            s, e = two_sum(ar, a, b)
            usable = abs(Fraction(a) + Fraction(b)) <= fmt.max and abs(a) < fmt.max
            wrong += usable and not (
                np.isfinite(e) and Fraction(s) + Fraction(e) == Fraction(a) + Fraction(b)
            )
    found = on_tables(BY_NAME["two_sum_flushed"], fmt, "nearest_even", normal[::5], normal[::2])
    assert found.violations == wrong > 0


# -- what is published --------------------------------------------------------------------------------------
def test_unordered_operands_of_bfloat16_make_fast_two_sum_worthless():
    fmt = get_format("bfloat16")
    tables = significands(fmt, [0], signs=False), significands(fmt, range(1, 21), signs=True)
    inexact = on_tables(BY_NAME["fast_two_sum_unordered"], fmt, "nearest_even", *tables)
    assert (inexact.applicable, inexact.violations) == (655_360, 614_528)
    off = on_tables(BY_NAME["fast_two_sum_unordered_error"], fmt, "nearest_even", *tables)
    assert constant(off) == Fraction(256, 257) == off.theorem.worst(8)
    known = on_tables(off.theorem, fmt, "nearest_even", [1.0], [-258.0])
    assert constant(known) == Fraction(256, 257)


@pytest.mark.parametrize(("fmt", "even", "away"), [("float16", 1022, 2046), ("bfloat16", 126, 254)])
def test_only_a_largest_first_operand_overflows_on_the_way(fmt, even, away):
    values, largest = finite_values(get_format(fmt)), float(get_format(fmt).max)
    theorem = BY_NAME["two_sum_any"]
    for mode, count in (("nearest_even", even), ("nearest_away", away)):
        first = on_tables(theorem, fmt, mode, [largest, -largest], values)
        second = on_tables(theorem, fmt, mode, values, [largest, -largest])
        assert (
            first.violations - on_tables(theorem, fmt, mode, *[[largest, -largest]] * 2).violations == count
        )
        assert second.violations == 0


def test_all_that_overflow_on_the_way_in_eight_bits_are_the_largest_number():
    for fmt in SMALL:
        values = finite_values(fmt)
        rest = values[np.abs(values) < float(fmt.max)]
        for mode in NEAREST:
            assert on_tables(BY_NAME["two_sum_any"], fmt, mode, rest, values).violations == 0


@pytest.mark.parametrize(
    ("precision", "gap", "name", "worst"),
    [
        (3, 8, "fast_two_sum_faithful_error", Fraction(448, 257)),
        (3, 8, "two_sum_faithful_error", Fraction(448, 249)),
        (4, 10, "fast_two_sum_faithful_error", Fraction(1792, 1025)),
        (4, 10, "two_sum_faithful_error", Fraction(3840, 2033)),
        (8, 16, "fast_two_sum_faithful_error", Fraction(8323072, 4194433)),
        (8, 16, "two_sum_faithful_error", Fraction(16711680, 8388353)),
    ],
)
def test_errors_of_sums_that_are_rounded_up(precision, gap, name, worst):
    fmt = Format("", precision=precision, emin=-40, emax=40)
    gaps = range(-gap, 1 if name.startswith("fast") else gap + 1)
    tables = significands(fmt, [0], signs=False), significands(fmt, gaps, signs=True)
    found = [on_tables(BY_NAME[name], fmt, mode, *tables) for mode in ("up", "down")]
    assert max(map(constant, found)) == worst
    assert all(each.violations == 0 for each in found)


@pytest.mark.parametrize("name", FAITHFUL_ERRORS)
def test_the_error_of_a_sum_approaches_2_u2_as_one_operand_vanishes(name):
    fmt, u = get_format("bfloat16"), Fraction(1, 256)
    for k in (20, 60, 120):
        b = Fraction(1, 2**k)
        # 1 + 2u - 2u + 2u^2 is returned for 1 + b.
        assert constant(on_tables(BY_NAME[name], fmt, "up", [1.0], [float(b)])) == (2 - b / u**2) / (1 + b)


def test_most_directed_sums_of_two_sum_are_exact_and_many_are_not():
    fmt = Format("", precision=5, emin=-40, emax=40)
    tables = significands(fmt, [0], signs=False), significands(fmt, range(-14, 15), signs=True)
    found = {mode: on_tables(BY_NAME["two_sum_directed"], fmt, mode, *tables) for mode in FAITHFUL}
    assert {each.applicable for each in found.values()} == {14_848}
    assert {str(mode): each.violations for mode, each in found.items() if mode != "to_odd"} == {
        "toward_zero": 6144,
        "up": 8240,
        "down": 4096,
    }


@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
def test_cores_of_sixteen_bits_cover_the_format(fmt):
    for theorem in STATEMENTS:
        for mode in theorem.modes:
            domain = cover(theorem, get_format(fmt), Rounding(mode, underflow=theorem.underflow))
            # What flushing leaves of a large and a small operand is not tried.
            assert domain.covers == (theorem.underflow is Underflow.GRADUAL)
            assert domain.size < 2**32  # no more than all pairs


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", ["bfloat16", NARROW])
@pytest.mark.parametrize("theorem", STATEMENTS, ids=lambda theorem: theorem.name)
def test_sixteen_bits(theorem, fmt):
    for mode in theorem.modes & {"nearest_even", "toward_zero"}:
        assert (on_domain(theorem, fmt, mode, "core").violations == 0) == theorem.holds


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["two_sum", "fast_two_sum"])
def test_all_pairs_of_bfloat16(name):
    found = on_domain(BY_NAME[name], "bfloat16", "nearest_even")
    assert found.violations == 0
    assert found.applicable > 2_000_000_000


# -- that a wrong algorithm is found out --------------------------------------------------------------------
def _without_last_addition(ar, a, b):
    s = ar.add(a, b)
    return s, ar.sub(a, ar.sub(s, b))


def _with_operands_exchanged(ar, a, b):
    s = ar.add(a, b)
    return s, ar.sub(a, ar.sub(s, b))


def _with_another_sum(ar, a, b):
    s, e = two_sum(ar, a, b)
    half = ar.mul(s, 0.5)
    return half, ar.add(half, e)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("two_sum", _without_last_addition),
        ("two_sum", fast_two_sum),
        ("two_sum", _with_another_sum),
        ("fast_two_sum", _with_operands_exchanged),
        ("fast_two_sum_multiple", _with_operands_exchanged),
    ],
)
def test_an_altered_algorithm_is_caught(name, mutant):
    assert on_domain(altered(BY_NAME[name], mutant), "float8_e4m3fn", "nearest_even").violations > 0


def test_a_sum_in_two_numbers_that_are_not_its_rounding_is_still_a_sum():
    def halves(ar, a, b):
        s = ar.add(a, b)
        return ar.mul(s, 0.5), ar.mul(s, 0.5)

    fmt = Format("", precision=3, emin=-20, emax=20)
    values = significands(fmt, range(-9, 9), signs=True)
    found = on_tables(altered(BY_NAME["two_sum"], halves), fmt, "nearest_even", values, values)
    r = Rationals(fmt)
    inexact = sum(Fraction(a) + Fraction(b) not in r.values for a in values.tolist() for b in values.tolist())
    assert found.violations == inexact > 0
