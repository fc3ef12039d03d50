"""Published numbers about sums, products and roots, found again; and that an altered algorithm is caught."""

from fractions import Fraction

import numpy as np
import pytest

from mcfsim.eft import fast_two_sum, split, two_sum
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.theorems import THEOREMS
from mcfsim.theorems.operands import finite_values, significands
from mcfsim.theorems.statement import FAITHFUL, NEAREST
from tests.theorems.trying import Rationals, altered, constant, on_domain, on_tables

pytestmark = pytest.mark.slow

BFLOAT16 = get_format("bfloat16")
SMALL = [fmt for fmt in FORMATS.values() if type(fmt) is Format and fmt.bits <= 8 and fmt.signed]


def wide(precision):
    return Format("", precision=precision, emin=-60, emax=60)


def counts(found):
    return found.applicable, found.violations


# -- errors that are values ---------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", sorted(FAITHFUL))
def test_a_directed_sum_of_bfloat16_has_an_error_of_nine_bits_from_a_gap_of_nine_on(mode):
    theorem = THEOREMS["add_error_representable_wider_gap"]
    first = significands(BFLOAT16, [0], signs=False)
    for gap in (0, 8, 9, 10, 11):
        found = on_tables(theorem, BFLOAT16, mode, first, significands(BFLOAT16, [-gap], signs=True))
        if gap <= 8:
            assert counts(found) == (2**15, 0)
        elif gap == 9:
            assert found.violations == (8192 if mode == "up" else 8128)
        else:
            assert found.applicable == 0
    assert on_tables(theorem, BFLOAT16, "up", [1.0], [129 * 2.0**-16]).violations == 1


@pytest.mark.parametrize(
    ("fmt", "pairs"), [((3, -4, 4), 740), ((4, -6, 7), 4932), ((3, -14, 15), 1700)], ids=str
)
def test_many_products_have_a_representable_error_although_their_exponents_are_small(fmt, pairs):
    precision, emin, emax = fmt
    fmt = Format("", precision=precision, emin=emin, emax=emax)
    assert on_domain(THEOREMS["prod_error_exponents_iff"], fmt, "nearest_even").violations == pairs


def test_roots_that_are_not_rounded_to_nearest_may_leave_no_representable_remainder():
    directed = THEOREMS["sqrt_remainder_directed"]
    three, four = (Format("", precision=p, emin=-6, emax=6) for p in (3, 4))
    assert on_tables(directed, three, "up", [0.625]).violations == 1  # 0.875 squared is 0.140625 more
    assert on_tables(directed, four, "down", [0.75]).violations == 1  # 0.8125 squared is 0.08984375 less
    assert counts(on_domain(directed, "bfloat16", "up")) == (31_489, 2952)


# -- sums ---------------------------------------------------------------------------------------------------
def test_unordered_operands_of_bfloat16_make_fast_two_sum_worthless():
    tables = significands(BFLOAT16, [0], signs=False), significands(BFLOAT16, range(1, 21), signs=True)
    inexact = on_tables(THEOREMS["fast_two_sum_unordered"], BFLOAT16, "nearest_even", *tables)
    assert counts(inexact) == (655_360, 614_528)
    off = on_tables(THEOREMS["fast_two_sum_unordered_error"], BFLOAT16, "nearest_even", *tables)
    assert constant(off) == Fraction(256, 257) == off.theorem.worst(8)
    known = on_tables(off.theorem, BFLOAT16, "nearest_even", [1.0], [-258.0])
    assert constant(known) == Fraction(256, 257)


@pytest.mark.parametrize(("name", "even", "away"), [("float16", 1022, 2046), ("bfloat16", 126, 254)])
def test_only_a_largest_first_operand_overflows_on_the_way(name, even, away):
    fmt, theorem = get_format(name), THEOREMS["two_sum_any"]
    values, largest = finite_values(fmt), float(fmt.max)
    ends, rest = [largest, -largest], values[np.abs(values) < largest]
    for mode, count in (("nearest_even", even), ("nearest_away", away)):
        assert on_tables(theorem, fmt, mode, values, ends).violations == 0
        assert on_tables(theorem, fmt, mode, ends, rest).violations == count


@pytest.mark.parametrize("fmt", SMALL, ids=str)
def test_no_other_first_operand_does_in_eight_bits(fmt):
    values = finite_values(fmt)
    rest = values[np.abs(values) < float(fmt.max)]
    for mode in NEAREST:
        assert on_tables(THEOREMS["two_sum_any"], fmt, mode, rest, values).violations == 0


@pytest.mark.parametrize(
    ("precision", "gap", "name", "worst"),
    [
        (3, 8, "fast_two_sum_faithful_error", Fraction(448, 257)),
        (3, 8, "two_sum_faithful_error", Fraction(448, 249)),
        (4, 10, "fast_two_sum_faithful_error", Fraction(1792, 1025)),
        (4, 10, "two_sum_faithful_error", Fraction(3840, 2033)),
        (8, 16, "fast_two_sum_faithful_error", Fraction(8323072, 4194433)),
        pytest.param(
            *(8, 16, "two_sum_faithful_error", Fraction(16711680, 8388353)), marks=pytest.mark.exhaustive
        ),
    ],
)
def test_errors_of_sums_that_are_rounded_up(precision, gap, name, worst):
    fmt = wide(precision)
    gaps = range(-gap, 1 if name.startswith("fast") else gap + 1)
    tables = significands(fmt, [0], signs=False), significands(fmt, gaps, signs=True)
    found = [on_tables(THEOREMS[name], fmt, mode, *tables) for mode in ("up", "down")]
    assert max(map(constant, found)) == worst
    assert all(each.violations == 0 for each in found)


@pytest.mark.parametrize("name", ["two_sum_faithful_error", "fast_two_sum_faithful_error"])
def test_the_error_of_a_sum_approaches_2_u2_as_one_operand_vanishes(name):
    for k in (20, 60, 120):
        b = Fraction(1, 2**k)
        # 1 + 2u - 2u + 2u^2 is returned for 1 + b.
        found = on_tables(THEOREMS[name], BFLOAT16, "up", [1.0], [float(b)])
        assert constant(found) == (2 - b * 2**16) / (1 + b)


def test_most_directed_sums_of_two_sum_are_exact_and_many_are_not():
    fmt = wide(5)
    tables = significands(fmt, [0], signs=False), significands(fmt, range(-14, 15), signs=True)
    for mode, violations in {"toward_zero": 6144, "up": 8240, "down": 4096}.items():
        found = on_tables(THEOREMS["two_sum_directed"], fmt, mode, *tables)
        assert counts(found) == (14_848, violations)


# -- products -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("precision", "pairs"), [(3, 1), (4, 0), (5, 27), (6, 0), (8, 0), pytest.param(11, 150_877)]
)
def test_the_smaller_half_of_an_odd_precision_is_a_wrong_split(precision, pairs):
    fmt = wide(precision)
    one = significands(fmt, [0], signs=False)
    found = on_tables(THEOREMS["two_prod_floor_split"], fmt, "nearest_even", one, one)
    assert counts(found) == (4 ** (precision - 1), pairs)
    for mode in NEAREST:
        assert on_tables(THEOREMS["two_prod"], fmt, mode, one, one).violations == 0


@pytest.mark.parametrize("precision", range(3, 12))
def test_the_high_half_is_the_number_rounded_whatever_the_tie(precision):
    fmt = wide(precision)
    one = significands(fmt, [0], signs=True)
    assert counts(on_tables(THEOREMS["split_to_nearest"], fmt, "nearest_even", one)) == (2**precision, 0)


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_every_number_splits_as_far_as_nothing_overflows(fmt):
    for mode in NEAREST:
        assert on_domain(THEOREMS["split"], fmt, mode).violations == 0
    assert on_domain(THEOREMS["split_to_nearest"], fmt, "nearest_even").violations == 0


@pytest.mark.parametrize("precision", [3, 4])
@pytest.mark.parametrize("mode", sorted(NEAREST))
@pytest.mark.sampled(4, each=False)
def test_the_error_of_a_fused_multiply_add_is_two_numbers_and_not_one(precision, mode):
    fmt = Format("", precision=precision, emin=-4, emax=5)
    values = finite_values(fmt)
    two, one = (
        on_tables(THEOREMS[name], fmt, mode, values[values > 0], values, values)
        for name in ("fma_error", "fma_error_one")
    )
    assert two.violations == 0
    assert two.applicable > two.theorem.precision * 10_000
    assert 0.1 < one.violations / one.applicable < 0.5


@pytest.mark.parametrize("name", ["fma_error", "fma_error_one"])
def test_the_family_of_near_cancellation_interacts(name):
    cases = np.array([[float(x) for x in case] for case in THEOREMS[name].families(8)])
    a, b, c = cases.T
    assert ((np.abs(a * b + c) < np.abs(a * b) / 64) & (a * b + c != 0)).sum() > 50
    assert len(np.unique(cases, axis=0)) == len(cases)


# -- that a wrong algorithm is found out --------------------------------------------------------------------
def _without_last_addition(ar, a, b):
    s = ar.add(a, b)
    return s, ar.sub(a, ar.sub(s, b))


def _with_another_sum(ar, a, b):
    s, e = two_sum(ar, a, b)
    half = ar.mul(s, 0.5)
    return half, ar.add(half, e)


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
        ("two_sum", _without_last_addition),
        ("two_sum", fast_two_sum),
        ("two_sum", _with_another_sum),
        ("fast_two_sum", _without_last_addition),
        ("fast_two_sum_multiple", _without_last_addition),
        ("two_prod_fma", _without_fma),
        ("two_prod", _without_low_times_low),
        ("split", _split_in_two_steps),
        ("split_to_nearest", _split_in_two_steps),
    ],
)
def test_an_altered_algorithm_is_caught(name, mutant):
    assert on_domain(altered(THEOREMS[name], mutant), "float8_e4m3fn", "nearest_even").violations > 0


def test_a_sum_in_two_numbers_that_are_not_its_rounding_is_still_a_sum():
    def halves(ar, a, b):
        s = ar.add(a, b)
        return ar.mul(s, 0.5), ar.mul(s, 0.5)

    fmt = Format("", precision=3, emin=-20, emax=20)
    values = significands(fmt, range(-9, 9), signs=True)
    found = on_tables(altered(THEOREMS["two_sum"], halves), fmt, "nearest_even", values, values)
    known = Rationals(fmt).values
    inexact = sum(Fraction(a) + Fraction(b) not in known for a in values.tolist() for b in values.tolist())
    assert found.violations == inexact > 0
