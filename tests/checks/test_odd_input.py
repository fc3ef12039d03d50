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
    """What lends its numbers to NumPy, as a column of a table does; or cannot."""

    def __init__(self, x=None):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        if self.x is None:
            raise RuntimeError("the memory is elsewhere")
        return np.asarray(self.x, dtype=dtype)


def test_objects_with_an_array_stand_for_it_and_subclasses_become_plain_arrays(assert_same):
    assert_same(mcf.round_to(Column([0.1, 2.0]), "bfloat16"), mcf.round_to(np.array([0.1, 2.0]), "bfloat16"))
    assert_same(AR.add(Column(X), 1.0), AR.add(X, 1.0))
    assert_same(codec.encode(Column(X), "bf16"), codec.encode(X, "bf16"))
    with pytest.raises(ValueError, match="cannot be turned into an array"):
        mcf.round_to(Column(), "bf16")
    result = mcf.round_to(np.array([[0.1, 2.0]]).view(np.matrix), "bfloat16")
    assert type(result) is np.ndarray
    assert result.shape == (1, 2)


def test_nan_and_infinity_never_become_numbers():
    signalling = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    half = np.array([0x7C01, 0xFC01], np.uint16).view(np.float16)
    brain = np.array([0x7F81, 0xFFFF], np.uint16).view(ml_dtypes.bfloat16)
    for x in (signalling, half, brain):
        for fmt in ("float8_e4m3fn", "float4_e2m1fn", "posit8", "int8", "float64"):
            assert np.isnan(mcf.round_to(x, fmt, overflow="saturate")).all()
        found = AR.round(x), AR.add(x, 1.0), mcf.dot(x, np.ones(x.size), ACC), codec.next_up(x, "bf16")
        assert all(np.isnan(y).all() for y in found)
    assert np.isnan(mcf.round_to([math.inf, -math.inf], "int8", overflow="saturate")).all()
    for x in (math.nan, Decimal("NaN"), Decimal("-sNaN"), np.longdouble("nan"), np.float16("nan")):
        assert math.isnan(mcf.round_to(x, "float4_e2m1fn", overflow="saturate"))
    assert np.isnan(mcf.arithmetic("posit8").div(np.ones(2), -math.inf)).all()  # NaR is no zero


def test_an_underflow_gives_the_smallest_number_where_there_is_no_zero():
    fmt = mcf.Format(precision=2, emin=-75, emax=-35, signed=False, zero=False)
    ar, least = mcf.arithmetic(fmt), np.array([2.0**-75])
    assert ar.mul(least, least).tolist() == [2.0**-75]


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
OPERATIONS = {"round": 1, "add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1}


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


def exact_elements(x):
    """Return an array of the elements, as numbers that say exactly what they are."""
    if isinstance(x, np.ndarray) and x.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            x = x.astype(np.float64)
    found = np.empty(np.shape(x), object)
    found.reshape(-1)[:] = [exact(item) for item in np.asarray(x, dtype=object).flat]
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sampled(4, each=False)
def test_odd_operands_give_the_right_number_or_our_exception(seed, assert_same):
    rng = np.random.default_rng(seed)
    results, pools = 0, (ODD_NUMBERS, ODD_FORMATS, ODD_ROUNDINGS, ODD_POLICIES, [*OPERATIONS, *["round"] * 6])
    for _ in range(200):
        number, name, mode, overflow, operation = (items[int(rng.integers(len(items)))] for items in pools)
        others = rng.integers(len(ODD_NUMBERS), size=OPERATIONS[operation] - 1)
        operands = [number, *(ODD_NUMBERS[i] for i in others)]
        try:
            if operation == "round":
                result = mcf.round_to(number, name, mode, overflow, threads=int(rng.integers(0, 4)))
            else:
                result = getattr(mcf.arithmetic(name, mode, overflow), operation)(*operands)
        except (TypeError, ValueError) as refusal:
            if str(refusal):
                continue
            raise
        results += 1
        fmt, rounding = mcf.get_format(name), mcf.Rounding(mode, overflow)
        numbers = np.broadcast_arrays(*map(exact_elements, operands))
        tuples = zip(*(array.reshape(-1).tolist() for array in numbers), strict=True)
        if operation == "round":
            rounds = {True: round_fraction, False: round_float}
            expected = [rounds[isinstance(x, Fraction)](x, fmt, rounding) for (x,) in tuples]
        else:  # an operand is a value of the format
            signed = fmt.has_negative_zero
            tuples = ([x if x or signed else 0.0 for x in each] for each in tuples)
            expected = [operate(operation, each, fmt, rounding) for each in tuples]
        assert_same(np.reshape(result, -1), np.array(expected, np.float64))
    assert results > 10
