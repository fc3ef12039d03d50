"""Rounding into every format, in every mode and overflow policy, against the definition and the libraries."""

import math
from functools import cache

import ml_dtypes
import numpy as np
import pytest

from mcfsim.convert import round_to
from mcfsim.formats import FORMATS, Format
from mcfsim.kernels.carriers import FLOAT32, FLOAT64
from mcfsim.kernels.element.machine import F32, F64, recorded
from mcfsim.kernels.element.rounding import round_element
from mcfsim.oracle import round_float, round_integers
from mcfsim.rounding import DETERMINISTIC, Mode, Overflow, Rounding, get_rounding
from tests.oracle.operands import (
    FLUSHING,
    ROUNDINGS,
    SMALL_FORMATS,
    UNUSUAL_FORMATS,
    WIDE_FORMATS,
    label,
    magnitudes,
    values,
)

NARROW_FORMATS = [*SMALL_FORMATS, *UNUSUAL_FORMATS, *WIDE_FORMATS]
IN_ML_DTYPES = [fmt for fmt in NARROW_FORMATS if hasattr(ml_dtypes, fmt.name) and fmt.zero]
NEAREST = Rounding()

# Custom formats, by the way in which numbers are rounded into them: by adding a power of two of the carrier
# ("aligned"), on the carrier's code ("bits"), and there by a fixed power below the smallest normal number
# ("small"); or with nothing cut off at all ("whole").
PATHS = {
    "float32 aligned": (FLOAT32, Format(precision=9, emin=-62, emax=63)),
    "float32 aligned, precision 2": (FLOAT32, Format(precision=2, emin=-1, emax=1)),
    "float32 aligned, large numbers only": (FLOAT32, Format(precision=5, emin=20, emax=30)),
    "float32 bits": (FLOAT32, Format(precision=9, emin=-126, emax=127)),
    "float32 bits, precision 23": (FLOAT32, Format(precision=23, emin=-126, emax=127)),
    "float32 bits, no infinity": (FLOAT32, Format(precision=6, emin=-126, emax=127, specials="fn")),
    "float32 bits, one zero": (FLOAT32, Format(precision=8, emin=-126, emax=127, specials="fnuz")),
    "float32 bits small": (FLOAT32, Format(precision=8, emin=-100, emax=127)),
    "float32 whole small": (FLOAT32, Format(precision=24, emin=-20, emax=20)),
    "float32 whole small, no specials": (FLOAT32, Format(precision=24, emin=-9, emax=127, specials="none")),
    "float32 whole, one zero": (FLOAT32, Format(precision=24, emin=-126, emax=127, specials="nuz")),
    "float64 aligned": (FLOAT64, Format(precision=20, emin=-200, emax=200)),
    "float64 aligned, precision 51": (FLOAT64, Format(precision=51, emin=-30, emax=30)),
    "float64 bits small": (FLOAT64, Format(precision=20, emin=-1000, emax=1000)),
    "float64 bits small, precision 52": (FLOAT64, Format(precision=52, emin=-900, emax=1023)),
    "float64 whole small": (FLOAT64, Format(precision=53, emin=-100, emax=100)),
    "float64 whole, one zero": (FLOAT64, Format(precision=53, emin=-1022, emax=1023, specials="nuz")),
    "float64 narrowed": (FLOAT64, FORMATS["float32"]),
    "float64 aligned, one zero": (FLOAT64, Format(precision=24, emin=-126, emax=127, specials="nuz")),
    "float64 bits": (FLOAT64, Format(precision=30, emin=-1022, emax=1023)),
}


@cache
def boundaries(fmt: Format) -> np.ndarray:
    """Return every number and midpoint of a format, some beyond the largest, and the float32 next to each."""
    numbers = magnitudes(fmt)
    beyond = numbers[-1] + (numbers[-1] - numbers[-2]) * np.array([0.25, 0.5, 0.75, 1.0, 2.0, 64.0])
    with np.errstate(over="ignore"):
        exact = np.concatenate([numbers, numbers[1:] / 2 + numbers[:-1] / 2, beyond]).astype(np.float32)
        source = np.concatenate([exact, *(np.nextafter(exact, np.float32(end)) for end in (0, np.inf))])
    source = np.unique(source)
    return np.concatenate([source, -source, np.float32([np.nan])])


@cache
def patterns32() -> np.ndarray:
    """Return random bit patterns of float32, an infinity or NaN in every 128."""
    return np.random.default_rng(1).integers(0, 2**32, 2**21, dtype=np.uint32).view(np.float32)


def hard_float64(fmt: Format, size: int, seed: int) -> np.ndarray:
    """Return float64 numbers on numbers and midpoints of a format, and beside them by steps of all sizes."""
    rng = np.random.default_rng(seed)
    low, high = max(fmt.emin - fmt.precision - 1, -1074), min(fmt.emax + 2, 1024)
    halves = rng.integers(2**fmt.precision, 2 ** (fmt.precision + 1), size)  # significands of p + 1 bits
    x = np.ldexp(halves.astype(np.float64), rng.integers(low, high, size) - fmt.precision)
    step = np.ldexp(rng.choice([-1.0, 0.0, 1.0], size), -rng.integers(1, 53, size))
    with np.errstate(over="ignore"):
        x = np.concatenate([x * (1 + step), np.nextafter(x, 0), np.nextafter(x, np.inf)])
    x *= rng.choice([-1.0, 1.0], x.size)
    specials = [0.0, np.inf, np.nan, 2.0**-1074, np.finfo(np.float64).max]
    with np.errstate(over="ignore"):
        edges = np.array([fmt.max, fmt.smallest_normal, fmt.smallest_subnormal], dtype=np.float64)
        edges = np.outer([0.5, 1.0, 1.5], edges).ravel()
        edges = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, np.inf), specials])
    return np.concatenate([x, edges, -edges])


# -- from float32 -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", [*ROUNDINGS, *FLUSHING], ids=label)
@pytest.mark.parametrize("fmt", NARROW_FORMATS, ids=label)
@pytest.mark.sampled(6)
def test_float32_at_every_boundary_rounds_by_the_definition(fmt, rounding, assert_same):
    source = boundaries(fmt)
    assert_same(round_to(source, fmt, rounding), round_integers(source, fmt, rounding), source)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", NARROW_FORMATS, ids=label)
@pytest.mark.sampled(6)
def test_random_float32_patterns_round_by_the_definition(fmt, rounding, assert_same):
    source = patterns32()[: 2**18]
    assert_same(round_to(source, fmt, rounding), round_integers(source, fmt, rounding), source)


@pytest.mark.parametrize("fmt", IN_ML_DTYPES, ids=label)
def test_float32_rounds_to_nearest_even_as_in_ml_dtypes(fmt, assert_same):
    source = np.concatenate([boundaries(fmt), patterns32()])
    if not fmt.has_nan:  # there ml_dtypes gives NaN and infinity some number
        source = source[np.isfinite(source)]
    with np.errstate(all="ignore"):
        expected = source.astype(getattr(ml_dtypes, fmt.name)).astype(np.float32)
    assert_same(round_to(source, fmt), expected, source)


@pytest.mark.parametrize(
    "source", [boundaries(FORMATS["float16"]), patterns32()], ids=["boundaries", "random"]
)
def test_float32_rounds_to_float16_as_in_numpy(source, assert_same):
    with np.errstate(all="ignore"):
        expected = source.astype(np.float16)
    assert_same(round_to(source, "float16"), expected, source)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_every_float32_rounds_to_nearest_even_as_in_the_libraries(name, assert_same):
    low = np.arange(2**18, dtype=np.uint32)
    for high in range(2**14):
        source = (low | np.uint32(high << 18)).view(np.float32)
        first = abs(source[0])
        if name == "float16" and 2.0**17 <= first < np.inf:  # NumPy's cast takes long over each exception
            expected = np.copysign(np.float32(np.inf), source)
        elif name == "float16" and first < 2.0**-27:
            expected = np.copysign(np.float32(0), source)
        else:
            with np.errstate(all="ignore"):
                expected = source.astype(getattr(ml_dtypes, name, np.float16)).astype(np.float32)
        assert_same(round_to(source, name), expected, source)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
def test_float32_patterns_are_values_of_float32(rounding, assert_same):
    source = patterns32()[: 2**16]
    assert_same(round_to(source, "float32", rounding), source)


# -- from float64 -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", [*NARROW_FORMATS, FORMATS["float32"]], ids=label)
@pytest.mark.sampled(6)
def test_float64_near_numbers_and_midpoints_rounds_by_the_definition(fmt, rounding, assert_same):
    source = hard_float64(fmt, 30_000, seed=2)
    assert_same(round_to(source, fmt, rounding), round_integers(source, fmt, rounding), source)


@pytest.mark.parametrize("fmt", [*NARROW_FORMATS, FORMATS["float32"]], ids=label)
def test_random_float64_patterns_round_by_the_definition(fmt, assert_same):
    source = np.random.default_rng(3).integers(0, 2**64, 2**18, dtype=np.uint64).view(np.float64)
    assert_same(round_to(source, fmt), round_integers(source, fmt), source)


@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, *WIDE_FORMATS], ids=label)
def test_a_tie_broken_beyond_float32_rounds_once(fmt):
    tie = 1 + 2.0**-fmt.precision  # between the odd 1 + 2u and the even 1
    beyond = 2.0**-40
    assert np.float32(tie + beyond) == tie
    assert round_to(np.array([tie, tie + beyond, tie - beyond]), fmt).tolist() == [
        1.0,
        1 + 2 * 2.0**-fmt.precision,
        1.0,
    ]


# -- custom formats ---------------------------------------------------------------------------------------
def test_the_custom_formats_take_every_way_through_the_text():
    for path, (carrier, fmt) in PATHS.items():
        kind = F32 if carrier == FLOAT32 else F64
        line, results = recorded(lambda x, fmt=fmt: round_element(x, fmt, NEAREST), x=kind)
        compared = [value.operands for value in line.needed(results) if value.verb == "lt"]
        aligned = any(a.type.is_integer for a, _ in compared)  # the power is kept within bounds
        small = any(b.constant == fmt.smallest_normal for _, b in compared)
        narrowed = any(value.verb == "narrow" for value in line.needed(results))
        whole = fmt.precision > np.finfo(carrier).nmant
        way = "narrowed" if narrowed else "aligned" if aligned else "whole" if whole else "bits"
        assert path.split(",")[0] == f"{carrier} {way}{' small' if small else ''}"


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.sampled(8)
def test_custom_formats_round_by_the_definition(path, rounding, assert_same):
    carrier, fmt = PATHS[path]
    vectorised = fmt.emin - fmt.precision + 1 >= -1022
    source = hard_float64(fmt, 20_000 if vectorised else 300, seed=4)
    with np.errstate(all="ignore"):
        sources = [source, source.astype(np.float32)] if carrier == FLOAT32 else [source]
    for x in sources:
        by_definition = (
            round_integers(x, fmt, rounding)
            if vectorised
            else [round_float(float(item), fmt, rounding) for item in x]
        )
        assert_same(round_to(x, fmt, rounding), by_definition, x)


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_float64_into_float64_is_the_identity(mode, assert_same):
    source = hard_float64(FORMATS["float64"], 3000, seed=5)
    assert_same(round_to(source, "float64", mode), source)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("carrier", [np.float32, np.float64])
def test_formats_of_huge_numbers_only_round_by_the_definition(carrier, rounding, assert_same):
    fmt = (
        Format(precision=4, emin=90, emax=100)
        if carrier is np.float32
        else Format(precision=4, emin=900, emax=910)
    )
    source = hard_float64(fmt, 5000, seed=6)
    with np.errstate(all="ignore"):
        source = source.astype(carrier)
    assert_same(round_to(source, fmt, rounding), round_integers(source, fmt, rounding), source)


# -- what every rounding does -----------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", [*NARROW_FORMATS, *(fmt for _, fmt in PATHS.values())], ids=label)
def test_nan_stays_nan_and_keeps_its_sign(fmt, rounding):
    codes = np.array([0x7FFFFFFF, 0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0xFF800001], dtype=np.uint32)
    wide = np.array([0x7FFFFFFFFFFFFFFF, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    for source in (codes.view(np.float32), wide.view(np.float64)):
        rounded = round_to(source, fmt, rounding)
        assert np.isnan(rounded).all()
        assert np.array_equal(np.signbit(rounded), np.signbit(source))


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", NARROW_FORMATS, ids=label)
def test_an_infinity_is_never_made_finite(fmt, rounding):
    rounded = round_to(np.array([np.inf, -np.inf]), fmt, rounding)
    infinities = [np.inf, -np.inf if fmt.signed else np.nan] if fmt.has_infinity else [np.nan, np.nan]
    np.testing.assert_array_equal(rounded, infinities)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", [fmt for fmt in NARROW_FORMATS if fmt.zero], ids=label)
def test_zero_keeps_the_sign_that_the_format_has(fmt, rounding):
    signs = np.signbit(round_to(np.array([0.0, -0.0]), fmt, rounding))
    assert signs.tolist() == [False, fmt.has_negative_zero]


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", NARROW_FORMATS, ids=label)
def test_the_values_of_a_format_stay(fmt, rounding, assert_same):
    numbers = values(fmt)
    assert_same(round_to(numbers, fmt, rounding), numbers)


# -- names ------------------------------------------------------------------------------------------------
def test_the_default_rounds_to_nearest_even_with_the_overflow_of_ieee():
    assert Rounding() == Rounding("nearest_even", "ieee") == get_rounding("nearest_even")
    assert (Rounding().mode, Rounding().overflow) == (Mode.NEAREST_EVEN, Overflow.IEEE)


def test_a_rounding_is_kept_and_names_make_one():
    up = Rounding("up", "saturate")
    assert get_rounding(up) is up
    assert get_rounding("up", "saturate") == up
    assert hash(get_rounding("up", "saturate")) == hash(up)


@pytest.mark.parametrize("name", ["nearest", "RNE", "", None, 1])
def test_an_unknown_mode_lists_the_known_ones(name):
    allowed = r"unknown rounding .*allowed: nearest_even, nearest_away, toward_zero, up, down, to_odd"
    for call in (lambda: Rounding(name), lambda: get_rounding(name), lambda: round_to(1.0, "bf16", name)):
        with pytest.raises(ValueError, match=allowed):
            call()


@pytest.mark.parametrize("name", ["wrap", "", None])
def test_an_unknown_overflow_policy_lists_the_known_ones(name):
    for call in (
        lambda: Rounding("up", name),
        lambda: get_rounding("up", name),
        lambda: round_to(1.0, "bf16", overflow=name),
    ):
        with pytest.raises(ValueError, match=r"unknown overflow .*allowed: ieee, saturate"):
            call()


@pytest.mark.parametrize(("direction", "expected"), [("up", 1.0078125), ("down", 1.0)])
def test_the_rounding_of_a_scalar_goes_in_the_modes_direction(direction, expected):
    assert round_to(math.nextafter(1.0, 2.0), "bfloat16", direction) == expected
