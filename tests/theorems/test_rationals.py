"""Statements on single operations, sums and products, counted again in rationals; constants; identities."""

import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mcfsim.eft import fast_two_sum, split, two_prod, two_prod_fma, two_sum
from mcfsim.formats import Format, get_format
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding
from mcfsim.theorems import THEOREMS
from mcfsim.theorems.catalogue import products, representability, sums
from mcfsim.theorems.logic.bits import has_bits, is_value
from mcfsim.theorems.logic.sums import equal_sums, is_difference, rest_of_sum
from mcfsim.theorems.operands import significands
from mcfsim.theorems.statement import NEAREST
from tests.theorems.trying import Rationals, constant, on_tables

E4M3 = get_format("float8_e4m3fn")
TOY = Format("toy", precision=3, emin=-3, emax=3)


def _total(parts):
    """Return the sum of results, or None if there is none."""
    return sum(map(Fraction, parts)) if np.isfinite(parts).all() else None


# -- by the definitions: of each statement, whether it is applicable to a case, and whether it holds ---------
def _of_two_sums(r, ar, mode, a, b):
    x, y, u = Fraction(a), Fraction(b), r.fmt.unit_roundoff
    in_range, in_order = abs(x + y) <= r.fmt.max, abs(x) >= abs(y)
    nearest = mode in NEAREST
    not_largest = abs(x) < r.fmt.max
    exponents = 0 in (x, y) or r.exponent(x) >= r.exponent(y)
    s, e = (float(part) for part in two_sum(ar, a, b))
    total = _total([s, e]) if np.isfinite(e) else None
    if in_range and not_largest:
        yield "two_sum" if nearest else "two_sum_directed", total == x + y
        if not nearest:
            yield "two_sum_faithful_error", total is not None and abs(total - x - y) <= 2 * u**2 * abs(x + y)
    if nearest:
        if in_range:
            yield "two_sum_any", total == x + y
        if np.isfinite(s) and not_largest:
            yield "two_sum_overflow", np.isfinite(e)
    s, e = (float(part) for part in fast_two_sum(ar, a, b))
    total = _total([s, e]) if np.isfinite(e) else None
    exact = total == x + y
    if nearest:
        if in_range and in_order:
            yield "fast_two_sum", exact
        if in_range and exponents:
            yield "fast_two_sum_exponents", exact
        if in_range and (x / r.ulp(y)).denominator == 1:
            yield "fast_two_sum_multiple", exact
        if in_range:
            yield "fast_two_sum_unordered", exact
        if total is not None:
            yield "fast_two_sum_unordered_error", abs(total - x - y) <= u * abs(x + y)
        if in_order and np.isfinite(s):
            yield "fast_two_sum_overflow", total is not None
    elif in_range and exponents:
        moved, possible = Fraction(s) - x in r.values, x + y - Fraction(s) in r.values
        yield "fast_two_sum_faithful", moved and total is not None and exact == possible
        yield "fast_two_sum_faithful_error", abs(total - x - y) <= 2 * u**2 * abs(x + y)


def _of_sums(r, ar, mode, a, b):
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


def _of_products(r, ar, mode, a, b):
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


def _of_quotients(r, ar, mode, y, x):
    if y == 0 or abs(Fraction(x) / Fraction(y)) > r.fmt.max:
        return
    q = Fraction(ar.div(x, y))
    if abs(q) < r.fmt.smallest_normal:
        return
    held = Fraction(x) - q * Fraction(y) in r.values
    yield "div_remainder_any", held
    if r.exponent(y) + r.exponent(q) >= r.fmt.emin + r.fmt.precision - 1:
        yield "div_remainder", held


def _of_roots(r, ar, mode, x):
    if x > 0:
        s = Fraction(ar.sqrt(x))
        if 2 * r.exponent(s) >= r.fmt.emin + r.fmt.precision - 1:
            name = "sqrt_remainder" if mode in NEAREST else "sqrt_remainder_directed"
            yield name, Fraction(x) - s * s in r.values


def _of_two_products(r, ar, mode, a, b):
    fmt, exact = r.fmt, Fraction(a) * Fraction(b)
    if abs(exact) <= fmt.max:
        held = _total(two_prod_fma(ar, a, b)) == exact
        yield "two_prod_fma", held == ((exact / r.quantum).denominator == 1)
        yield "two_prod_fma_any", held
    s = (fmt.precision + 1) // 2
    room = fmt.max / (2**s + 1)
    in_range = max(abs(Fraction(a)), abs(Fraction(b))) <= room and abs(exact) <= fmt.max / 2
    large = exact == 0 or abs(exact) >= Fraction(2) ** (fmt.emin + fmt.precision)
    if mode in NEAREST and in_range and large:
        yield "two_prod", _total(two_prod(ar, a, b)) == exact
        yield "two_prod_floor_split", _total(two_prod(ar, a, b, bits=fmt.precision // 2)) == exact


def _of_splits(r, ar, mode, x):
    p = r.fmt.precision
    s = (p + 1) // 2
    if mode in NEAREST and (2**s + 1) * abs(Fraction(x)) <= r.fmt.max:
        high, low = map(Fraction, split(ar, x))
        yield "split", high + low == Fraction(x) and _bits(high) <= p - s and _bits(low) <= s - 1
        unit = Fraction(2) ** (r.exponent(x) - p + s + 1) if x else 1
        yield "split_to_nearest", high == round(Fraction(x) / unit) * unit


def _bits(x):
    """Return how many bits a rational's significand has from its first to its last one."""
    n = abs(x.numerator)
    return (n // (n & -n)).bit_length() if n else 0


def _of_fused(r, ar, mode, a, b, c):
    result = ar.fma(a, b, c)
    exact = Fraction(a) * Fraction(b)
    if mode in NEAREST and np.isfinite(result) and (exact / r.quantum).denominator == 1:
        yield "fma_error_one", exact + Fraction(c) - Fraction(result) in r.values


#: Of each: formats; of the numbers of each operand every so manieth.
COUNTED = {
    _of_two_sums: ([TOY], (1, 1)),
    _of_sums: ([TOY], (1, 1)),
    _of_products: ([TOY], (1, 1)),
    _of_quotients: ([TOY], (1, 1)),
    _of_roots: ([E4M3], (1,)),
    _of_two_products: ([Format("", precision=3, emin=-5, emax=6)], (3, 1)),
    _of_splits: ([TOY, E4M3, Format("", precision=5, emin=-5, emax=9)], (1,)),
    _of_fused: ([Format("", precision=3, emin=-5, emax=5)], (11, 9, 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(map(str, DETERMINISTIC)))
@pytest.mark.parametrize("definition", COUNTED)
@pytest.mark.sampled(60, each=False)
def test_counts_are_those_of_rationals(definition, mode):
    formats, steps = COUNTED[definition]
    for fmt in formats:
        r, ar = Rationals(fmt), OracleArithmetic(fmt, Rounding(mode))
        tables = [r.numbers[::step] for step in steps]
        applicable, violations = Counter(), Counter()
        for case in itertools.product(*tables):
            for name, held in definition(r, ar, mode, *case):
                applicable[name] += 1
                violations[name] += not held
        for name in applicable:
            found = on_tables(THEOREMS[name], fmt, mode, *tables)
            assert (found.applicable, found.violations) == (applicable[name], violations[name]), (name, fmt)


def test_every_statement_of_three_chapters_is_counted():
    """But flushed sums, which are below, and the two errors of a fused operation."""
    names = {t.name for chapter in (representability, sums, products) for t in chapter.THEOREMS}
    names -= {"two_sum_flushed", "fast_two_sum_flushed", "fma_error"}
    assert all(f'"{name}"' in Path(__file__).read_text() for name in names)


def test_flushed_sums_of_normal_numbers_lose_their_error():
    fmt = Format("", precision=3, emin=-4, emax=4)
    normal = [x for x in Rationals(fmt).numbers if x == 0 or abs(x) >= fmt.smallest_normal]
    ar, tables = OracleArithmetic(fmt, Rounding(underflow="flush_after")), (normal[::5], normal[::2])
    for name, text, supposed in (
        ("two_sum_flushed", two_sum, lambda a, b: abs(a) < fmt.max),
        ("fast_two_sum_flushed", fast_two_sum, lambda a, b: abs(a) >= abs(b)),
    ):
        wrong = 0
        for a, b in itertools.product(*tables):
            exact = Fraction(a) + Fraction(b)
            wrong += abs(exact) <= fmt.max and supposed(a, b) and _total(text(ar, a, b)) != exact
        assert on_tables(THEOREMS[name], fmt, "nearest_even", *tables).violations == wrong > 0


# -- constants ----------------------------------------------------------------------------------------------
def significands_at(precision, gaps):
    """Return a format of so many bits, numbers in [1, 2), and others by how much larger they are."""
    fmt = Format("", precision=precision, emin=-60, emax=60)
    return fmt, (significands(fmt, [0], signs=False), significands(fmt, gaps, signs=True))


@pytest.mark.parametrize(
    ("name", "precision", "gaps", "modes", "worst"),
    [
        ("fast_two_sum_unordered_error", 8, (1, 21), ["nearest_even"], Fraction(256, 257)),
        ("fast_two_sum_faithful_error", 3, (-8, 1), ["up", "down"], Fraction(448, 257)),
        ("two_sum_faithful_error", 3, (-8, 9), ["up", "down"], Fraction(448, 249)),
        ("two_sum_faithful_error", 4, (-10, 11), ["up", "down"], Fraction(3840, 2033)),
        ("fast_two_sum_faithful_error", 8, (-16, 1), ["up", "down"], Fraction(8323072, 4194433)),
    ],
)
def test_the_worst_errors_of_sums(name, precision, gaps, modes, worst):
    fmt, tables = significands_at(precision, range(*gaps))
    found = [on_tables(THEOREMS[name], fmt, mode, *tables) for mode in modes]
    assert max(map(constant, found)) == worst
    assert all(each.violations == 0 for each in found)
    if modes == ["nearest_even"]:
        assert worst == THEOREMS[name].worst(precision)


@pytest.mark.parametrize(("precision", "pairs"), [(3, 1), (5, 27), (6, 0), (11, 150_877)])
def test_the_smaller_half_of_an_odd_precision_is_a_wrong_split(precision, pairs):
    fmt, (one, _) = significands_at(precision, [0])
    found = on_tables(THEOREMS["two_prod_floor_split"], fmt, "nearest_even", one, one)
    assert (found.applicable, found.violations) == (4 ** (precision - 1), pairs)


# -- identities that statements are tried by ----------------------------------------------------------------
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
        found = np.array([is_difference(e, x, y), is_difference(y, s, x), equal_sums(x, y, s, e)])
        rest, held, sure = rest_of_sum(x, y, s)
        held &= sure
    counts = np.zeros(3, int)
    for i, numbers in enumerate(zip(*(part.tolist() for part in (x, y, s, e)), strict=True)):
        truth = [False] * 3
        if np.isfinite(numbers).all():
            a, b, c, d = map(Fraction, numbers)
            truth = [d == a - b, b == c - a, a + b == c + d]
        assert found[:, i].tolist() == truth, numbers
        assert not held[i] or Fraction(float(rest[i])) + Fraction(numbers[2]) == sum(
            map(Fraction, numbers[:2])
        )
        counts += truth
    assert min(*counts[1:], np.count_nonzero(held)) > 200
    assert counts[2] < size - 200
    # Numbers far apart, which are decided in integers.
    x, y = np.float64([1.0, 1.0, 1.0]), np.float64([2.0**-80, 2.0**-80, 2.0**-80])
    s, e = np.float64([0.5, 2.0**-80, 2.0**-80]), np.float64([0.5, 1.0, 1.0 + 2.0**-52])
    assert equal_sums(x, y, s, e).tolist() == [False, True, False]


@pytest.mark.parametrize("fmt", [TOY, E4M3, get_format("float8_e5m2")], ids=str)
def test_values_are_told_from_other_numbers(fmt):
    r = Rationals(fmt)
    halves = [x / 2 for x in r.numbers] + [x + y / 4 for x, y in itertools.pairwise(r.numbers)]
    numbers = np.array([*r.numbers, *halves, 2 * float(fmt.max), np.nan, np.inf, -np.inf])
    expected = [np.isfinite(x) and Fraction(x) in r.values for x in numbers.tolist()]
    assert is_value(numbers, fmt).tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_bits_are_counted_from_the_first_to_the_last_one():
    x = np.array([0.0, 1.0, 3.0, -5.0, 0.75])
    for bits in range(3):
        assert has_bits(x, bits).tolist() == [_bits(Fraction(number)) <= bits for number in x.tolist()]
