"""Every measure against vectors worked out by hand, and against rational arithmetic on random ones."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from mcfsim import FORMATS, Format, round_to
from mcfsim.training import metrics

NAN = float("nan")
PAIRWISE = [metrics.edq, metrics.normalized_edq, metrics.lost_fraction, metrics.norm_ratio, metrics.cosine]

# D = (3, 4, 0, 0), of norm 5; the second element is lost, and the third moves though nothing was asked.
INTENDED, EFFECTIVE = [3.0, 4.0, 0.0, 0.0], [3.0, 0.0, 4.0, 0.0]
BY_HAND = {
    metrics.edq: 9 / 5,
    metrics.normalized_edq: 9 / 25,
    metrics.lost_fraction: 1 / 2,
    metrics.norm_ratio: 1.0,
    metrics.cosine: 9 / 25,
}


@pytest.mark.parametrize("measure", BY_HAND, ids=lambda measure: measure.__name__)
def test_by_hand(measure):
    expected = BY_HAND[measure]
    assert measure(INTENDED, EFFECTIVE) == expected
    square = np.array(INTENDED, np.float32).reshape(2, 2), np.array(EFFECTIVE).reshape(2, 2)
    assert measure(*square) == expected  # any shape and dtype
    assert isinstance(measure(INTENDED, EFFECTIVE), float)


@pytest.mark.parametrize("scale", [1.0, 0.5, -2.0])
def test_of_a_multiple_of_the_intended_update(scale):
    d = np.array([3.0, -4.0, 12.0])  # of norm 13
    assert metrics.edq(d, scale * d) == 13 * scale
    assert metrics.normalized_edq(d, scale * d) == scale
    assert metrics.norm_ratio(d, scale * d) == abs(scale)
    assert metrics.cosine(d, scale * d) == math.copysign(1, scale)
    assert metrics.lost_fraction(d, scale * d) == 0.0


@pytest.mark.parametrize("measure", PAIRWISE, ids=lambda measure: measure.__name__)
def test_nothing_asked_for_is_no_number(measure):
    assert math.isnan(measure(np.zeros(4), np.ones(4)))
    assert math.isnan(measure([], []))


def test_nothing_done():
    d, e = np.array([3.0, 4.0]), np.zeros(2)
    assert metrics.edq(d, e) == metrics.normalized_edq(d, e) == metrics.norm_ratio(d, e) == 0.0
    assert metrics.lost_fraction(d, e) == 1.0
    assert math.isnan(metrics.cosine(d, e))


@pytest.mark.parametrize(
    "measure",
    [*PAIRWISE, metrics.relative_error, metrics.median_ratio, metrics.released_imprecision],
    ids=lambda measure: measure.__name__,
)
def test_sizes_must_agree(measure):
    with pytest.raises(ValueError, match=r"the arrays differ in size: \[\([23],\), \([23],\)\]"):
        measure(np.ones(3), np.ones(2))


def exact_measures(d, e):
    d, e = [list(map(Fraction, x)) for x in (d, e)]
    dot, dd, ee = (sum(a * b for a, b in zip(x, y, strict=True)) for x, y in ((d, e), (d, d), (e, e)))
    with mpmath.workdps(50):
        dot, dd, ee = (mpmath.mpf(x.numerator) / x.denominator for x in (dot, dd, ee))
        return {
            metrics.edq: dot / mpmath.sqrt(dd),
            metrics.normalized_edq: dot / dd,
            metrics.norm_ratio: mpmath.sqrt(ee / dd),
            metrics.cosine: dot / mpmath.sqrt(dd * ee),
        }


@pytest.mark.parametrize("seed", range(4))
def test_random_vectors_against_rational_arithmetic(seed):
    random = np.random.default_rng(seed)
    d = random.standard_normal(200) * 2.0 ** random.integers(-20, 20, 200)
    e = d * (1 + random.standard_normal(200) / 8) * (random.random(200) < 0.7)
    for measure, exact in exact_measures(d, e).items():
        # Terms of one sign for the most part: the sums are as good as binary64, but for a few ulps.
        assert abs(measure(d, e) / exact - 1) < 1e-14, measure
    assert metrics.lost_fraction(d, e) == np.mean(e == 0)


@pytest.mark.parametrize("seed", range(2))
def test_relative_error_and_median_against_rational_arithmetic(seed):
    random = np.random.default_rng(seed)
    exact = random.standard_normal(101)
    x = exact * (1 + random.standard_normal(101) * 2.0**-9)
    errors = [Fraction(a) - Fraction(b) for a, b in zip(x, exact, strict=True)]
    square = sum(error**2 for error in errors) / sum(Fraction(b) ** 2 for b in exact)
    with mpmath.workdps(50):
        expected = mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator)
        assert abs(metrics.relative_error(x, exact) / expected - 1) < 1e-13
    ratios = sorted(Fraction(a) / Fraction(b) for a, b in zip(x, exact, strict=True))
    assert abs(Fraction(metrics.median_ratio(x, exact)) / ratios[50] - 1) < Fraction(1, 2**52)


def test_relative_error_and_median_by_hand():
    assert metrics.relative_error([3.0, 4.0], [0.0, 4.0]) == 0.75
    assert math.isnan(metrics.relative_error([1.0], [0.0]))
    assert metrics.median_ratio([2.0, 5.0, 3.0, 8.0], [1.0, 0.0, 1.0, 1.0]) == 3.0
    assert math.isnan(metrics.median_ratio([1.0], [0.0]))
    assert metrics.median_ratio([1.0, 0.0], [2.0, 4.0]) == 0.25


# -- near the ends of binary64 -------------------------------------------------------------------------
ENDS = [-1074, -1060, -1022, -900, -600, -530, -300, 0, 300, 500, 511, 512, 600, 900, 1000]


def rounded(exact):
    """Return a number of mpmath in binary64, infinite beyond it."""
    return float(exact) if abs(exact) < 2**1024 else math.copysign(math.inf, exact)


@pytest.mark.parametrize("size", ENDS)
@pytest.mark.parametrize("other", ENDS)
def test_no_square_overflows_or_underflows(size, other):
    """Vectors of a few bits times 2**size and 2**other, so that all but the results are exact."""
    d = np.ldexp([3.0, -5.0, 1.0, 7.0], size)
    e = np.ldexp([2.0, -5.0, 0.0, 9.0], other)
    exact = exact_measures(d, e)
    exact[metrics.relative_error] = exact_relative_error(d, e)
    for measure, number in exact.items():
        expected, found = rounded(number), measure(d, e)
        if math.isinf(expected):
            assert found == expected
        else:
            assert abs(found - expected) <= 2.0**-50 * abs(expected) + 5e-324, measure
    assert metrics.lost_fraction(d, e) == 0.25
    assert metrics.residual_norm([d, e]) == pytest.approx(math.sqrt(110) * 2.0**other, rel=1e-15, abs=5e-324)


def exact_relative_error(x, exact):
    with mpmath.workdps(50):
        x, exact = ([mpmath.mpf(float(item)) for item in array] for array in (x, exact))
        norm = mpmath.sqrt(sum(item * item for item in exact))
        return mpmath.sqrt(sum((a - b) ** 2 for a, b in zip(x, exact, strict=True))) / norm


@pytest.mark.parametrize("number", [5e-324, 1e-320, 1e-310, 1e-170, 1e-160, 1.0, 1e154, 1e160, 1.7e308])
def test_what_arrives_whole_is_one_at_any_size(number):
    d = [number, -number]
    assert metrics.normalized_edq(d, d) == metrics.norm_ratio(d, d) == 1.0
    assert metrics.cosine(d, d) == pytest.approx(1.0, rel=1e-15)
    assert metrics.lost_fraction(d, d) == metrics.relative_error(d, d) == 0.0
    assert metrics.median_ratio(d, d) == 1.0
    assert metrics.normalized_edq([number], [number]) == metrics.cosine([number], [number]) == 1.0
    assert metrics.edq([number], [-number]) == pytest.approx(-number, rel=2.0**-51, abs=0)
    assert metrics.relative_error([number], [-number]) == 2.0


def test_scaling_by_powers_of_two_changes_no_bit():
    """What the measures were before they were brought near 1, for numbers that need not be."""
    for seed in range(50):
        random = np.random.default_rng(seed)
        d = random.standard_normal(int(random.integers(1, 3000))) * 10.0 ** random.uniform(-9, 9)
        e = d * (1 + random.standard_normal(d.size) / 8) * (random.random(d.size) < 0.9)
        norm = np.linalg.norm
        assert metrics.edq(d, e) == float(d @ e) / float(norm(d))
        assert metrics.normalized_edq(d, e) == float(d @ e) / float(d @ d)
        assert metrics.norm_ratio(d, e) == float(norm(e)) / float(norm(d))
        if e.any():
            assert metrics.cosine(d, e) == float(d @ e) / float(norm(d) * norm(e))
            assert metrics.relative_error(d, e) == float(norm(d - e)) / float(norm(e))


# -- effective update ----------------------------------------------------------------------------------
def test_effective_update_of_components_that_cancel():
    """The leading component steps up by 2**-7 and the trailing one back by nearly as much."""
    before = np.array([1.0, 1.0]), np.array([2.0**-9, 0.0])
    after = np.array([1 + 2.0**-7, 1.0]), np.array([2.0**-9 - 2.0**-7 + 2.0**-30, 2.0**-40])
    assert metrics.effective_update(before, after).tolist() == [2.0**-30, 2.0**-40]


@pytest.mark.parametrize("components", [1, 2, 3])
def test_effective_update_is_the_exact_change_of_the_sum(components):
    """Bit for bit, where the change fits in binary64, as it does for numbers of a low format."""
    random = np.random.default_rng(components)
    parts = [
        [round_to(random.standard_normal(100) * 2.0 ** (-9 * i), "bfloat16") for i in range(components)]
        for _ in range(2)
    ]
    expected = [
        float(sum(map(Fraction, new)) - sum(map(Fraction, old)))
        for old, new in zip(*(zip(*part, strict=True) for part in parts), strict=True)
    ]
    assert metrics.effective_update(*parts).tolist() == expected


def test_effective_update_of_binary32_is_not_rounded_to_binary32():
    before, after = np.array([1.0], np.float32), np.array([1e-9], np.float32)
    assert metrics.effective_update([before], [after])[0] == float(after[0]) - 1.0


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_a_component_that_stays_infinite_did_not_move(bad):
    for before, after, expected in (
        ([[bad]], [[bad]], 0.0),
        ([[bad], [1.0]], [[bad], [3.0]], 2.0),
        ([[1.0]], [[bad]], bad),
        ([[bad]], [[1.0]], -bad),
    ):
        assert metrics.effective_update(before, after).tolist() == [expected]
    assert metrics.effective_update([[bad]], [[-bad]]).tolist() == [-bad]
    assert math.isnan(metrics.effective_update([[np.nan]], [[np.nan]])[0])


def test_effective_update_refuses_what_does_not_match():
    with pytest.raises(ValueError, match="1 components before and 2 after"):
        metrics.effective_update([np.ones(2)], [np.ones(2), np.ones(2)])
    with pytest.raises(ValueError, match="differ in size"):
        metrics.effective_update([np.ones(2)], [np.ones(3)])


def test_residual_norm():
    assert metrics.residual_norm([np.array([100.0, 7.0])]) == 0.0
    assert metrics.residual_norm([np.array([100.0, 7.0]), np.array([3.0, -4.0])]) == 5.0
    parts = [np.ones(2), np.array([3.0, 4.0]), np.array([-3.0, 0.0])]
    assert metrics.residual_norm(parts) == 4.0


# -- as the released code measures ---------------------------------------------------------------------
def test_lost_arithmetic_and_released_imprecision_differ_as_documented():
    """Four elements: moved, kept by the trailing component, truly lost, and never asked to move."""
    update = np.array([0.5, 2.0**-12, 2.0**-30, 0.0])
    before = np.array([1.0, 1.0, 1.0, 1.0]), np.zeros(4)
    after = np.array([1.5, 1.0, 1.0, 1.0]), np.array([0.0, 2.0**-12, 0.0, 0.0])
    effective = metrics.effective_update(before, after)
    assert metrics.lost_fraction(update, effective) == 1 / 3
    assert metrics.released_imprecision(before[0], after[0]) == 3 / 4
    plainly = metrics.effective_update(before[:1], after[:1])
    assert metrics.lost_fraction(update, plainly) == 2 / 3


def test_released_edq_takes_the_leading_component():
    update, before, after = np.array([3.0, 4.0]), np.array([10.0, 20.0]), np.array([13.0, 20.0])
    assert metrics.released_edq(update, before, after) == 9 / 5
    assert math.isnan(metrics.released_edq(np.zeros(2), before, after))
    assert math.isnan(metrics.released_imprecision([], []))


def test_measure_puts_them_together():
    update = np.array([2.0**-12 + 2.0**-40, 0.5])
    before = np.array([1.0, 1.0]), np.array([0.0, 0.0])
    after = np.array([1.0, 1.5]), np.array([2.0**-12, 0.0])
    found = metrics.measure(update, before, after, (before[0], after[0]), FORMATS["bfloat16"])
    effective = np.array([2.0**-12, 0.5])
    assert found == {
        "edq": metrics.edq(update, effective),
        "normalized_edq": metrics.normalized_edq(update, effective),
        "lost": 0.0,
        "norm_ratio": metrics.norm_ratio(update, effective),
        "cosine": metrics.cosine(update, effective),
        "residual_norm": 2.0**-12,
        "released_edq": metrics.edq([2.0**-12, 0.5], [0.0, 0.5]),
        "released_imprecision": 0.5,
    }
    unrounded = metrics.measure(update, before, after, (before[0], after[0]))
    assert unrounded["released_edq"] == metrics.edq(update, [0.0, 0.5])


@pytest.mark.parametrize("strange", [0.0, np.inf, np.nan])
def test_parts_are_measured_as_if_alone(strange):
    """To the bit, wherever a part begins; a number that is not finite concerns its own part."""
    random = np.random.default_rng(5)
    update = np.float32(1e-3 * random.standard_normal(1000))
    before = [round_to(random.standard_normal(1000), "bfloat16"), np.float32(np.zeros(1000))]
    after = [round_to(before[0] + update, "bfloat16"), round_to(1e-3 * random.standard_normal(1000), "bf16")]
    update[300] *= strange
    parts = {"all": slice(0, 1000), "a": slice(0, 301), "b": slice(301, 1000), "c": slice(17, 18)}
    found = metrics.measure_parts(parts, update, before, after, (before[0], after[0]), FORMATS["bfloat16"])
    assert list(found) == list(parts)
    for name, part in parts.items():
        old, new = [x[part].copy() for x in before], [x[part].copy() for x in after]
        alone = metrics.measure(update[part].copy(), old, new, (old[0], new[0]), FORMATS["bfloat16"])
        np.testing.assert_equal(found[name], alone)
        lost = name in ("all", "a") and not np.isfinite(strange)
        assert all(math.isnan(x) is lost for x in found[name].values())


# -- ulp error -----------------------------------------------------------------------------------------
E4M3 = FORMATS["float8_e4m3fn"]  # p = 4, emin = -6, maximum 448


@pytest.mark.parametrize(
    ("x", "exact", "ulps"),
    [
        (1.0, 1.0, 0.0),
        (1.0, 1.0625, 0.5),  # ulp(1) is 1/8
        (1.125, 1.0, 1.0),
        (1.0, 1.125 - 2**-20, 1.0 - 2**-17),
        (1.0, 0.9375, 1.0),  # just below 1 it is 1/16
        (1.0, np.nextafter(1.0, 0), 2.0**-53 * 16),
        (-1.0, 1.0, 16.0),
        (2.0**-6, 2.0**-6 + 2.0**-10, 0.5),  # the smallest normal number, and the subnormal ones: 2**-9
        (2.0**-9, 2.0**-8, 1.0),
        (0.0, 2.0**-10, 0.5),
        (0.0, 2.0**-30, 2.0**-21),
        (2.0**-9, 0.0, 1.0),
        (448.0, 464.0, 0.5),  # above the maximum, the same binade
        (448.0, 512.0, 2.0),  # and beyond emax: the unit stays 32
        (448.0, 2.0**20, (2.0**20 - 448) / 32),
        (0.0, 5e-324, 5e-324 * 2**9),
    ],
)
def test_ulp_error_by_hand(x, exact, ulps):
    assert metrics.ulp_error([x], [exact], E4M3).tolist() == [ulps]
    assert metrics.ulp_error([-x], [-exact], "float8_e4m3fn").tolist() == [ulps]


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float32", "float8_e5m2", "float4_e2m1fn"])
def test_ulp_error_against_its_definition(fmt):
    fmt = FORMATS[fmt]
    random = np.random.default_rng(3)
    low = max(fmt.emin - fmt.precision - 2, -140)
    exact = random.standard_normal(500) * 2.0 ** random.integers(low, fmt.emax - 3, 500, endpoint=True)
    x = round_to(exact, fmt, "toward_zero")
    for a, b, error in zip(x, exact, metrics.ulp_error(x, exact, fmt), strict=True):
        size = abs(Fraction(b))
        e = size.numerator.bit_length() - size.denominator.bit_length()
        e -= Fraction(2) ** e > size
        unit = Fraction(2) ** (max(e, fmt.emin) - fmt.precision + 1)
        assert Fraction(error) == abs(Fraction(a) - Fraction(b)) / unit
        assert error < 1  # a truncation is off by less than one unit
    nearest = metrics.ulp_error(round_to(exact, fmt), exact, fmt)
    assert nearest.max() <= 0.5
    assert nearest.max() > 0.4


def test_ulp_error_of_a_format_of_ones_own_and_of_arrays_of_any_shape():
    fmt = Format(precision=9, emin=-62, emax=63)
    assert metrics.ulp_error(np.full((2, 2), 1 + 2.0**-8), np.ones((2, 2)), fmt).tolist() == [1.0] * 4
    with pytest.raises(ValueError, match="differ in size"):
        metrics.ulp_error([1.0, 2.0], [1.0], fmt)


def test_what_is_not_finite_stays_visible():
    errors = metrics.ulp_error([np.inf, np.nan, 1.0], [1.0, 1.0, np.nan], "bfloat16")
    assert errors[0] == np.inf
    assert np.isnan(errors[1:]).all()
    d, e = np.array([1.0, 2.0]), np.array([np.nan, 2.0])
    assert math.isnan(metrics.edq(d, e))
    assert math.isnan(metrics.normalized_edq(d, e))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_parameter_that_diverged_gives_numbers_without_a_warning(bad):
    before, after = np.array([bad, 1.0]), np.array([bad, 2.0])
    effective = metrics.effective_update([before], [after])
    # What stays infinite did not move; of a NaN nothing is known.
    np.testing.assert_array_equal(effective, [math.nan if math.isnan(bad) else 0.0, 1.0])
    for intended in ([bad, 1.0], [1.0, 1.0]):
        found = metrics.measure(np.array(intended), [before], [after], (before, after), FORMATS["bfloat16"])
        assert all(map(math.isnan, found.values())), found
    assert math.isnan(metrics.relative_error([bad], [bad]))
    assert math.isnan(metrics.ulp_error([np.inf], [np.inf], "bfloat16")[0])
