"""What is taken although it is unusual: the right number or our exception, and never a wrong number."""

import math
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import codec
from mcfsim.oracle import operate, round_float, round_fraction
from tests.checks.test_bad_input import ACC, AR, MASKED, QUAD, WIDE, X


class Column:
    """What lends its numbers to NumPy, as a column of a table does."""

    def __init__(self, x):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.x, dtype=dtype)


def test_objects_with_an_array_stand_for_it(assert_same):
    assert_same(mcf.round_to(Column([0.1, 2.0]), "bfloat16"), mcf.round_to(np.array([0.1, 2.0]), "bfloat16"))
    assert_same(AR.add(Column(X), 1.0), AR.add(X, 1.0))
    assert_same(codec.encode(Column(X), "bf16"), codec.encode(X, "bf16"))
    with pytest.raises(TypeError, match="masked array"):
        mcf.round_to(MASKED, "bf16")
    with pytest.raises(ValueError, match="cannot be turned into an array"):
        mcf.round_to(Broken(), "bf16")


class Broken:
    """An object whose array cannot be had."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("the memory is elsewhere")


def test_subclasses_of_arrays_become_plain_arrays():
    result = mcf.round_to(np.array([[0.1, 2.0]]).view(np.matrix), "bfloat16")
    assert type(result) is np.ndarray
    assert result.shape == (1, 2)


def test_nan_and_infinity_never_become_numbers(assert_same):
    signalling = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    half = np.array([0x7C01, 0xFC01], np.uint16).view(np.float16)
    brain = np.array([0x7F81, 0xFFFF], np.uint16).view(ml_dtypes.bfloat16)
    for x in (signalling, half, brain):
        for fmt in ("float8_e4m3fn", "float4_e2m1fn", "posit8", "int8", "float64"):
            assert np.isnan(mcf.round_to(x, fmt, overflow="saturate")).all()
        assert np.isnan(AR.round(x)).all()
        assert np.isnan(AR.add(x, 1.0)).all()
        assert np.isnan(mcf.dot(x, np.ones(x.size), ACC))
        assert np.isnan(codec.next_up(x, "bf16")).all()
    assert np.isnan(mcf.round_to([math.inf, -math.inf], "int8", overflow="saturate")).all()
    for x in (math.nan, Decimal("NaN"), Decimal("-sNaN"), np.longdouble("nan"), np.float16("nan")):
        assert math.isnan(mcf.round_to(x, "float4_e2m1fn", overflow="saturate"))


def test_an_infinite_scalar_is_nar_to_posits():
    ar = mcf.arithmetic("posit8")
    assert math.isnan(ar.div(3.0, math.inf))
    assert np.isnan(ar.div(np.ones(2), -math.inf)).all()


def test_an_underflow_gives_the_smallest_number_where_there_is_no_zero():
    fmt = mcf.Format(precision=2, emin=-75, emax=-35, signed=False, zero=False)
    ar, least = mcf.arithmetic(fmt), np.array([2.0**-75])
    assert ar.mul(least, least).tolist() == [2.0**-75]


def test_random_words_are_not_used_by_the_other_modes(assert_same):
    assert_same(mcf.round_to(X, "bf16", "up", random=mcf.RandomWords(1)), mcf.round_to(X, "bf16", "up"))


# -- a fuzzer ---------------------------------------------------------------------------------------------
ODD_NUMBERS = [
    *(
        0,
        -1,
        1.5,
        -0.0,
        2**53 + 1,
        -(2**64),
        10**400,
        5e-324,
        1e308,
        math.inf,
        -math.inf,
        math.nan,
        True,
        None,
    ),
    *(Fraction(1, 3), Fraction(-(10**30), 7), Decimal("0.1"), Decimal("-Infinity"), "1", 1j, [], {}, [[]]),
    *(np.float32(0.1), np.float16(7), np.int8(-3), np.uint64(2**64 - 1), np.longdouble(1) / 3, np.bool_(0)),
    *(ml_dtypes.bfloat16(3), ml_dtypes.int4(-3), np.datetime64("2020"), [1, 2.5], (3.0, 4), [1, "a"]),
    *(X, MASKED),
    *(np.array(2.5), np.array([], np.float32), np.ones((2, 3), ">f8"), np.arange(6)[::-2], np.ones(3, "f2")),
    *(np.array([0x7F800001], np.uint32).view(np.float32), np.array([2**63 + 1], np.uint64), np.ones(2, "V4")),
]
ODD_FORMATS = [
    *("bf16", "float8_e4m3fn", "float8_e8m0fnu", "posit8", "int8", "ternary", "e2m1", "binary5p2ue"),
    *("float64", "float32", "nope", None, 3, WIDE, QUAD, mcf.Format(precision=3, emin=-900, emax=900)),
]
ODD_ROUNDINGS = [*mcf.rounding.DETERMINISTIC, *mcf.rounding.DETERMINISTIC, "stochastic", "sideways", None, 2]
ODD_POLICIES = ["ieee", "ieee", "ieee", "saturate", "nearest_boundary", "gradual", None]
OPERATIONS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1}


def pick(rng, items):
    """Return one of the items."""
    return items[int(rng.integers(len(items)))]


def outcome(function, *args, **options):
    """Return what a function returns, or None if it refuses with a message."""
    try:
        return function(*args, **options)
    except (TypeError, ValueError) as refusal:
        return None if str(refusal) else pytest.fail(f"{refusal!r} says nothing")


def exact(x):
    """Return a real number exactly, or the float that is none."""
    try:
        number = float(x)
    except OverflowError:
        return Fraction(x)
    if not math.isfinite(number) or number == 0:
        return number
    if isinstance(x, np.generic):
        return Fraction(*x.as_integer_ratio()) if isinstance(x, np.floating) else Fraction(int(x))
    return Fraction(x)


def judged(item, fmt, rounding):
    """Return a real number rounded by the definition."""
    item = exact(item)
    return (round_fraction if isinstance(item, Fraction) else round_float)(item, fmt, rounding)


def elements(x):
    """Return the elements of an array, as numbers that say exactly what they are."""
    if isinstance(x, np.ndarray) and x.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return x.astype(np.float64).ravel().tolist()
    return list(np.asarray(x, dtype=object).flat)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sampled(4, each=False)
def test_odd_arguments_give_the_right_number_or_our_exception(seed, assert_same):
    rng = np.random.default_rng(seed)
    results = 0
    for _ in range(100):
        x, name, mode = pick(rng, ODD_NUMBERS), pick(rng, ODD_FORMATS), pick(rng, ODD_ROUNDINGS)
        overflow, threads = pick(rng, ODD_POLICIES), pick(rng, [1, 1, 1, 1, 1, 2, 3, 0])
        result = outcome(mcf.round_to, x, name, mode, overflow, threads=threads)
        if result is None:
            continue
        results += 1
        fmt, rounding = mcf.get_format(name), mcf.Rounding(mode, overflow)
        expected = [judged(item, fmt, rounding) for item in elements(x)]
        assert_same(np.reshape(result, -1), np.array(expected, np.float64))
    assert results > 10


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sampled(4, each=False)
def test_odd_operands_give_the_right_number_or_our_exception(seed, assert_same):
    rng = np.random.default_rng(100 + seed)
    results = 0
    for _ in range(100):
        operation, name, mode = pick(rng, list(OPERATIONS)), pick(rng, ODD_FORMATS), pick(rng, ODD_ROUNDINGS)
        operands = [pick(rng, ODD_NUMBERS) for _ in range(OPERATIONS[operation])]
        result = outcome(lambda: getattr(mcf.arithmetic(name, mode), operation)(*operands))  # noqa: B023
        if result is None:
            continue
        results += 1
        fmt, rounding = mcf.get_format(name), mcf.Rounding(mode)
        numbers = [[exact(item) for item in elements(x)] for x in operands]
        if not fmt.has_negative_zero:  # an operand is a value of the format
            numbers = [[item or 0.0 for item in row] for row in numbers]
        arrays = [
            np.array(row, object).reshape(np.shape(x)) for row, x in zip(numbers, operands, strict=True)
        ]
        arrays = np.broadcast_arrays(*arrays)
        tuples = zip(*(array.ravel().tolist() for array in arrays), strict=True)
        expected = [operate(operation, each, fmt, rounding) for each in tuples]
        assert_same(np.reshape(result, -1), np.array(expected, np.float64))
    assert results > 2
