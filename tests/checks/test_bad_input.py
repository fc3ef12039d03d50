"""Bad input: a clear exception of ours, early, and never a wrong number or the inner workings of NumPy."""

import datetime
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import codec
from mcfsim.codec import packing
from mcfsim.kernels.carriers import UnsupportedFormatError

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


#: What is a list, and no array.
RAGGED = ([[1.0, 2.0], [3.0]], [[1], 2])
ROUNDED = ([2**53 + 1, 0.5], [2**63 + 1, -1], [[0.5], [2**60 + 1]])


def refusal_of(call, x, kind, text=""):
    """Return what is wrong with how a call refuses something, or nothing."""
    try:
        call(x)
    except (TypeError, ValueError) as refusal:
        if not isinstance(refusal, kind) or text not in str(refusal):
            return repr(refusal)
        frame = refusal.__traceback__
        while frame.tb_next is not None:
            frame = frame.tb_next
        place = Path(frame.tb_frame.f_code.co_filename)
        return None if PACKAGE in place.parents else f"{refusal!r} of {place}"
    except Exception as error:
        return repr(error)
    return "it is taken"


@pytest.mark.parametrize("taker", TAKERS)
def test_what_is_no_array_of_real_numbers_is_refused(taker):
    call, wrong = TAKERS[taker], {}
    for name, x in NO_REALS.items():
        if (taker, name) != ("matmul c", "None"):
            missing = (taker, name) == ("random words", "None")
            wrong[name] = refusal_of(call, x, ValueError if missing else TypeError)
    if taker not in ("codes_of", "as_dtype", "unpack"):
        for x in RAGGED:
            wrong[repr(x)] = refusal_of(call, x, ValueError, "cannot be turned into an array")
    if taker in ("round_to", "round", "add", "encode", "next_up", "ulp", "dot"):
        for x in ROUNDED:
            told = "among floats, an integer that binary64 does not hold"
            wrong[repr(x)] = refusal_of(call, x, ValueError, told)
    assert {name: found for name, found in wrong.items() if found} == {}


# -- one call a line: what is wrong, the exception, and what its message must say --------------------------
NAMES = [None, 5, 1.5, [], {}, "", "nope", b"up", object, np.float64(3), ("bfloat16",)]
CALLS = [
    # round_to
    (lambda: mcf.round_to(X, WIDE), UnsupportedFormatError, "cannot hold"),
    (lambda: mcf.round_to(X, QUAD), UnsupportedFormatError, "cannot hold"),
    (lambda: mcf.round_to(1.0, QUAD), UnsupportedFormatError, "cannot hold"),
    (lambda: mcf.round_to(X, "bf16", threads=0), ValueError, "threads = 0"),
    (lambda: mcf.round_to(X, "bf16", threads=1.5), TypeError, "threads must be an int, not 1.5"),
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
    (lambda: mcf.Rounding("stochastic", random_bits=16.0), TypeError, "must be an int"),
    (lambda: mcf.Rounding("stochastic", random_bits=True), TypeError, "must be an int"),
    (lambda: mcf.RandomWords(None), TypeError, "seed must be an int"),
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (mcf.get_format, "unknown format"),
        (lambda name: mcf.round_to(X, name), "unknown format"),
        (lambda name: codec.decode([1], name), "unknown format"),
        (lambda name: mcf.Accumulator(name, block=1), "unknown format"),
        (mcf.get_scaled_format, "unknown scaled format"),
        (lambda name: mcf.quantize(X, name), "unknown scaled format"),
        (mcf.Rounding, "unknown rounding"),
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
def test_unknown_names_are_refused(call, message):
    wrong = {repr(name): refusal_of(call, name, ValueError, message) for name in NAMES}
    assert {name: found for name, found in wrong.items() if found} == {}
