"""Every measure against vectors worked out by hand, and against rational arithmetic on random ones."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from mcfsim import FORMATS, Format, get_format, round_to
from mcfsim.training import metrics
from tests.shared.rationals import floor_log2

NAN, INF = math.nan, math.inf
BF16 = FORMATS["bfloat16"]
PAIRWISE = [metrics.edq, metrics.normalized_edq, metrics.lost_fraction, metrics.norm_ratio, metrics.cosine]
#: Intended and effective update, and the measures of `PAIRWISE`.
BY_HAND = [
    # Of norm 5; the second element is lost, and the third moves though nothing was asked.
    ([3.0, 4.0, 0.0, 0.0], [3.0, 0.0, 4.0, 0.0], (9 / 5, 9 / 25, 1 / 2, 1.0, 9 / 25)),
    ([3.0, -4.0, 12.0], [3.0, -4.0, 12.0], (13.0, 1.0, 0.0, 1.0, 1.0)),
    ([3.0, -4.0, 12.0], [1.5, -2.0, 6.0], (6.5, 0.5, 0.0, 0.5, 1.0)),
    ([3.0, -4.0, 12.0], [-6.0, 8.0, -24.0], (-26.0, -2.0, 0.0, 2.0, -1.0)),
    ([3.0, 4.0], [0.0, 0.0], (0.0, 0.0, 1.0, 0.0, NAN)),  # nothing done
    ([0.0, 0.0], [1.0, 1.0], (NAN, NAN, NAN, NAN, NAN)),  # nothing asked for
    ([], [], (NAN, NAN, NAN, NAN, NAN)),
    ([1.0, 2.0], [NAN, 2.0], (NAN, NAN, NAN, NAN, NAN)),
]


@pytest.mark.parametrize(("intended", "effective", "expected"), BY_HAND)
def test_by_hand(intended, effective, expected, assert_same):
    assert_same([measure(intended, effective) for measure in PAIRWISE], expected)
    shaped = np.array(intended, np.float32).reshape(-1, 1), np.array(effective).reshape(1, -1)
    found = [measure(*shaped) for measure in PAIRWISE]  # any shape and dtype
    assert_same(found, expected)
    assert {type(number) for number in found} == {float}


def test_relative_error_and_median_by_hand(assert_same):
    errors = [metrics.relative_error([3.0, 4.0], [0.0, 4.0]), metrics.relative_error([1.0], [0.0])]
    ratios = [([2.0, 5.0, 3.0, 8.0], [1.0, 0.0, 1.0, 1.0]), ([1.0], [0.0]), ([1.0, 0.0], [2.0, 4.0])]
    errors.append(metrics.relative_error([1.7e308], [-1.7e308]))  # whose difference overflows
    assert_same(errors, [0.75, NAN, 2.0])
    assert_same([metrics.median_ratio(*pair) for pair in ratios], [3.0, NAN, 0.25])


def test_sizes_must_agree():
    message = r"the arrays differ in size: \[\([23],\), \([23],\)\]"
    for measure in (*PAIRWISE, metrics.relative_error, metrics.median_ratio, metrics.released_imprecision):
        with pytest.raises(ValueError, match=message):
            measure(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="1 components before and 2 after"):
        metrics.effective_update([np.ones(2)], [np.ones(2), np.ones(2)])
    with pytest.raises(ValueError, match="differ in size"):
        metrics.effective_update([np.ones(2)], [np.ones(3)])
    with pytest.raises(ValueError, match="differ in size"):
        metrics.ulp_error([1.0, 2.0], [1.0], BF16)
    for measure in (metrics.residual_norm, lambda nothing: metrics.effective_update(nothing, nothing)):
        with pytest.raises(ValueError, match="there are no components"):
            measure([])


def test_a_tally_adds_all_or_nothing():
    tally, ones, masked = metrics.Tally(), [np.ones(2)], np.ma.masked_equal([1.0, 2.0], 2.0)
    for wrong, error in ((np.ones(3), ValueError), (np.ones(0), ValueError), (masked, TypeError)):
        with pytest.raises(error):
            tally.add(wrong, ones, ones)
        assert tally == metrics.Tally()


def test_what_is_no_real_number_is_refused():
    for measure in (*PAIRWISE, metrics.relative_error, metrics.median_ratio):
        objects = (np.array(x, object) for x in (["1", "2"], [True, 1.0], [None, 1.0]))
        for wrong in ([True, 1.0], ["1", "2"], [1j, 1.0], np.ones(2, np.bool_), *objects):
            with pytest.raises(TypeError, match="real number"):
                measure(wrong, np.ones(2))


# -- against rational arithmetic -------------------------------------------------------------------------
def exact_measures(d, e):
    def product(x, y):
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(x, y, strict=True))
        return mpmath.mpf(exact.numerator) / exact.denominator

    off = [Fraction(a) - Fraction(b) for a, b in zip(d, e, strict=True)]
    with mpmath.workdps(50):
        dot, dd, ee = product(d, e), product(d, d), product(e, e)
        return {
            metrics.edq: dot / mpmath.sqrt(dd),
            metrics.normalized_edq: dot / dd,
            metrics.norm_ratio: mpmath.sqrt(ee / dd),
            metrics.cosine: dot / mpmath.sqrt(dd * ee),
            metrics.relative_error: mpmath.sqrt(product(off, off) / ee),
        }


def test_scaling_by_powers_of_two_changes_no_bit():
    """The measures are those of plain formulas, for numbers that need not be brought near 1."""
    norm = np.linalg.norm
    for seed in range(50):
        random = np.random.default_rng(seed)
        d = random.standard_normal(int(random.integers(1, 3000))) * 10.0 ** random.uniform(-9, 9)
        e = d * (1 + random.standard_normal(d.size) / 8) * (random.random(d.size) < 0.9)
        assert metrics.edq(d, e) == float(d @ e) / float(norm(d))
        assert metrics.normalized_edq(d, e) == float(d @ e) / float(d @ d)
        assert metrics.norm_ratio(d, e) == float(norm(e)) / float(norm(d))
        if e.any():
            assert metrics.cosine(d, e) == float(d @ e) / float(norm(d) * norm(e))
            assert metrics.relative_error(d, e) == float(norm(d - e)) / float(norm(e))


ENDS = [-1074, -1060, -1022, -900, -600, -530, -300, 0, 300, 500, 511, 512, 600, 900, 1000]


@pytest.mark.parametrize("size", ENDS)
def test_no_square_overflows_or_underflows(size):
    """Vectors of a few bits times 2**size and 2**other, so that all but the results are exact."""
    d = np.ldexp([3.0, -5.0, 1.0, 7.0], size)
    for other in ENDS:
        e = np.ldexp([2.0, -5.0, 0.0, 9.0], other)
        for measure, exact in exact_measures(d, e).items():
            expected = float(exact) if abs(exact) < 2**1024 else math.copysign(INF, exact)
            found = measure(d, e)
            room = 2.0**-50 * abs(expected) + 5e-324
            assert found == expected or abs(found - expected) <= room, (measure, other)
        assert metrics.lost_fraction(d, e) == 0.25
        trailing = pytest.approx(math.sqrt(110) * 2.0**other, rel=1e-15, abs=5e-324)
        assert metrics.residual_norm([d, e]) == trailing


# -- effective update ----------------------------------------------------------------------------------
@pytest.mark.parametrize("components", [1, 2, 3])
def test_effective_update_is_the_exact_change_of_the_sum(components):
    """Bit for bit, where the change fits in binary64, as it does for numbers of a low format."""
    random = np.random.default_rng(components)
    old, new = (
        [round_to(random.standard_normal(100) * 2.0 ** (-9 * i), "bfloat16") for i in range(components)]
        for _ in range(2)
    )
    expected = [
        float(sum(map(Fraction, after)) - sum(map(Fraction, before)))
        for before, after in zip(zip(*old, strict=True), zip(*new, strict=True), strict=True)
    ]
    assert metrics.effective_update(old, new).tolist() == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # The leading component steps up by 2**-7 and the trailing one back by nearly as much.
        ([[1.0], [2.0**-9]], [[1 + 2.0**-7], [2.0**-9 - 2.0**-7 + 2.0**-30]], 2.0**-30),
        ([[1.0], [0.0]], [[1.0], [2.0**-40]], 2.0**-40),
        # Binary32 is not rounded to binary32.
        ([np.float32([1.0])], [np.float32([1e-9])], float(np.float32(1e-9)) - 1.0),
        # A component that stays infinite did not move.
        *(([[INF]], [[INF]], 0.0), ([[-INF], [1.0]], [[-INF], [3.0]], 2.0)),
        *(([[INF]], [[-INF]], -INF), ([[NAN]], [[NAN]], NAN)),
    ],
)
def test_effective_update_by_hand(before, after, expected, assert_same):
    assert_same(metrics.effective_update(before, after), [expected])


def test_residual_norm():
    parts = [np.array([100.0, 7.0]), np.array([3.0, 4.0]), np.array([-3.0, 0.0])]
    assert [metrics.residual_norm(parts[:n]) for n in (1, 2, 3)] == [0.0, 5.0, 4.0]


# -- as the released code measures, and all together -----------------------------------------------------
def test_lost_arithmetic_and_released_measures_differ_as_documented():
    """Four elements: moved, kept by the trailing component, truly lost, and never asked to move."""
    update = np.array([0.5, 2.0**-12, 2.0**-30, 0.0])
    before = np.array([1.0, 1.0, 1.0, 1.0]), np.zeros(4)
    after = np.array([1.5, 1.0, 1.0, 1.0]), np.array([0.0, 2.0**-12, 0.0, 0.0])
    assert metrics.lost_fraction(update, metrics.effective_update(before, after)) == 1 / 3
    assert metrics.lost_fraction(update, metrics.effective_update(before[:1], after[:1])) == 2 / 3
    assert metrics.released_imprecision(before[0], after[0]) == 3 / 4
    assert metrics.released_edq([3.0, 4.0], [10.0, 20.0], [13.0, 20.0]) == 9 / 5
    assert math.isnan(metrics.released_edq([0.0, 0.0], [10.0, 20.0], [13.0, 20.0]))
    assert math.isnan(metrics.released_imprecision([], []))


def test_measure_puts_them_together():
    update = np.array([2.0**-12 + 2.0**-40, 0.5])
    before = np.array([1.0, 1.0]), np.array([0.0, 0.0])
    after = np.array([1.0, 1.5]), np.array([2.0**-12, 0.0])
    effective = np.array([2.0**-12, 0.5])
    names = ("edq", "normalized_edq", "lost", "norm_ratio", "cosine")
    assert metrics.measure(update, before, after, (before[0], after[0]), BF16) == {
        **{name: measure(update, effective) for name, measure in zip(names, PAIRWISE, strict=True)},
        "residual_norm": 2.0**-12,
        "released_edq": metrics.edq([2.0**-12, 0.5], [0.0, 0.5]),
        "released_imprecision": 0.5,
    }
    unrounded = metrics.measure(update, before, after, (before[0], after[0]))
    assert unrounded["released_edq"] == metrics.edq(update, [0.0, 0.5])


@pytest.mark.parametrize("strange", [0.0, INF, NAN])
def test_parts_are_measured_as_if_alone(strange):
    """To the bit, wherever a part begins; a number that is not finite concerns its own part."""
    random = np.random.default_rng(5)
    update = np.float32(1e-3 * random.standard_normal(1000))
    before = [round_to(random.standard_normal(1000), BF16), np.float32(np.zeros(1000))]
    after = [round_to(before[0] + update, BF16), round_to(1e-3 * random.standard_normal(1000), BF16)]
    update[300] *= strange
    parts = {"all": slice(0, 1000), "a": slice(0, 301), "b": slice(301, 1000), "c": slice(17, 18)}
    found = metrics.measure_parts(parts, update, before, after, (before[0], after[0]), BF16)
    assert list(found) == list(parts)
    for name, part in parts.items():
        old, new = [x[part].copy() for x in before], [x[part].copy() for x in after]
        alone = metrics.measure(update[part].copy(), old, new, (old[0], new[0]), BF16)
        np.testing.assert_equal(found[name], alone)
        lost = name in ("all", "a") and not np.isfinite(strange)
        assert all(math.isnan(x) is lost for x in found[name].values())


# -- ulp error -----------------------------------------------------------------------------------------
NAMES = ("bfloat16", "float16", "float32", "float8_e5m2", "float4_e2m1fn")


#: Of E4M3, with 4 bits, the smallest normal number 2**-6 and the maximum 448: beside powers of two and zero,
#: where numbers are subnormal, and beyond the maximum, where the unit stays 32.
EDGES = [(1.0, 1.0), (1.0, 1.0625), (1.0, 1.125 - 2**-20), (1.0, 0.9375), (1.0, 1.0 - 2**-53), (-1.0, 1.0)]
EDGES += [(2.0**-6, 2.0**-6 + 2.0**-10), (0.0, 2.0**-30), (2.0**-9, 0.0), (448.0, 464.0), (448.0, 512.0)]
EDGES += [(0.0, 5e-324)]


def by_definition(x, exact, fmt):
    size = max(abs(Fraction(exact)), Fraction(2) ** fmt.emin)
    unit = Fraction(2) ** (min(floor_log2(size), fmt.emax) - fmt.precision + 1)
    return abs(Fraction(x) - Fraction(exact)) / unit


def test_ulp_error_at_the_edges_and_of_what_is_not_finite(assert_same):
    x, exact = np.array([*EDGES, (INF, 1.0), (NAN, 1.0), (INF, INF)]).T
    expected = [float(by_definition(*pair, FORMATS["float8_e4m3fn"])) for pair in EDGES]
    assert expected[:6] == [0.0, 0.5, 1.0 - 2**-17, 1.0, 2.0**-49, 16.0]
    for sign, fmt in ((1, FORMATS["float8_e4m3fn"]), (-1, "float8_e4m3fn")):
        found = metrics.ulp_error(sign * x[:, None], sign * exact[:, None], fmt)  # any shape
        assert_same(found, [*expected, INF, NAN, NAN])


@pytest.mark.parametrize("fmt", [*NAMES, Format(precision=9, emin=-62, emax=63)], ids=str)
def test_ulp_error_against_its_definition(fmt):
    random, fmt = np.random.default_rng(3), get_format(fmt)
    low = max(fmt.emin - fmt.precision - 2, -140)
    exact = random.standard_normal(500) * 2.0 ** random.integers(low, fmt.emax - 3, 500, endpoint=True)
    x = round_to(exact, fmt, "toward_zero")
    for a, b, error in zip(x, exact, metrics.ulp_error(x, exact, fmt), strict=True):
        assert Fraction(error) == by_definition(a, b, fmt)
        assert error < 1  # a truncation is off by less than one unit
    assert 0.4 < metrics.ulp_error(round_to(exact, fmt), exact, fmt).max() <= 0.5
