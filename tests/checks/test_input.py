"""Bad input: a clear exception of ours, early, and never a wrong number or the inner workings of NumPy.

Odd input, which is taken although it is unusual: the right number or our exception. For a name that there is
not, of statements, formats, strategies and others, one is suggested.
"""

import datetime
import math
import traceback
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import codec, packing
from mcfsim.checks import hint, nearest
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import operate, round_float, round_fraction
from mcfsim.rounding import Mode
from mcfsim.training.problems import PROBLEMS

PACKAGE = Path(mcf.__file__).parent
X = np.array([1.0, -2.5, 3.0], np.float32)
MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
WIDE = mcf.Format(precision=54, emin=-10, emax=10)
QUAD = mcf.Format(precision=113, emin=-16382, emax=16383)
AR = mcf.arithmetic("bfloat16")
ACC = mcf.Accumulator("bfloat16", block=None)
WORDS = np.arange(3, dtype=np.uint32)
BYTE = np.ones(1, np.uint8)
E4M3 = ml_dtypes.float8_e4m3fn
STOCHASTIC, LONG = mcf.Rounding("stochastic"), mcf.Rounding("stochastic", random_bits=32)
SCALED = mcf.ScaledFormat("mine", element="float32", scale="float32", block=2, rule="absmax")
OF_CODES = ("encode", "decode", "as_dtype", "next_up", "next_down", "ulp")

NO_REALS = {
    **{"None": None, "str": "1.0", "bytes": b"1", "list of None": [1.0, None], "set": {1.0}},
    **{"complex": np.array([1j]), "bool": np.array([True, False]), "numpy bool": np.bool_(True)},
    **{"longdouble": np.ones(2, np.longdouble), "huge integers": np.array([2**70, 1], dtype=object)},
    **{"objects": np.array([Fraction(1, 3), Decimal(1)]), "function": math.sqrt},
    **{"dates": np.array(["2020-01-01"], "M8[D]"), "date": datetime.date(2020, 1, 1)},
    **{"duration": np.timedelta64(5, "s"), "void": np.zeros(2, "V4")},
    **{"structured": np.zeros(2, [("value", "f4")]), "masked": MASKED, "list of masked": [MASKED, MASKED]},
    **{"masked constant": np.ma.masked, "bool of a list": [1, True], "numpy bool of a list": [np.False_, 0]},
    **{"bool of a row": [[1.0, 2.0], [1.0, False]], "bools of a list": [np.ones(1), np.ones(1, bool)]},
}
TAKERS = {
    "round_to": lambda x: mcf.round_to(x, "bfloat16"),
    **{name: getattr(AR, name) for name in ("round", "sqrt", "neg", "abs")},
    "add": lambda x: AR.add(x, 1.0),
    "sub": lambda x: AR.sub(1.0, x),
    "mul": lambda x: AR.mul(x, x),
    "div": lambda x: AR.div(x, 2.0),
    "fma": lambda x: AR.fma(1.0, 2.0, x),
    "two_sum": lambda x: mcf.two_sum(AR, x, 1.0),
    **{name: partial(getattr(codec, name), fmt="bfloat16") for name in OF_CODES},
    "codes_of": codec.codes_of,
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
ROUNDED = ([2**53 + 1, 0.5], [2**63 + 1, -1], [[0.5], [2**60 + 1]], [np.array(2**53 + 1), 0.5])


def refusal_of(call, x, kind, text=""):
    """Return what is wrong with how a call refuses something, or nothing."""
    try:
        call(x)
    except (TypeError, ValueError) as refusal:
        *_, (frame, _) = traceback.walk_tb(refusal.__traceback__)
        if not isinstance(refusal, kind) or text not in str(refusal):
            return repr(refusal)
        place = Path(frame.f_code.co_filename)
        return None if PACKAGE in place.parents else f"{refusal!r} of {place}"
    except Exception as error:
        return repr(error)
    return "it is taken"


def none_wrong(cases):
    assert {name: found for name, found in cases.items() if found} == {}


@pytest.mark.parametrize("taker", TAKERS)
def test_what_is_no_array_of_real_numbers_is_refused(taker):
    call, wrong = TAKERS[taker], {}
    for name, x in NO_REALS.items():
        if (taker, name) != ("matmul c", "None"):
            missing = (taker, name) == ("random words", "None")
            wrong[name] = refusal_of(call, x, ValueError if missing else TypeError)
    told = {"cannot be turned into an array": () if taker in ("codes_of", "as_dtype", "unpack") else RAGGED}
    if taker in ("round_to", "round", "add", "encode", "next_up", "ulp", "dot"):
        told["among floats, an integer that binary64 does not hold"] = ROUNDED
    for text, arrays in told.items():
        wrong |= {repr(x): refusal_of(call, x, ValueError, text) for x in arrays}
    none_wrong(wrong)


# -- one call a line: what is wrong, the exception, and what its message must say ---------------------------
NAMES = [None, 5, [], {}, "", "nope", b"up", object, np.float64(3), ("bfloat16",)]
#: What the tables of the modules' own tests leave out.
CALLS = [
    (lambda: mcf.round_to(X, "bf16", threads=True), TypeError, "threads must be an int"),
    (lambda: mcf.round_to(X, "bf16", threads=0), ValueError, "threads = 0"),
    (lambda: mcf.round_to(X, "bf16", out=np.broadcast_to(X[:1], 3)), ValueError, "out is read-only"),
    (lambda: mcf.round_to(Decimal("1E+999999999"), "bf16"), ValueError, "too large an exponent"),
    (lambda: mcf.round_to(X, "bf16", mcf.Rounding(), "saturate"), ValueError, "contradicts"),
    (lambda: mcf.round_to([E4M3(1), np.int8(100)], "bf16"), ValueError, "100 among floats, .* that float8"),
    # stochastic rounding
    (lambda: mcf.round_to(X, "bf16", "stochastic", random=5), TypeError, "uint32 or uint16, not int64"),
    (lambda: mcf.round_to(X, "bf16", "stochastic", random=WORDS.astype(">u4")), TypeError, "not >u4"),
    (lambda: mcf.round_to(X, "bf16", "stochastic", random=WORDS[:, None]), ValueError, "do not fit"),
    (lambda: mcf.round_to(1.0, "bf16", "stochastic", random=WORDS), ValueError, "do not fit"),
    (lambda: mcf.Rounding("stochastic", random_bits=True), TypeError, "must be an int"),
    # arithmetic
    (lambda: mcf.arithmetic("bf16", threads=1.5), TypeError, "threads must be an int"),
    (lambda: mcf.arithmetic("bf16", "stochastic", random=WORDS), TypeError, "random must be RandomWords"),
    (lambda: mcf.arithmetic("bf16", colour="red"), TypeError, "colour"),
    (lambda: mcf.arithmetic("bf16", backend="exact", precision=1.5), TypeError, "precision must be an int"),
    (lambda: AR.add(X, [0.1, 1.0, 2.0]), ValueError, r"element \(0,\) = .* is no value of bfloat16"),
    (lambda: AR.add(np.array([2**63 + 1], np.uint64), 1.0), ValueError, "is no value of bfloat16"),
    (lambda: AR.fma(X, X, np.ones((2, 2))), ValueError, "do not broadcast"),
    (lambda: AR.add((X, X), X), TypeError, "an operand is a tuple"),
    # formats
    (lambda: mcf.Format(5, precision=3, emin=-2, emax=3), TypeError, "name must be a string"),
    (lambda: mcf.Format(precision=3, emin=-2, emax=3, specials=None), ValueError, "unknown specials None"),
    (lambda: mcf.Format(precision=3, emin=-2, emax=3, parity=[]), ValueError, r"unknown parity \[\]"),
    (lambda: mcf.Format(precision=1, emin=-2, emax=3, specials="fuz"), ValueError, "did you mean 'fnuz'"),
    (lambda: mcf.p3109(8, 3.0), TypeError, "precision must be an int"),
    (lambda: mcf.p3109(8, 3, signed="s"), TypeError, "signed must be True or False"),
    (lambda: mcf.p3109(10**9, 3), ValueError, "wider than 30"),
    (lambda: mcf.get_format("e5m" + "9" * 5000), ValueError, "unknown format"),
    (lambda: mcf.get_format("binary8p9"), ValueError, "no P3109 format"),
    (lambda: mcf.Schedule(10**5000), ValueError, "= inf must be finite"),
    # codes
    (lambda: codec.decode([2], "ternary"), ValueError, "no value"),
    (lambda: packing.packed_size(1.5, 3), TypeError, "count must be an int"),
    (lambda: packing.packed_size(-1, 3), ValueError, "must not be negative"),
    (lambda: packing.packed_size(1, 0), ValueError, "between 1 and 64"),
    (lambda: packing.unpack(BYTE, 4, 10**30), ValueError, "bytes in one dimension"),
    # products
    (lambda: mcf.dot(1.0, 2.0, ACC), ValueError, "do not share the length"),
    (lambda: mcf.matmul(1.0, X, ACC), ValueError, "a is a number"),
    (lambda: mcf.dot([1.0], [1.0], ACC, out_format=QUAD), UnsupportedFormatError, "exceeds float64"),
    (lambda: mcf.Accumulator("bf16"), TypeError, "block"),
    (lambda: mcf.Accumulator("bf16", block=1, lanes=-1), ValueError, "lanes = -1"),
    (lambda: mcf.Accumulator("bf16", block=1, products=None), ValueError, "unknown products None"),
    (lambda: mcf.Accumulator("float64", "up", block=1), UnsupportedFormatError, "cannot be rounded once"),
    (lambda: mcf.Accumulator(WIDE, block=1), UnsupportedFormatError, "exceeds float64"),
    (lambda: ACC.roundings(-1), ValueError, "must not be negative"),
    (lambda: ACC.roundings(1.5), TypeError, "length must be an int"),
    # shared scales
    (lambda: mcf.quantize(X, "mxfp4", axis=2**70), np.exceptions.AxisError, "out of bounds"),
    (lambda: mcf.quantize(X, "mxfp4", axis=0.0), TypeError, "axis must be an int"),
    (lambda: mcf.quantize(X, "mxfp4", rounding=STOCHASTIC, random=WORDS[:2]), ValueError, "do not fit"),
    # More random bits than the quotient has in binary64.
    (lambda: mcf.quantize(X, SCALED, rounding=LONG, random=WORDS), UnsupportedFormatError, "32 random bits"),
]


@pytest.mark.slow
def test_bad_arguments_are_refused_by_name():
    for call, kind, message in CALLS:
        with pytest.raises(kind, match=message) as refusal:
            call()
        assert issubclass(refusal.type, TypeError | ValueError)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (mcf.get_format, "unknown format"),
        (lambda name: codec.decode([1], name), "unknown format"),
        (mcf.get_scaled_format, "unknown scaled format"),
        (lambda name: mcf.quantize(X, name), "unknown scaled format"),
        (mcf.Rounding, "unknown rounding"),
        (lambda name: mcf.round_to(X, "bf16", overflow=name), "unknown overflow"),
        (lambda name: mcf.round_to(X, "bf16", underflow=name), "unknown underflow"),
        (lambda name: mcf.Rounding("stochastic", rule=name), "unknown rule"),
        (lambda name: mcf.arithmetic("bf16", name), "unknown rounding"),
        (lambda name: mcf.arithmetic("bf16", backend=name), "unknown backend"),
        (lambda name: mcf.arithmetic("bf16", scalars=name), "unknown scalar policy"),
        (lambda name: mcf.dot(X, X, ACC, out_format="bf16", out_rounding=name), "unknown rounding"),
        (lambda name: mcf.quantize(X, "mxfp4", rounding=name), "unknown rounding"),
    ],
)
def test_unknown_names_are_refused(call, message):
    none_wrong({repr(name): refusal_of(call, name, ValueError, message) for name in NAMES})


# -- odd input ----------------------------------------------------------------------------------------------
class Column:
    """What lends its numbers to NumPy, as a column of a table does; or cannot."""

    def __init__(self, x=None):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        if self.x is None:
            raise RuntimeError("the memory is elsewhere")
        return np.asarray(self.x, dtype=dtype)


def test_objects_with_an_array_stand_for_it_and_subclasses_become_plain_arrays(assert_same):
    for call, x in (
        (lambda x: mcf.round_to(x, "bfloat16"), [0.1, 2.0]),
        (lambda x: AR.add(x, 1.0), X),
        (lambda x: codec.encode(x, "bf16"), X),
    ):
        assert_same(call(Column(x)), call(np.array(x)))
    with pytest.raises(ValueError, match="cannot be turned into an array"):
        mcf.round_to(Column(), "bf16")
    result = mcf.round_to(np.array([[0.1, 2.0]]).view(np.matrix), "bfloat16")
    assert (type(result), result.shape) == (np.ndarray, (1, 2))


def test_lists_of_short_floats_bring_no_warning():
    assert mcf.round_to([np.float16(1.5), np.float16(6e4)], "bf16").tolist() == [1.5, 59904.0]


def test_a_flushed_operand_is_the_zero_of_its_format():
    """Of one sign, where there is one: of an array as of a number."""
    ar = mcf.arithmetic("binary8p3se", underflow="flush_inputs")
    small = -float(ar.format.smallest_subnormal)
    assert [ar.div(1.0, x) for x in (small, ar.round(small), 0.0)] == [math.inf] * 3
    for divisor in (np.float32([small]), ar.round(np.float32([small]))):
        assert ar.div(np.float32([1]), divisor).tolist() == [math.inf]


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


# -- a fuzzer -----------------------------------------------------------------------------------------------
HUGE, TINY = 10**400, 5e-324
ODD_NUMBERS = [
    *(0, -1, 1.5, -0.0, 2**53 + 1, -(2**64), HUGE, TINY, 1e308, math.inf, -math.inf, math.nan, True, None),
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
@pytest.mark.slow
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


# -- what is suggested for a name that there is not ---------------------------------------------------------
KNOWN = {"format": [*mcf.FORMATS], "scaled": [*mcf.SCALED], "strategy": [*mcf.STRATEGIES]}
KNOWN |= {"theorem": [*mcf.THEOREMS], "problem": [*PROBLEMS], "mode": [*map(str, Mode)]}
MORE = pytest.param("theorem", 3, marks=pytest.mark.exhaustive)
EVERY = [(kind, {"theorem": 27, "strategy": 3}.get(kind, 1)) for kind in KNOWN]


def slips(name):
    """Return the name with a letter left out, doubled or exchanged with the next, or written differently."""
    found = {name.upper(), name.replace("_", ""), name.replace("_", "-"), name.title().replace("_", "")}
    for i in range(2, len(name) - 1):
        found |= {name[:i] + name[i + 1 :], name[:i] + name[i] + name[i:]}
        found.add(name[:i] + name[i + 1] + name[i] + name[i + 2 :])
    return found - {name}


@pytest.mark.parametrize(("kind", "every"), [*EVERY, MORE])
@pytest.mark.slow
@pytest.mark.sampled(6, each=False)
def test_every_slip_of_every_name_brings_a_suggestion_and_mostly_that_name(kind, every):
    names = KNOWN[kind]
    wrong = [(slip, name) for name in names[::every] if len(name) > 3 for slip in slips(name) - set(names)]
    found = [nearest(slip, names, 3) for slip, _ in wrong]
    assert kind == "mode" or all(found)
    assert sum(name in near for (_, name), near in zip(wrong, found, strict=True)) > 0.9 * len(wrong)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *(("fast2sum", "fast_two_sum"), ("2sum", "two_sum"), ("twoSumm", "two_sum"), ("dot_two", "dot2")),
        *(("2ProdFMA", "two_prod_fma"), ("DWTimesDW2", "dw_times_dw2"), ("dw_add_fp", "dw_plus_fp")),
    ],
)
def test_numbers_and_words_are_the_same(written, meant):
    with pytest.raises(ValueError, match=f"unknown theorem '{written}' \\(did you mean '{meant}'"):
        mcf.verify(written)


def test_the_text():
    assert hint("q", ["two_sum"]) == hint("", ["two_sum"]) == ""
    assert hint("tow_sum", ["two_sum", "xyz"]) == " (did you mean 'two_sum'?)"
    assert hint("sum", ["two_sum", "dw_sum"], most=2) == " (did you mean 'two_sum' or 'dw_sum'?)"
    assert hint("nearest_evn", Mode) == " (did you mean 'nearest_even'?)"


def test_names_of_formats_and_of_scaled_formats_are_told_apart():
    of_both = {*mcf.FORMATS, *(name for name in mcf.SCALED if name.startswith(("int", "tern")))}
    assert [mcf.get_format(name).name for name in of_both] == [*of_both]
    told = "a scaled format, .*: use mcfsim.quanti"
    for name in set(mcf.SCALED) - of_both:
        wrong = dict.fromkeys((name, name.upper(), f" {name} "), f"is {told}")
        wrong[name[:3] + "x" + name[3:]] = f"did you mean '{name}', {told}"
        for given, text in wrong.items():
            with pytest.raises(ValueError, match=text):
                mcf.get_format(given)
    with pytest.raises(ValueError, match="unknown scaled format 'bf16': it is a format of single numbers"):
        mcf.get_scaled_format("bf16")
