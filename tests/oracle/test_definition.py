"""The definition against rules by hand, NumPy, the C library and ml_dtypes, and what every rounding does."""

import ctypes.util
import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.oracle import operate, round_float, round_fraction, same
from mcfsim.rounding import Rounding

from .operands import MODES, SMALL_FORMATS, corners, label, magnitudes, random_tuples

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
    ("add", (1.0, -1.0), "-", "+"),
    ("add", (0.0, -0.0), "-", "+"),
    ("add", (-0.0, -0.0), "-", "-"),
    ("add", (0.0, 0.0), "+", "+"),
    ("sub", (1.0, 1.0), "-", "+"),
    ("sub", (-0.0, 0.0), "-", "-"),
    ("fma", (2.0, 3.0, -6.0), "-", "+"),
    ("fma", (0.0, -3.0, 0.0), "-", "+"),
    ("fma", (0.0, -3.0, -0.0), "-", "-"),
    ("fma", (-0.0, -3.0, 0.0), "+", "+"),
]


@pytest.mark.parametrize(("policy", "expected"), OVERFLOWS.items())
def test_overflow(policy, expected):
    found = {
        name: [round_float(x, get_format(name), Rounding(*policy)) for x in (1e6, -1e6)] for name in expected
    }
    assert all(same(found[name], expected[name]).all() for name in expected), (found, expected)


@pytest.mark.parametrize("rounding", MODES, ids=label)
def test_the_unbounded_rounding_decides_overflow(rounding):
    fmt = get_format("fp16")
    kept = math.nextafter(65520.0, 0.0)  # below the tie between the maximum and 65536
    inward = round_float(kept, fmt, rounding)
    assert inward == (INF if rounding.mode == "up" else 65504.0)


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


def test_unknown_operations_are_refused():
    with pytest.raises(ValueError, match="no operation 'add' of 3 operands"):
        operate("add", (1.0, 2.0, 3.0), BF16)
    with pytest.raises(ValueError, match="no operation 'pow'"):
        operate("pow", (1.0, 2.0), BF16)
    with pytest.raises(ValueError, match="binary64"):
        round_fraction(Fraction(1), Format(precision=64, emin=-16382, emax=16383))


# -- published arithmetic -------------------------------------------------------------------------------
NUMPY_OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}


def numpy_operands(dtype, arity, size=400):
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
        numbers = np.concatenate([numbers[:300], numbers[16000:16600], numbers[-300:]])
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
@pytest.mark.sampled(14, each=False)
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
