"""Single operations, sums and products counted again in rationals; double rounding against the oracle."""

import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.eft import fast_two_sum, split, two_prod, two_prod_fma, two_sum
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, NEAREST, Mode, Rounding
from mcfsim.theorems import THEOREMS, verify
from mcfsim.theorems.catalogue import double_rounding, exact_products, representability, sums
from mcfsim.theorems.claims import same_results
from mcfsim.theorems.domain import cover
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.operands import significands, value
from mcfsim.theorems.parts import Selection
from mcfsim.theorems.rounding_twice import NEEDS, twice, wider
from mcfsim.theorems.statement import EVERY_MODE, Theorem
from tests.shared.rationals import floor_log2
from tests.theorems.trying import Rationals, bits_of, constant, on_domain, on_tables

pytestmark = pytest.mark.slow

E4M3 = get_format("float8_e4m3fn")
TOY = Format("toy", precision=3, emin=-3, emax=3)


def _wrong(parts, exact):
    """Return by how much the sum of results is another one."""
    return abs(sum(map(Fraction, parts)) - exact) if np.isfinite(parts).all() else np.inf


# -- by the definitions: of each statement, whether it is applicable to a case, and whether it holds ---------
def _of_two_sums(r, ar, mode, a, b):
    x, y, u, most = Fraction(a), Fraction(b), r.fmt.unit_roundoff, r.fmt.max
    near, in_range, in_order = mode in NEAREST, abs(x + y) <= most, abs(x) >= abs(y)
    inner, small = in_range and abs(x) < most, 2 * u**2 * abs(x + y)
    s, e = map(float, two_sum(ar, a, b))
    wrong = _wrong([s, e], x + y)
    yield "two_sum", near and inner, wrong == 0
    yield "two_sum_any", near and in_range, wrong == 0
    yield "two_sum_overflow", near and np.isfinite(s) and abs(x) < most, np.isfinite(e)
    yield "two_sum_directed", not near and inner, wrong == 0
    yield "two_sum_faithful_error", not near and inner, wrong <= small
    exponents = in_range and (0 in (x, y) or floor_log2(x) >= floor_log2(y))
    s, e = map(float, fast_two_sum(ar, a, b))
    wrong = _wrong([s, e], x + y)
    yield "fast_two_sum", near and in_range and in_order, wrong == 0
    yield "fast_two_sum_exponents", near and exponents, wrong == 0
    yield "fast_two_sum_multiple", near and in_range and (x / r.ulp(y)).denominator == 1, wrong == 0
    yield "fast_two_sum_unordered", near and in_range, wrong == 0
    yield "fast_two_sum_unordered_error", near and wrong < np.inf, wrong <= u * abs(x + y)
    yield "fast_two_sum_overflow", near and in_order and np.isfinite(s), wrong < np.inf
    if exponents and not near:
        moved, possible = Fraction(s) - x in r.values, x + y - Fraction(s) in r.values
        yield "fast_two_sum_faithful", True, moved and wrong < np.inf and (wrong == 0) == possible
        yield "fast_two_sum_faithful_error", True, wrong <= small


def _of_sums(r, ar, mode, a, b):
    x, y, p = Fraction(a), Fraction(b), r.fmt.precision
    yield "sterbenz", x * y >= 0 and abs(y) <= 2 * abs(x) <= 4 * abs(y), ar.sub(a, b) == x - y
    if abs(x + y) <= r.fmt.max:
        s = Fraction(ar.add(a, b))
        held, small = x + y - s in r.values, abs(x + y - s) <= min(r.ulp(s) / 2, abs(x), abs(y))
        gap = 0 if 0 in (x, y) else abs(floor_log2(x) - floor_log2(y))
        yield "add_error_representable", True, held and small
        yield "add_error_representable_faithful", gap <= p, held
        yield "add_error_representable_wider_gap", gap <= p + 1, held


def _of_products(r, ar, mode, a, b):
    exact = Fraction(a) * Fraction(b)
    if abs(exact) <= r.fmt.max:
        held = exact - Fraction(ar.mul(a, b)) in r.values
        large = exact and floor_log2(a) + floor_log2(b) >= r.fmt.emin + r.fmt.precision - 1
        yield "prod_error_representable", True, held == ((exact / r.quantum).denominator == 1)
        yield "prod_error_exponents_iff", exact != 0, held == large
        yield "prod_error_exponents_sufficient", large, held


def _of_quotients(r, ar, mode, y, x):
    if y and abs(Fraction(x) / Fraction(y)) <= r.fmt.max:
        q = Fraction(ar.div(x, y))
        normal, held = abs(q) >= r.fmt.smallest_normal, Fraction(x) - q * Fraction(y) in r.values
        large = normal and floor_log2(y) + floor_log2(q) >= r.fmt.emin + r.fmt.precision - 1
        yield "div_remainder_any", normal, held
        yield "div_remainder", large, held


def _of_roots(r, ar, mode, x):
    s = Fraction(ar.sqrt(x)) if x > 0 else Fraction(0)
    large = x > 0 and 2 * floor_log2(s) >= r.fmt.emin + r.fmt.precision - 1
    name = "sqrt_remainder" if mode in NEAREST else "sqrt_remainder_directed"
    yield name, large, Fraction(x) - s * s in r.values


def _of_two_products(r, ar, mode, a, b):
    fmt, exact = r.fmt, Fraction(a) * Fraction(b)
    in_range, right = abs(exact) <= fmt.max, _wrong(two_prod_fma(ar, a, b), exact) == 0
    yield "two_prod_fma", in_range, right == ((exact / r.quantum).denominator == 1)
    yield "two_prod_fma_any", in_range, right
    room = fmt.max / (2 ** ((fmt.precision + 1) // 2) + 1)
    small = max(abs(Fraction(a)), abs(Fraction(b))) <= room and abs(exact) <= fmt.max / 2
    large = exact == 0 or abs(exact) >= Fraction(2) ** (fmt.emin + fmt.precision)
    there = mode in NEAREST and small and large
    yield "two_prod", there, _wrong(two_prod(ar, a, b), exact) == 0
    yield "two_prod_floor_split", there, _wrong(two_prod(ar, a, b, bits=fmt.precision // 2), exact) == 0


def _of_splits(r, ar, mode, x):
    p, s = r.fmt.precision, (r.fmt.precision + 1) // 2
    if mode in NEAREST and (2**s + 1) * abs(Fraction(x)) <= r.fmt.max:
        high, low = map(Fraction, split(ar, x))
        unit = Fraction(2) ** (floor_log2(x) - p + s + 1) if x else 1
        few = bits_of(high) <= p - s and bits_of(low) <= s - 1
        yield "split", True, high + low == Fraction(x) and few
        yield "split_to_nearest", True, high == round(Fraction(x) / unit) * unit


def _of_fused(r, ar, mode, a, b, c):
    result, exact = ar.fma(a, b, c), Fraction(a) * Fraction(b)
    there = mode in NEAREST and np.isfinite(result) and (exact / r.quantum).denominator == 1
    yield "fma_error_one", there, there and exact + Fraction(c) - Fraction(result) in r.values


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
@pytest.mark.parametrize(
    ("definition", "mode"),
    [(x, str(y)) for x in COUNTED for y in DETERMINISTIC if y in NEAREST or x not in (_of_splits, _of_fused)],
)
@pytest.mark.sampled(60, each=False)
def test_counts_are_those_of_rationals(definition, mode):
    formats, steps = COUNTED[definition]
    for fmt in formats:
        r, ar = Rationals(fmt), OracleArithmetic(fmt, Rounding(mode))
        tables = [r.numbers[::step] for step in steps]
        applicable, violations = Counter(), Counter()
        for case in itertools.product(*tables):
            for name, there, held in definition(r, ar, mode, *case):
                applicable[name] += bool(there)
                violations[name] += bool(there and not held)
        assert +applicable, fmt
        for name in +applicable:
            found = on_tables(THEOREMS[name], fmt, mode, *tables)
            assert (found.applicable, found.violations) == (applicable[name], violations[name]), (name, fmt)


def test_every_statement_of_three_chapters_is_counted():
    """But flushed sums, which are below, and the two errors of a fused operation."""
    names = {t.name for chapter in (representability, sums, exact_products) for t in chapter.THEOREMS}
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
            wrong += abs(exact) <= fmt.max and supposed(a, b) and _wrong(text(ar, a, b), exact) != 0
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


def state(operation, widening, first=None):
    names, scaling = double_rounding.OPERANDS[operation], double_rounding.SCALINGS[operation]
    algorithm, operands = twice(operation, widening, first), tuple(map(value, names))
    return Theorem("own", algorithm, operands, same_results("same"), scaling=scaling, modes=EVERY_MODE)


# -- what carriers need -------------------------------------------------------------------------------------
@pytest.mark.parametrize("operation", ["add", "mul", "div", "sqrt"])
def test_which_carriers_serve_which_formats(operation):
    both, fine = {"float32", "float64"}, {"bfloat16"} if operation in ("mul", "div") else set()
    for fmt, serving in {
        "bfloat16": both,
        "float16": both,
        "tf32": {"float64"} if operation == "mul" else both,
        "float8_e4m3fn": {*both, "float16", *fine},
        "float8_e5m2": {*both, "float16", "bfloat16"},
    }.items():
        for carrier in double_rounding.CARRIERS:
            (hypothesis,) = THEOREMS[f"{operation}_via_{carrier}"].where
            assert hypothesis.possible(FORMATS[fmt], Rounding()) == (carrier in serving), (fmt, carrier)


TOYS = [Format(precision=p, emin=-e, emax=e) for p, e in ((2, 2), (2, 5), (3, 2), (3, 7), (4, 5))]


def wrong_by(operation, fmt, fewer=0, higher=0):
    """Return how many operands go wrong in a carrier of what is needed, or of so much less."""
    bits, least = NEEDS[operation].bits(fmt) - fewer, NEEDS[operation].quantum(fmt) + higher
    carrier = Format(precision=bits, emin=least + bits - 1, emax=max(fmt.emax, least + bits - 1))
    return on_domain(state(operation, lambda _: carrier, Mode.NEAREST_EVEN), fmt, "nearest_even").violations


@pytest.mark.parametrize("operation", ["add", "mul", "div", "sqrt"])
def test_needs_suffice_and_one_bit_less_does_not(operation):
    assert [wrong_by(operation, fmt) for fmt in TOYS] == [0] * len(TOYS)
    assert any(wrong_by(operation, fmt, fewer=1) for fmt in TOYS)
    # A carrier whose smallest number is larger than the format's holds no sums.
    higher = [wrong_by(operation, fmt, higher=1) > 0 for fmt in TOYS]
    assert operation == "add" or any(higher)
    assert operation != "div" or all(higher)


@pytest.mark.parametrize(
    ("e", "bits", "found"), [(5, 13, 76), pytest.param(6, 15, 88, marks=pytest.mark.exhaustive)]
)
def test_bits_that_an_fma_needs_are_the_fewest(e, bits, found):
    fmt = Format(precision=3, emin=-e, emax=e)
    assert NEEDS["fma"].bits(fmt) == bits
    assert (wrong_by("fma", fmt), wrong_by("fma", fmt, fewer=1)) == (0, found)


# -- results ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("operation", list(double_rounding.OPERANDS))
@pytest.mark.parametrize("mode", list(DETERMINISTIC))
@pytest.mark.sampled(9)
def test_both_ways_are_those_of_the_oracle(operation, mode):
    fmt, rounding = FORMATS["float6_e3m2fn"], Rounding(mode)
    ar, truth = BlockArithmetic(fmt, rounding, "exact"), OracleArithmetic(fmt, rounding)
    carriers = [wider(lambda p: p + 1), wider(lambda p: 2 * p), lambda _: FORMATS["float16"]]
    for widening, first in zip(carriers, (None, Mode.TO_ODD, Mode.NEAREST_EVEN), strict=True):
        theorem = state(operation, widening, first)
        ((_, blocks), *_) = cover(theorem, fmt, rounding, Selection("all")).blocks(0, 1 << 18)
        blocks = [block[:: max(1, block.size // 20)] for block in blocks]
        results = try_block(theorem, ar, blocks).results
        for i, case in enumerate(zip(*map(np.ndarray.tolist, blocks), strict=True)):
            expected = theorem.algorithm(truth, *case)
            np.testing.assert_array_equal([x[i] for x in results], expected)
            np.testing.assert_array_equal(getattr(truth, operation)(*case), expected[0])


@pytest.mark.parametrize(
    ("name", "fmt", "operands", "once", "twice"),
    [
        ("add_via_bfloat16_any", "float8_e4m3fn", (416.0, 15.0), 416.0, 448.0),
        ("innocuous_mul_2p_minus_1", "float8_e4m3fn", (13.0, 13.0), 176.0, 160.0),
        ("innocuous_div_2p_minus_1", "float8_e4m3fn", (8.0, 15.0), 0.5625, 0.5),
        ("innocuous_sqrt_2p1", "float8_e4m3fn", (15.0,), 3.75, 4.0),
        ("fma_via_float16_any", "float8_e4m3fn", (3.5, 1.5, 2.0**-9), 5.5, 5.0),
        ("fma_via_float64_any", "bfloat16", (7.0, 37.0, -(2.0**-50)), 258.0, 260.0),
        ("mul_via_float32_any", "tf32", (1044 * 2.0**-79, 2009 * 2.0**-79), 2.0**-136, 0.0),
        ("mul_via_float32_flushed", "bfloat16", (129 * 2.0**-70, 255 * 2.0**-79), 2.0**-133, 0.0),
    ],
)
def test_published_counterexamples(name, fmt, operands, once, twice):
    assert THEOREMS[name].algorithm(OracleArithmetic(FORMATS[fmt]), *operands) == (once, twice)
    ar = BlockArithmetic(FORMATS[fmt], Rounding(), "exact")
    trial = try_block(THEOREMS[name], ar, [np.array([x], dtype=ar.carrier) for x in operands])
    assert [x[0] for x in trial.results] == [once, twice]


@pytest.mark.parametrize("fmt", ["float16", "bfloat16", "tf32"])
@pytest.mark.parametrize("carrier", ["float32", "float64"])
def test_operands_known_to_break_an_fma_do(carrier, fmt):
    certificate = verify(f"fma_via_{carrier}_any", fmt, samples=1)
    assert certificate.parts[0].kind == "family"
    # float16 in float64 is safe: its sums have no bits so far apart.
    assert (certificate.parts[0].violations > 0) == ((fmt, carrier) != ("float16", "float64"))
