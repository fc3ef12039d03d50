"""Bad input: a clear exception of ours, early, and never a wrong number or the inner workings of NumPy."""

import datetime
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import codec
from mcfsim.codec import packing
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import operate, round_float, round_fraction

PACKAGE = Path(mcf.__file__).parent
X = np.array([1.0, -2.5, 3.0], np.float32)
MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
WIDE = mcf.Format(precision=54, emin=-10, emax=10)
QUAD = mcf.Format(precision=113, emin=-16382, emax=16383)
AR = mcf.arithmetic("bfloat16")
ACC = mcf.Accumulator("bfloat16", block=None)
WORDS = np.arange(3, dtype=np.uint32)
BYTE = np.ones(1, np.uint8)
STOCHASTIC = mcf.Rounding("stochastic")

#: What is no array of real numbers of at most 64 bits, whatever is to be done with it.
NO_REALS = {
    "None": None,
    "str": "1.0",
    "strings": np.array(["1.0", "2"]),
    "bytes": b"1",
    "complex": np.array([1j]),
    "bool": np.array([True, False]),
    "True": True,
    "numpy bool": np.bool_(True),
    "longdouble": np.ones(2, np.longdouble),
    "dates": np.array(["2020-01-01"], "M8[D]"),
    "durations": np.array([5], "m8[s]"),
    "duration": np.timedelta64(5, "s"),
    "date": datetime.date(2020, 1, 1),
    "structured": np.zeros(2, [("value", "f4")]),
    "structured scalar": np.zeros(1, [("value", "f4")])[0],
    "void": np.zeros(2, "V4"),
    "objects": np.array([Fraction(1, 3), Decimal(1)]),
    "huge integers": np.array([2**70, 1], dtype=object),
    "list of huge integers": [2**70, 1],
    "list of None": [1.0, None],
    "dict": {"a": 1.0},
    "set": {1.0},
    "function": math.sqrt,
    "masked": MASKED,
    "masked integers": np.ma.array([1, 2], mask=[False, True]),
    "list of masked": [MASKED, MASKED],
    "masked constant": np.ma.masked,
}
TAKERS = {
    "round_to": lambda x: mcf.round_to(x, "bfloat16"),
    "round": AR.round,
    "add": lambda x: AR.add(x, 1.0),
    "sub": lambda x: AR.sub(1.0, x),
    "mul": lambda x: AR.mul(x, x),
    "div": lambda x: AR.div(x, 2.0),
    "fma": lambda x: AR.fma(1.0, 2.0, x),
    "sqrt": AR.sqrt,
    "neg": AR.neg,
    "abs": AR.abs,
    "two_sum": lambda x: mcf.two_sum(AR, x, 1.0),
    "encode": lambda x: codec.encode(x, "bfloat16"),
    "decode": lambda x: codec.decode(x, "bfloat16"),
    "codes_of": codec.codes_of,
    "as_dtype": lambda x: codec.as_dtype(x, "bfloat16"),
    "next_up": lambda x: codec.next_up(x, "bfloat16"),
    "next_down": lambda x: codec.next_down(x, "bfloat16"),
    "ulp": lambda x: codec.ulp(x, "bfloat16"),
    "pack": lambda x: packing.pack(x, 8),
    "unpack": lambda x: packing.unpack(x, 8, 2),
    "quantize": lambda x: mcf.quantize(x, "mxfp4"),
    "dot": lambda x: mcf.dot(x, [1.0, 2.0], ACC),
    "matmul": lambda x: mcf.matmul([[1.0]], x, ACC),
    "matmul c": lambda x: mcf.matmul(np.ones((2, 2)), np.ones((2, 2)), ACC, c=x),
    "random words": lambda x: mcf.round_to(X, "bfloat16", STOCHASTIC, random=x),
}


@pytest.mark.parametrize(
    ("taker", "what"),
    [(taker, what) for taker in TAKERS for what in NO_REALS if (taker, what) != ("matmul c", "None")],
)
def test_what_is_no_array_of_real_numbers_is_refused(taker, what):
    missing = taker == "random words" and what == "None"
    with pytest.raises(ValueError if missing else TypeError) as refusal:
        TAKERS[taker](NO_REALS[what])
    assert PACKAGE in refusal.traceback[-1].path.parents, refusal.value


@pytest.mark.parametrize("taker", [name for name in TAKERS if name not in ("codes_of", "as_dtype", "unpack")])
@pytest.mark.parametrize("what", [[[1.0, 2.0], [3.0]], [[1], 2]])
def test_ragged_sequences_are_refused(taker, what):
    with pytest.raises(ValueError, match="cannot be turned into an array"):
        TAKERS[taker](what)


@pytest.mark.parametrize("taker", ["round_to", "round", "add", "encode", "next_up", "ulp", "dot"])
@pytest.mark.parametrize("what", [[2**53 + 1, 0.5], [2**63 + 1, -1], [[0.5], [2**60 + 1]]])
def test_integers_that_would_be_rounded_among_floats_are_refused(taker, what):
    with pytest.raises(ValueError, match="among floats, an integer that binary64 does not hold"):
        TAKERS[taker](what)
    assert mcf.round_to([2**53 + 2, 0.5], "float64").tolist() == [2.0**53 + 2, 0.5]


# -- one call a line: what is wrong, the exception, and what its message must say --------------------------
NAMES = [None, 5, 1.5, [], {}, "", "nope", b"up", object, np.float64(3), ("bfloat16",)]
CALLS = [
    # round_to
    (lambda: mcf.round_to(X, WIDE), UnsupportedFormatError, "cannot hold"),
    (lambda: mcf.round_to(X, QUAD), UnsupportedFormatError, "cannot hold"),
    (lambda: mcf.round_to(1.0, QUAD), UnsupportedFormatError, "cannot hold"),
    (lambda: mcf.round_to(X, "bf16", threads=0), ValueError, "threads = 0"),
    (lambda: mcf.round_to(X, "bf16", threads=-1), ValueError, "threads = -1"),
    (lambda: mcf.round_to(X, "bf16", threads=1.5), TypeError, "threads must be an int, not 1.5"),
    (lambda: mcf.round_to(X, "bf16", threads="2"), TypeError, "threads must be an int"),
    (lambda: mcf.round_to(X, "bf16", threads=None), TypeError, "threads must be an int"),
    (lambda: mcf.round_to(1.0, "bf16", threads=True), TypeError, "threads must be an int"),
    (lambda: mcf.round_to(X, "bf16", out=[0.0] * 3), TypeError, "out must be an array .* not list"),
    (lambda: mcf.round_to(X, "bf16", out="out"), TypeError, "out must be an array .* not str"),
    (lambda: mcf.round_to(X, "bf16", out=np.ma.empty(3, np.float32)), TypeError, "out .* without a mask"),
    (lambda: mcf.round_to(X, "bf16", out=np.empty(3)), ValueError, "out must be float32 .* not float64"),
    (lambda: mcf.round_to(X, "bf16", out=np.empty(3, ">f4")), ValueError, "out must be float32"),
    (lambda: mcf.round_to(X, "bf16", out=np.empty(2, np.float32)), ValueError, r"of shape \(3,\), not"),
    (lambda: mcf.round_to(X, "bf16", out=np.empty((1, 3), np.float32)), ValueError, r"not .*\(1, 3\)"),
    (lambda: mcf.round_to(X, "bf16", out=np.broadcast_to(X[:1], 3)), ValueError, "out is read-only"),
    (lambda: mcf.round_to(np.arange(3), "bf16", out=frozen(X)), ValueError, "out is read-only"),
    (lambda: mcf.round_to(1.0, "bf16", out=X), ValueError, "out is for arrays"),
    (lambda: mcf.round_to(X, "posit8", underflow="flush_after"), UnsupportedFormatError, "underflow"),
    (lambda: mcf.round_to(X, "int8", underflow="flush_after"), UnsupportedFormatError, "underflow"),
    (lambda: mcf.round_to(X, "bf16", "up", "nearest_boundary"), ValueError, "for stochastic rounding"),
    (lambda: mcf.round_to(Decimal("1E+999999999"), "bf16"), ValueError, "too large an exponent"),
    (lambda: mcf.round_to(Decimal("1E-999999999"), "bf16"), ValueError, "too large an exponent"),
    (lambda: mcf.round_to(10**400, "float64", "up"), UnsupportedFormatError, "cannot be rounded once"),
    (lambda: mcf.round_to(X, "bf16", mcf.Rounding(), "saturate"), ValueError, "contradicts"),
    # stochastic rounding
    (lambda: mcf.round_to(X, "bf16", "stochastic"), ValueError, "needs random="),
    (lambda: mcf.round_to(1.0, "bf16", "stochastic"), ValueError, "needs random="),
    (lambda: mcf.round_to(X, "bf16", "stochastic", random=5), TypeError, "uint32 or uint16, not int64"),
    (lambda: mcf.round_to(X, "bf16", "stochastic", random=WORDS.astype(">u4")), TypeError, "not >u4"),
    (lambda: mcf.round_to(X, "bf16", "stochastic", random=WORDS[:2]), ValueError, r"shape \(2,\) do not fit"),
    (lambda: mcf.round_to(X, "bf16", "stochastic", random=WORDS[:, None]), ValueError, "do not fit"),
    (lambda: mcf.round_to(1.0, "bf16", "stochastic", random=WORDS), ValueError, "do not fit"),
    (
        lambda: mcf.round_to(
            *(X, "bf16", mcf.Rounding("stochastic", random_bits=17)), random=WORDS.astype(np.uint16)
        ),
        ValueError,
        "17 random bits need words of 32 bits",
    ),
    (lambda: mcf.Rounding("stochastic", random_bits=0), ValueError, "between 1 and 32"),
    (lambda: mcf.Rounding("stochastic", random_bits=33), ValueError, "between 1 and 32"),
    (lambda: mcf.Rounding("stochastic", random_bits=-1), ValueError, "between 1 and 32"),
    (lambda: mcf.Rounding("stochastic", random_bits=16.0), TypeError, "must be an int"),
    (lambda: mcf.Rounding("stochastic", random_bits=True), TypeError, "must be an int"),
    (lambda: mcf.RandomWords(None), TypeError, "seed must be an int"),
    (lambda: mcf.RandomWords(1.5), TypeError, "seed must be an int"),
    (lambda: mcf.RandomWords(True), TypeError, "seed must be an int"),
    (lambda: mcf.RandomWords(-1), ValueError, "seed = -1"),
    (lambda: mcf.RandomWords(2**64), ValueError, "must lie in"),
    (lambda: mcf.RandomWords(0, step=2**32), ValueError, "step = "),
    (lambda: mcf.RandomWords(0, stream="a"), TypeError, "stream must be an int"),
    (lambda: mcf.RandomWords(0).words(-1, 2), ValueError, "must not be negative"),
    (lambda: mcf.RandomWords(0).words(0, -2), ValueError, "must not be negative"),
    (lambda: mcf.RandomWords(0).words(0, 2, 8), ValueError, "32 or 16 bits"),
    # arithmetic
    (lambda: mcf.arithmetic(None), ValueError, "needs a format"),
    (lambda: mcf.arithmetic(WIDE), UnsupportedFormatError, "exceeds float64"),
    (lambda: mcf.arithmetic(QUAD, backend="native"), UnsupportedFormatError, "no dtype"),
    (lambda: mcf.arithmetic("bf16", threads=0), ValueError, "threads = 0"),
    (lambda: mcf.arithmetic("bf16", threads=1.5), TypeError, "threads must be an int"),
    (lambda: mcf.arithmetic("bf16", threads="2"), TypeError, "threads must be an int"),
    (lambda: mcf.arithmetic("bf16", scalars="float"), ValueError, "unknown scalar policy 'float'"),
    (lambda: mcf.arithmetic("bf16", scalars=None), ValueError, "unknown scalar policy None"),
    (lambda: mcf.arithmetic("bf16", random=5), TypeError, "random must be RandomWords"),
    (lambda: mcf.arithmetic("bf16", "stochastic"), ValueError, "needs random="),
    (lambda: mcf.arithmetic("bf16", "stochastic", random=WORDS), TypeError, "random must be RandomWords"),
    (lambda: mcf.arithmetic("bf16", colour="red"), TypeError, "colour"),
    (lambda: mcf.arithmetic("bf16", "up", backend="native"), ValueError, "nearest even"),
    (lambda: mcf.arithmetic("bf16", backend="exact", precision=1.5), TypeError, "precision must be an int"),
    (lambda: mcf.arithmetic("bf16", backend="exact", precision=8), ValueError, "at least 64"),
    (lambda: mcf.arithmetic("float64", "up").add(1.0, 2.0), UnsupportedFormatError, "no exact path"),
    (lambda: mcf.arithmetic("float64").fma(1.0, 2.0, 3.0), UnsupportedFormatError, "no exact path"),
    (lambda: AR.add([0.1], 1.0), ValueError, r"element \(0,\) = .* is no value of bfloat16"),
    (lambda: AR.add(X, [0.1, 1.0, 2.0]), ValueError, r"element \(0,\) = .* is no value of bfloat16"),
    (lambda: AR.add(np.array([2**63 + 1], np.uint64), 1.0), ValueError, "is no value of bfloat16"),
    (
        lambda: mcf.arithmetic("float8_e4m3fn").add([math.inf], 1.0),
        ValueError,
        "is no value of float8_e4m3fn",
    ),
    (lambda: AR.add(np.array(Fraction(1, 3)), 1.0), TypeError, "no array of real numbers"),
    (lambda: AR.add(X, X[:2]), ValueError, r"shapes \(3,\), \(2,\) do not broadcast"),
    (lambda: AR.fma(X, X, np.ones((2, 2))), ValueError, "do not broadcast"),
    (lambda: AR.add((X, X), X), TypeError, "an operand is a tuple"),
    (lambda: AR.neg((1.0, 2.0)), TypeError, "an operand is a tuple"),
    # formats
    (lambda: mcf.Format(5, precision=3, emin=-2, emax=3), TypeError, "name must be a string"),
    (lambda: mcf.Format(precision=None, emin=-2, emax=3), TypeError, "precision must be an int"),
    (lambda: mcf.Format(precision=3.0, emin=-2, emax=3), TypeError, "precision must be an int"),
    (lambda: mcf.Format(precision=0, emin=-2, emax=3), ValueError, "at least 1 bit"),
    (lambda: mcf.Format(precision=3, emin=3, emax=-2), ValueError, "must not exceed"),
    (lambda: mcf.Format(precision=3, emin=-2, emax=3, signed=1), TypeError, "signed must be True or False"),
    (lambda: mcf.Format(precision=3, emin=-2, emax=3, specials=None), ValueError, "unknown specials None"),
    (lambda: mcf.Format(precision=3, emin=-2, emax=3, parity=[]), ValueError, r"unknown parity \[\]"),
    (lambda: mcf.Grid(low=1, high=3), ValueError, "low <= 0 < high"),
    (lambda: mcf.Grid(low=-1.0, high=3), TypeError, "low must be an int"),
    (lambda: mcf.Posit(2), ValueError, "between 3 and 64"),
    (lambda: mcf.Posit("8"), TypeError, "bits must be an int"),
    (lambda: mcf.p3109("8", 3), TypeError, "bits must be an int"),
    (lambda: mcf.p3109(8, 3.0), TypeError, "precision must be an int"),
    (lambda: mcf.p3109(8, 9), ValueError, "no P3109 format"),
    (lambda: mcf.p3109(8, 3, signed="s"), TypeError, "signed must be True or False"),
    (lambda: mcf.p3109(10**9, 3), ValueError, "wider than 30"),
    (lambda: mcf.get_format("e5m" + "9" * 5000), ValueError, "unknown format"),
    (lambda: mcf.get_format("posit" + "9" * 5000), ValueError, "unknown format"),
    (lambda: mcf.get_format("posit65"), ValueError, "between 3 and 64"),
    (lambda: mcf.get_format("binary8p9"), ValueError, "no P3109 format"),
    # codes
    (lambda: codec.encode([0.1], "bf16"), ValueError, r"element \(0,\) = 0.1 is no value of bfloat16"),
    (lambda: codec.encode([1.0, math.nan], "float4_e2m1fn"), ValueError, r"element \(1,\) = nan has no code"),
    (lambda: codec.encode([math.inf], "float8_e4m3fn"), ValueError, "is no value"),
    (lambda: codec.encode([[2**53 + 1]], "float64"), UnsupportedFormatError, r"beyond 2\*\*53"),
    (lambda: codec.encode(X, QUAD), UnsupportedFormatError, "at most 64"),
    (lambda: codec.decode([1.0], "bf16"), TypeError, "codes must be integers, not float64"),
    (lambda: codec.decode([3, -1], "bf16"), ValueError, r"element \(1,\) = -1 is no code"),
    (lambda: codec.decode(2**16, "bf16"), ValueError, "is no code"),
    (lambda: codec.decode([2], "ternary"), ValueError, "no value"),
    (lambda: codec.as_dtype(np.array([255], np.uint8), "float4_e2m1fn"), ValueError, "is no code"),
    (lambda: codec.as_dtype(np.array([1], np.uint8), "binary8p3"), UnsupportedFormatError, "no dtype"),
    (lambda: codec.codes_of(np.ones(2, np.int32)), TypeError, "no codes of a known format"),
    (lambda: codec.all_values("float32"), ValueError, "at most"),
    (lambda: codec.next_up(1.0, QUAD), UnsupportedFormatError, "exceeds float64"),
    (lambda: codec.ulp(1.0, QUAD), UnsupportedFormatError, "exceeds float64"),
    (lambda: packing.packed_size(1.5, 3), TypeError, "count must be an int"),
    (lambda: packing.packed_size(-1, 3), ValueError, "must not be negative"),
    (lambda: packing.packed_size(1, 0), ValueError, "between 1 and 64"),
    (lambda: packing.pack([16], 4), ValueError, r"element \(0,\) = 16 lies outside"),
    (lambda: packing.pack([[1], [-1]], 4), ValueError, r"element \(1, 0\) = -1 lies outside"),
    (lambda: packing.pack([1], 65), ValueError, "between 1 and 64"),
    (lambda: packing.pack([1], 4.0), TypeError, "bits must be an int"),
    (lambda: packing.unpack(BYTE, 4, 3), ValueError, "take 2 bytes"),
    (lambda: packing.unpack(BYTE, 4, -2), ValueError, "negative length"),
    (lambda: packing.unpack(BYTE, 4, 10**30), ValueError, "bytes in one dimension"),
    (lambda: packing.unpack(BYTE, 4, None), TypeError, "shape must be an int or a sequence"),
    (lambda: packing.unpack(BYTE, 4, (2.0,)), TypeError, "shape must be an int or a sequence"),
    (lambda: packing.unpack(BYTE, 4, "2"), TypeError, "shape must be an int or a sequence"),
    (lambda: packing.unpack(BYTE[:, None], 4, 2), ValueError, "one dimension"),
    (lambda: packing.unpack(BYTE + 254, 4, 1), ValueError, "must be zero"),
    # products
    (lambda: mcf.dot(1.0, 2.0, ACC), ValueError, "do not share the length"),
    (lambda: mcf.dot([1.0, 2.0], [1.0], ACC), ValueError, "do not share the length"),
    (lambda: mcf.dot(np.ones((2, 3)), np.ones((3, 3)), ACC), ValueError, "do not broadcast"),
    (lambda: mcf.matmul(1.0, X, ACC), ValueError, "a is a number"),
    (lambda: mcf.matmul(X, np.ones((4, 2)), ACC), ValueError, "3 columns on the left, 4 rows"),
    (lambda: mcf.matmul(np.ones((2, 1, 5)), np.ones((3, 5, 2)), ACC), ValueError, "do not broadcast"),
    (lambda: mcf.dot([2**53 + 1], [1], ACC), ValueError, r"a\[0\] = .* 2\*\*53 at most"),
    (lambda: mcf.dot([1.0], [1e200], ACC), ValueError, r"b\[0\] = .* within"),
    (lambda: mcf.dot([1.0], [1.0], ACC, c=[1.0, 2.0]), ValueError, "does not broadcast"),
    (lambda: mcf.dot([1.0], [1.0], "bf16"), TypeError, "must be an Accumulator"),
    (lambda: mcf.dot([1.0], [1.0], ACC, threads=0), ValueError, "threads = 0"),
    (lambda: mcf.dot([1.0], [1.0], ACC, threads=1.5), TypeError, "threads must be an int"),
    (lambda: mcf.dot([1.0], [1.0], ACC, out_rounding="up"), ValueError, "is for an out_format"),
    (lambda: mcf.dot([1.0], [1.0], ACC, out_format=QUAD), UnsupportedFormatError, "exceeds float64"),
    (lambda: mcf.dot(X, X, mcf.Accumulator("bf16", STOCHASTIC, block=1)), ValueError, "needs random="),
    (lambda: mcf.Accumulator("bf16"), TypeError, "block"),
    (lambda: mcf.Accumulator("bf16", block=0), ValueError, "block = 0"),
    (lambda: mcf.Accumulator("bf16", block=1.5), TypeError, "block must be an int"),
    (lambda: mcf.Accumulator("bf16", block=1, lanes=-1), ValueError, "lanes = -1"),
    (lambda: mcf.Accumulator("bf16", block=1, order="random"), ValueError, "unknown order 'random'"),
    (lambda: mcf.Accumulator("bf16", block=1, products=None), ValueError, "unknown products None"),
    (lambda: mcf.Accumulator("float64", "up", block=1), UnsupportedFormatError, "cannot be rounded once"),
    (lambda: mcf.Accumulator(WIDE, block=1), UnsupportedFormatError, "exceeds float64"),
    (lambda: ACC.roundings(-1), ValueError, "must not be negative"),
    (lambda: ACC.roundings(1.5), TypeError, "length must be an int"),
    # shared scales
    (lambda: mcf.quantize(X, "mxfp4", axis=1), np.exceptions.AxisError, "axis 1 is out of bounds"),
    (lambda: mcf.quantize(X, "mxfp4", axis=2**70), np.exceptions.AxisError, "out of bounds"),
    (lambda: mcf.quantize(X, "mxfp4", axis=0.0), TypeError, "axis must be an int"),
    (lambda: mcf.quantize(X, "mxfp4", axis=None), TypeError, "axis must be an int"),
    (lambda: mcf.quantize(X, "mxfp4", rule="mean"), ValueError, "unknown rule 'mean'"),
    (lambda: mcf.quantize(-np.abs(X), "ternary", rule="max"), ValueError, "needs a positive number"),
    (lambda: mcf.quantize(X, "mxfp4", rounding="stochastic"), ValueError, "needs random="),
    (lambda: mcf.quantize(X, "mxfp4", rounding=STOCHASTIC, random=WORDS[:2]), ValueError, "do not fit"),
    (lambda: mcf.quantize(np.ones(2, np.float16), "mxfp4"), TypeError, "float16 is no array of float32"),
    (lambda: quantized_by_long_words(), UnsupportedFormatError, "32 random bits are more"),
    (lambda: scaled(block=0), ValueError, "at least 1 element"),
    (lambda: scaled(block="row"), TypeError, "block must be an int"),
    (lambda: scaled(scale=32), TypeError, "scale must be a floating-point format"),
    (lambda: scaled(element=None), TypeError, "element must be a floating-point format or a grid"),
    (lambda: scaled(rule=None), ValueError, "unknown rule None"),
]


def frozen(x):
    """Return a copy that cannot be written to."""
    x = x.copy()
    x.flags.writeable = False
    return x


def scaled(**changes):
    """Return a scaled format."""
    fields = {
        "element": mcf.FORMATS["float4_e2m1fn"],
        "scale": mcf.FORMATS["float32"],
        "block": 2,
        "rule": "absmax",
    }
    return mcf.ScaledFormat("mine", **(fields | changes))


def quantized_by_long_words():
    """Quantise with more random bits than the quotient has in binary64."""
    wide = scaled(element=mcf.FORMATS["float32"])
    rounding = mcf.Rounding("stochastic", random_bits=32)
    return mcf.quantize(X, wide, rounding=rounding, random=WORDS)


@pytest.mark.parametrize(("call", "kind", "message"), CALLS)
def test_bad_arguments_are_refused_by_name(call, kind, message):
    with pytest.raises(kind, match=message) as refusal:
        call()
    assert issubclass(refusal.type, TypeError | ValueError)


@pytest.mark.parametrize("name", NAMES, ids=repr)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda name: mcf.get_format(name), "unknown format"),
        (lambda name: mcf.round_to(X, name), "unknown format"),
        (lambda name: codec.decode([1], name), "unknown format"),
        (lambda name: mcf.Accumulator(name, block=1), "unknown format"),
        (lambda name: mcf.get_scaled_format(name), "unknown scaled format"),
        (lambda name: mcf.quantize(X, name), "unknown scaled format"),
        (lambda name: mcf.Rounding(name), "unknown rounding"),
        (lambda name: mcf.round_to(X, "bf16", name), "unknown rounding"),
        (lambda name: mcf.round_to(X, "bf16", overflow=name), "unknown overflow"),
        (lambda name: mcf.round_to(X, "bf16", underflow=name), "unknown underflow"),
        (lambda name: mcf.Rounding("stochastic", rule=name), "unknown rule"),
        (lambda name: mcf.arithmetic("bf16", name), "unknown rounding"),
        (lambda name: mcf.arithmetic("bf16", backend=name), "unknown backend"),
        (lambda name: mcf.arithmetic("bf16", scalars=name), "unknown scalar policy"),
        (lambda name: mcf.Accumulator("bf16", name, block=1), "unknown rounding"),
        (lambda name: mcf.dot(X, X, ACC, out_format="bf16", out_rounding=name), "unknown rounding"),
        (lambda name: mcf.quantize(X, "mxfp4", rounding=name), "unknown rounding"),
    ],
)
def test_unknown_names_are_refused(call, message, name):
    with pytest.raises(ValueError, match=message):
        call(name)


# -- what is taken, although it is unusual ----------------------------------------------------------------
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
    *(
        ml_dtypes.bfloat16(3),
        ml_dtypes.int4(-3),
        np.datetime64("2020"),
        [1, 2.5],
        (3.0, 4),
        [1, "a"],
        X,
        MASKED,
    ),
    *(np.array(2.5), np.array([], np.float32), np.ones((2, 3), ">f8"), np.arange(6)[::-2], np.ones(3, "f2")),
    *(np.array([0x7F800001], np.uint32).view(np.float32), np.array([2**63 + 1], np.uint64), np.ones(2, "V4")),
]
ODD_FORMATS = [
    *(
        "bf16",
        "float8_e4m3fn",
        "float8_e8m0fnu",
        "posit8",
        "int8",
        "ternary",
        "e2m1",
        "binary5p2ue",
        "float64",
    ),
    *("float32", "nope", None, 3, WIDE, QUAD, mcf.Format(precision=3, emin=-900, emax=900)),
]
ODD_ROUNDINGS = [*mcf.rounding.DETERMINISTIC, *mcf.rounding.DETERMINISTIC, "stochastic", "sideways", None, 2]
ODD_POLICIES = ["ieee", "ieee", "ieee", "saturate", "nearest_boundary", "gradual", None]
OPERATIONS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1}


def pick(rng, items):
    """Return one of the items."""
    return items[int(rng.integers(len(items)))]


def operated(operation, name, mode, operands):
    """Return the result of an operation of a named arithmetic."""
    return getattr(mcf.arithmetic(name, mode), operation)(*operands)


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
    return (
        round_fraction(item, fmt, rounding)
        if isinstance(item, Fraction)
        else round_float(item, fmt, rounding)
    )


def elements(x):
    """Return the elements of an array, as numbers that say exactly what they are."""
    if isinstance(x, np.ndarray) and x.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return x.astype(np.float64).ravel().tolist()
    return list(np.asarray(x, dtype=object).flat)


@pytest.mark.parametrize("seed", range(20))
def test_odd_arguments_give_the_right_number_or_our_exception(seed, assert_same):
    rng = np.random.default_rng(seed)
    results = 0
    for _ in range(150):
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


@pytest.mark.parametrize("seed", range(20))
def test_odd_operands_give_the_right_number_or_our_exception(seed, assert_same):
    rng = np.random.default_rng(100 + seed)
    results = 0
    for _ in range(150):
        operation, name, mode = pick(rng, list(OPERATIONS)), pick(rng, ODD_FORMATS), pick(rng, ODD_ROUNDINGS)
        operands = [pick(rng, ODD_NUMBERS) for _ in range(OPERATIONS[operation])]
        result = outcome(operated, operation, name, mode, operands)
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
