"""The definition against rules by hand, NumPy, the C library and ml_dtypes, and integers against it."""

import ctypes.util
import itertools
import math
from fractions import Fraction
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.oracle import operate, operate_integers, round_float, round_fraction, round_integers, same
from mcfsim.rounding import Rounding
from tests.shared.refusals import check, refusals, refused

from .operands import (
    MODES,
    ROUNDINGS,
    SMALL_FORMATS,
    WIDE_FORMATS,
    corners,
    label,
    magnitudes,
    random_tuples,
    values,
)

INF, NAN = math.inf, math.nan
BF16 = get_format("bf16")

# What +1e6 and -1e6 become, by mode and policy, in a format with infinity, with NaN only, and with neither.
_FINITE = {"e5m2": (57344, -57344), "e4m3fn": (448, -448), "e3m2fn": (28, -28)}
_TO_NEAREST = {"e5m2": (INF, -INF), "e4m3fn": (NAN, NAN), "e3m2fn": (28, -28)}
OVERFLOWS = {
    ("nearest_even", "ieee"): _TO_NEAREST,
    ("nearest_away", "ieee"): _TO_NEAREST,
    ("toward_zero", "ieee"): _FINITE,
    ("up", "ieee"): {"e5m2": (INF, -57344), "e4m3fn": (NAN, -448), "e3m2fn": (28, -28)},
    ("down", "ieee"): {"e5m2": (57344, -INF), "e4m3fn": (448, NAN), "e3m2fn": (28, -28)},
    ("to_odd", "ieee"): _FINITE,
    **{(str(rounding.mode), "saturate"): _FINITE for rounding in MODES},
}

# Zeros that are exact: the operands, the sign in the mode down, the sign in all other modes.
ZERO_SUMS = [
    *(("add", (1.0, -1.0), "-", "+"), ("add", (0.0, -0.0), "-", "+"), ("add", (-0.0, -0.0), "-", "-")),
    *(("add", (0.0, 0.0), "+", "+"), ("sub", (1.0, 1.0), "-", "+"), ("sub", (-0.0, 0.0), "-", "-")),
    ("sub", (Fraction(0), Fraction(0)), "-", "+"),
    *(("fma", (2.0, 3.0, -6.0), "-", "+"), ("fma", (0.0, -3.0, 0.0), "-", "+")),
    *(("fma", (0.0, -3.0, -0.0), "-", "-"), ("fma", (-0.0, -3.0, 0.0), "+", "+")),
]


@pytest.mark.parametrize(("policy", "expected"), OVERFLOWS.items())
def test_overflow(policy, expected):
    for name, ends in expected.items():
        found = [round_float(x, get_format(name), Rounding(*policy)) for x in (1e6, -1e6)]
        assert same(found, ends).all(), (name, found, ends)


@pytest.mark.parametrize("rounding", MODES, ids=label)
def test_the_unbounded_rounding_decides_overflow(rounding):
    below = math.nextafter(65520.0, 0.0)  # the tie between the maximum and 65536
    assert round_float(below, get_format("fp16"), rounding) == (INF if rounding.mode == "up" else 65504.0)


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("name", ["e4m3fn", "e4m3fnuz", "e2m1fn"])
def test_an_exact_infinity_is_nan_where_there_is_none(name, overflow):
    fmt, rounding = get_format(name), Rounding(overflow=overflow)
    assert math.isnan(operate("div", (1.0, 0.0), fmt, rounding))
    assert math.isnan(operate("add", (INF, 1.0), fmt, rounding))
    assert math.isnan(round_float(-INF, fmt, rounding))


@pytest.mark.parametrize(("name", "operands", "down", "otherwise"), ZERO_SUMS)
def test_sign_of_an_exact_zero(name, operands, down, otherwise):
    for rounding in MODES:
        expected = float((down if rounding.mode == "down" else otherwise) + "0")
        assert same(operate(name, operands, BF16, rounding), expected), rounding
        assert same(operate(name, operands, get_format("e4m3fnuz"), rounding), 0.0), rounding


# -- published arithmetic -------------------------------------------------------------------------------
NUMPY_OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}


def numpy_operands(dtype, arity, size=150):
    """Return bit patterns at random, numbers of similar exponents, and all tuples of corners."""
    rng = np.random.default_rng(7)
    patterns = rng.integers(0, 256, (arity, size * dtype().itemsize), dtype=np.uint8).view(dtype)
    close = rng.standard_normal((arity, size)) * 2.0 ** rng.integers(-8, 9, (arity, size))
    info = np.finfo(dtype)
    edges = [0.0, info.smallest_subnormal, info.smallest_normal, 1.0, 1 + info.eps, 3.0, info.max, INF]
    corner = [*itertools.product([*edges, *(-edge for edge in edges), NAN], repeat=arity)][:: 2 * arity - 1]
    return np.concatenate([patterns, close.astype(dtype), np.array(corner, dtype=dtype).T], axis=1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", NUMPY_OPERATIONS)
def test_agrees_with_numpy(name, dtype):
    operands = numpy_operands(dtype, 1 if name == "sqrt" else 2)
    with np.errstate(all="ignore"):
        expected = NUMPY_OPERATIONS[name](*operands)
        columns = operands.astype(np.float64).T.tolist()
    assert same([operate(name, column, get_format(dtype)) for column in columns], expected).all()


@pytest.mark.parametrize(
    ("dtype", "function", "real"),
    [(np.float32, "fmaf", ctypes.c_float), (np.float64, "fma", ctypes.c_double)],
    ids=["float32", "float64"],
)
@pytest.mark.slow
def test_agrees_with_the_fma_of_the_c_library(dtype, function, real):
    library = ctypes.util.find_library("m")
    if library is None:
        pytest.skip("no C library of mathematics is found")
    fma = getattr(ctypes.CDLL(library), function)
    fma.argtypes, fma.restype = [real] * 3, real
    x, y, z = numpy_operands(dtype, 3)
    with np.errstate(all="ignore"):
        cancelling = np.array([x, y, -(x * y)])
        columns = np.concatenate([[x, y, z], cancelling], axis=1).astype(np.float64).T.tolist()
    expected = [fma(*column) for column in columns]
    assert same([operate("fma", column, get_format(dtype)) for column in columns], expected).all()


@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, BF16], ids=label)
def test_agrees_with_ml_dtypes(fmt):
    """Every number, every midpoint, some beyond the maximum, and the float32 neighbours of each."""
    numbers = magnitudes(fmt)
    if fmt is BF16:
        numbers = np.concatenate([numbers[:100], numbers[16000:16200], numbers[-100:]])
    beyond = numbers[-1] + (numbers[-1] - numbers[-2]) * np.array([0.25, 0.5, 0.75, 1.0, 2.0, 64.0])
    with np.errstate(all="ignore"):
        exact = np.concatenate([numbers, numbers[1:] / 2 + numbers[:-1] / 2, beyond]).astype(np.float32)
        source = np.concatenate([exact, *(np.nextafter(exact, np.float32(end)) for end in (0, INF))])
        source = source[np.isfinite(source)]  # ml_dtypes saturates where a format has no NaN
        source = np.concatenate([source, -source, np.float32([INF, -INF, NAN] if fmt.has_nan else [])])
        expected = source.astype(getattr(ml_dtypes, fmt.name))
    assert same([round_float(value, fmt) for value in source.tolist()], expected).all()


# -- what every rounding does ---------------------------------------------------------------------------
def samples(fmt: Format) -> list[Fraction]:
    """Return ascending rationals, and among them every corner, tie and thirds of gaps near it."""
    finite = [Fraction(x) for x in corners(fmt).tolist() if math.isfinite(x)]
    gap = fmt.smallest_subnormal
    near = [x + sign * step for x in finite for sign in (1, -1) for step in (gap / 3, gap / 2, abs(x) / 9)]
    drawn = [Fraction(x) for x in random_tuples(fmt, 200, 1, seed=3)[0].tolist() if math.isfinite(x)]
    between = [(x + y) / 2 for x, y in itertools.pairwise(sorted(drawn))]
    return sorted({*finite, *near, *drawn, *between})


@pytest.mark.parametrize("rounding", MODES, ids=label)
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS.values() if fmt.signed], ids=label)
@pytest.mark.sampled(28, each=False)
def test_rounding_is_monotone_idempotent_and_in_its_direction(fmt, rounding):
    previous = -INF
    for value in samples(fmt):
        rounded = round_fraction(value, fmt, rounding)
        if not math.isfinite(rounded):
            assert abs(value) > fmt.max
            continue
        assert rounded >= previous
        assert round_float(rounded, fmt, rounding) == rounded
        previous = rounded
        if abs(value) > fmt.max:
            assert abs(rounded) == fmt.max
            continue
        exact = Fraction(rounded)
        lower = Fraction(round_fraction(value, fmt, Rounding("down")))
        upper = Fraction(round_fraction(value, fmt, Rounding("up")))
        assert lower <= value <= upper
        assert exact in (lower, upper)
        match rounding.mode:
            case "toward_zero":
                assert abs(exact) <= abs(value)
            case "nearest_even" | "nearest_away":
                assert abs(exact - value) == min(value - lower, upper - value)
            case "to_odd" if exact != value:
                assert is_odd(exact, fmt)


@pytest.mark.parametrize("mode", ["nearest_even", "nearest_away"])
@pytest.mark.parametrize("fmt", SMALL_FORMATS, ids=label)
def test_ties(fmt, mode):
    for lower, upper in itertools.pairwise(map(Fraction, magnitudes(fmt).tolist())):
        tie = (lower + upper) / 2
        up = mode == "nearest_away" or is_odd(lower, fmt)
        assert round_fraction(tie, fmt, Rounding(mode)) == (upper if up else lower)
        assert round_fraction(-tie, fmt, Rounding(mode)) == -(upper if up else lower)


def is_odd(value: Fraction, fmt: Format) -> bool:
    """Whether the last significand bit of a number of the format is set."""
    exponent = max(math.frexp(float(value))[1] - 1, fmt.emin)
    return abs(value) / Fraction(2) ** (exponent - fmt.precision + 1) % 2 == 1


# -- in integers, against the definition ------------------------------------------------------------------
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}
BINARY = [name for name, arity in ARITY.items() if arity == 2]
E4M3FN, E5M2 = get_format("e4m3fn"), get_format("e5m2")
NEAREST = Rounding()


def check_integers(name, operands, fmt, rounding=NEAREST):
    """Assert that both give the same; name the first operands for which they do not."""
    actual = operate_integers(name, *operands, fmt=fmt, rounding=rounding)
    columns = list(zip(*(x.tolist() for x in operands), strict=True))
    expected = np.array([operate(name, column, fmt, rounding) for column in columns])
    wrong = np.flatnonzero(~same(actual, expected))
    assert not wrong.size, (name, fmt, rounding, *(x[wrong[0]] for x in (columns, actual, expected)))


@pytest.mark.parametrize(
    ("fmt", "rounding"), [*((E4M3FN, mode) for mode in MODES), (E5M2, NEAREST)], ids=label
)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.exhaustive
def test_all_pairs(name, fmt, rounding):
    everything = values(fmt)
    check_integers(name, [x.ravel() for x in np.meshgrid(everything, everything)], fmt, rounding)


@pytest.mark.parametrize("part", range(37))
@pytest.mark.sampled(37, each=False)
@pytest.mark.slow
def test_hard_operands_in_every_rounding(part):
    every = itertools.product(ARITY, [*SMALL_FORMATS, *WIDE_FORMATS], ROUNDINGS)
    for name, fmt, rounding in itertools.islice(every, part, None, 37):
        check_integers(name, random_tuples(fmt, 300, ARITY[name], seed=3), fmt, rounding)


@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, *WIDE_FORMATS[:2]], ids=label)
@pytest.mark.sampled(4, each=False)
def test_all_roots(fmt):
    check_integers("sqrt", [values(fmt)[:: 1 if fmt.bits <= 8 else 11]], fmt)


def test_a_root_just_below_the_smallest_normal_number_is_rounded_before_it_is_flushed():
    """In quarters: the root of 15 is 15.49, below the tie beside 16, and that of 15.1 is 15.54."""
    fmt, policy = Format(precision=4, emin=2, emax=10), Rounding(underflow="flush_after")
    assert operate("sqrt", (15.0,), fmt, policy) == 0
    assert operate_integers("sqrt", [15.0], fmt=fmt, rounding=policy) == 0
    assert operate("sqrt", (Fraction(151, 10),), fmt, policy) == 4


@pytest.mark.parametrize("fmt", [E5M2, *WIDE_FORMATS], ids=label)
@pytest.mark.parametrize("name", [*BINARY, "fma"])
@pytest.mark.sampled(6)
def test_corners(name, fmt):
    every = np.array([*itertools.product(corners(fmt).tolist(), repeat=ARITY[name])])
    check_integers(name, list(every[:: 1 if name != "fma" else 23].T), fmt)


@pytest.mark.parametrize("name", ARITY)
@pytest.mark.slow
def test_operands_may_be_wider_than_the_result(name):
    operands = random_tuples(get_format("bf16"), 200, ARITY[name], seed=6)
    for rounding in ROUNDINGS[::2]:
        check_integers(name, operands, Format(precision=2, emin=-9, emax=9), rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("name", ["e2m1fn", "e4m3fn", "e4m3fnuz", "e5m2", "bf16", "fp16", "tf32", "fp32"])
@pytest.mark.sampled(24, each=False)
def test_rounding_of_float64(name, rounding):
    fmt = get_format(name)
    rng = np.random.default_rng(8)
    patterns = rng.integers(0, 2**64, 500, dtype=np.uint64).view(np.float64)
    numbers = random_tuples(get_format("bf16" if fmt.precision > 11 else name), 300, 1, seed=9)[0]
    ulp = 2.0 ** (1 - fmt.precision)
    edges = np.array([float(fmt.max), float(fmt.smallest_normal), float(fmt.smallest_subnormal)])
    near = np.concatenate([numbers, edges, -edges, edges / 2, -edges / 4])
    near = np.concatenate([near, near * (1 + ulp / 2), near * (1 + ulp / 3)])
    extremes = [2.0**-1074, -(2.0**-1022), np.finfo(np.float64).max]
    x = np.concatenate([patterns, near, *(np.nextafter(near, end) for end in (np.inf, -np.inf)), extremes])
    expected = [round_float(value, fmt, rounding) for value in x.tolist()]
    assert same(round_integers(x, fmt, rounding), expected).all()


def test_operands_are_broadcast_across_blocks():
    fmt = get_format("fp16")
    column, row = values(fmt)[::97, None], values(fmt)[::89]
    table = operate_integers("mul", column, row, fmt=fmt)
    assert table.shape == (column.size, row.size)
    with np.errstate(all="ignore"):
        assert same(table, column.astype(np.float16) * row.astype(np.float16)).all()
    assert operate_integers("mul", column[:0], row, fmt=fmt).shape == (0, row.size)


def test_same_tells_zeros_apart_and_nans_alike():
    assert same([0.0, -0.0, np.nan, -np.nan, 1.0], [0.0, -0.0, -np.nan, np.nan, 1.0]).all()
    assert not same([0.0, np.nan, 1.0, np.inf], [-0.0, 1.0, np.nan, -np.inf]).any()
    signalling = np.array([0x7F800001], dtype=np.uint32).view(np.float32)
    assert same(signalling, np.nan).all()


ADD = partial(operate_integers, "add", fmt=E5M2)
HUGE = Format(precision=64, emin=-16382, emax=16383)


@refusals(
    refused(ValueError, "no operation 'add' of 3 operands", operate, ("add", (1.0, 2.0, 3.0), BF16)),
    refused(ValueError, "no operation 'pow'", operate, ("pow", (1.0, 2.0), BF16)),
    refused(ValueError, "binary64", round_fraction, (Fraction(1), HUGE)),
    refused(ValueError, "11 significant", ADD, *((x, 1.0) for x in (1 + 2.0**-11, 2.0**600, 2.0**-1074))),
    refused(ValueError, "no one result", round_fraction, (Fraction(1, 3), E5M2, Rounding("stochastic"))),
    refused(TypeError, "must be floats", round_integers, (np.array([2**60 + 1]), E5M2)),
    refused(ValueError, "has more than 11", partial(ADD, fmt=get_format("fp32")), (1.0, 1.0)),
    refused(ValueError, "float64 has numbers", round_integers, (1.0, get_format("fp64"))),
    refused(ValueError, "no operation 'sqrt' of 2", partial(operate_integers, "sqrt", fmt=E5M2), (1.0, 1.0)),
)
def test_what_is_out_of_reach_is_refused(rows):
    check(rows)
