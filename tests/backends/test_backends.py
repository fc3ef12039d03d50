"""The backends beside the emulator: native types, exact arithmetic, the meter, and the factory."""

import copy
import math
import operator
import pickle
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product

import ml_dtypes
import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.block_arithmetic import operation
from mcfsim.backends.exact import ExactArithmetic
from mcfsim.backends.meter import Meter
from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.codec import all_values
from mcfsim.formats import FORMATS, Format
from mcfsim.kernels.carriers import UnsupportedFormatError, native_dtype
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.multiword import expansion, summation
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.oracle.operands import SMALL_FORMATS, label, random_tuples, values
from tests.shared.refusals import check, refusals, refused

BINARY = ["add", "sub", "mul", "div"]
EXACTLY = {name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "abs")}
EXACTLY |= {"div": operator.truediv, "fma": lambda a, b, c: a * b + c, "round": lambda a: a}
ARITY = {name: 3 if name == "fma" else 1 + (name in BINARY) for name in EXACTLY}
fraction = mcf.expansion.to_fraction


# -- native -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "tf32"])
def test_the_native_dtype_is_the_formats(name):
    dtype = native_dtype(FORMATS[name])
    assert dtype == getattr(ml_dtypes, name, None) or dtype == np.dtype(name)
    assert NativeArithmetic(dtype).format == FORMATS[name]
    assert native_dtype(replace(FORMATS[name], name="mine")) == dtype  # whatever its name


@pytest.mark.parametrize(
    ("fmt", "name"),
    [
        *((fmt, name) for fmt in SMALL_FORMATS if fmt.has_nan for name in BINARY),
        *((FORMATS[x], name) for x in ("bfloat16", "float16", "float32") for name in (*BINARY, "sqrt")),
    ],
    ids=label,
)
def test_results_are_the_bits_of_ml_dtypes(fmt, name, assert_same):
    """Of all pairs of short formats, and of random operands."""
    if fmt.bits <= 8:
        operands = [x.ravel() for x in np.meshgrid(values(fmt), values(fmt))]
    else:
        operands = random_tuples(fmt, 2**12, 1 if name == "sqrt" else 2, seed=1)
    native = mcf.arithmetic(fmt, backend="native")
    with np.errstate(all="ignore"):
        expected = getattr(native, name)(*(x.astype(native.dtype) for x in operands)).astype(np.float64)
    assert_same(getattr(mcf.arithmetic(fmt), name)(*operands), expected, *operands)


def test_native_signs_magnitudes_casts_and_numbers(assert_same):
    native = mcf.arithmetic("bf16", backend="native")
    x = values(FORMATS["bfloat16"]).astype(np.float32)
    assert_same(native.neg(native.round(x)).astype(np.float32), -x)
    assert_same(native.abs(native.round(x)).astype(np.float32), np.abs(x))
    assert native.round(1.01).dtype == ml_dtypes.bfloat16
    assert native.scalars == "rounded"
    assert native.mul(native.round(np.float32([3])), 1.004) == 3.03125  # 3 * 1.0078125 lies half-way


def test_a_native_multiply_add_is_none_unless_two_roundings_are_asked_for():
    native, x = mcf.arithmetic("fp16", backend="native"), np.float16(1 + 2.0**-9)
    for call in (lambda: native.fma(x, x, x), lambda: mcf.two_prod_fma(native, x, x)):
        with pytest.raises(UnsupportedFormatError, match="fma in native float16"):
            call()
    twice = mcf.arithmetic("fp16", backend="native", fused=False)
    assert twice.fma(x, x, np.float16(-1)) == 2.0**-8  # the square's last bit is lost
    assert mcf.arithmetic("fp16").fma(float(x), float(x), -1.0) == 2.0**-8 + 2.0**-18


# -- exact ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in EXACTLY if name != "div"])
def test_exact_operations_lose_nothing_that_fits(name):
    exact, operands = mcf.arithmetic(None, backend="exact"), (1 + 2.0**-50, -1.5, 2.0**-200)[: ARITY[name]]
    assert fraction(getattr(exact, name)(*operands)) == EXACTLY[name](*map(Fraction, operands))
    assert fraction(exact.sqrt(exact.mul(operands[0], operands[0]))) == Fraction(operands[0])
    assert exact.format is None


@pytest.mark.parametrize("precision", [64, 400])
def test_exact_quotients_and_roots_have_the_precision_asked_for(precision):
    exact = ExactArithmetic(precision)
    assert 0 < abs(fraction(exact.div(1, 3)) - Fraction(1, 3)) <= Fraction(1, 2 ** (precision + 2))
    root, step = fraction(exact.sqrt(2)), Fraction(1, 2**precision)
    assert (root - step) ** 2 < 2 < (root + step) ** 2
    # Arithmetics do not share their precision.
    assert ExactArithmetic(1000).div(1, 3) != exact.div(1, 3) == ExactArithmetic(precision).div(1, 3)


def test_exact_functions_take_no_more_digits_than_there_is_memory():
    """The sum 1 + exp(-1e30) would have 1e30 digits, and so would the exponential of exp(exp(20))."""
    exact = ExactArithmetic(64)
    tiny = exact.exp(-1e30)
    assert exact.log1p(tiny) == tiny > 0
    assert exact.log1p(2.0**-70) == 2.0**-70 - 2.0**-141
    huge = exact.exp(exact.exp(20.0))
    for function in (exact.exp, exact.expm1, exact.sin, exact.cos):
        with pytest.raises(OverflowError, match="beyond"):
            function(huge)


def test_exact_arithmetic_takes_numbers_and_arrays_of_every_kind():
    exact = mcf.arithmetic(None, backend="exact")
    assert fraction(exact.mul(2.0**-1000, 2.0**-1000)) == Fraction(2) ** -2000
    total = exact.add(np.float32([[1, 2], [3, 4]]), np.array([10, 20]))
    assert total.tolist() == [[11, 22], [13, 24]]
    assert exact.mul(np.array([1.5], ml_dtypes.bfloat16), Fraction(1, 2))[0] == 0.75
    assert exact.sqrt(np.array([4.0, 9.0])).tolist() == [2, 3]
    with mpmath.workprec(500):
        assert exact.round(mpmath.mpf(2) ** -450 + 1) == 1
    with exact.context.workprec(500):  # longer than it carries
        long = exact.context.mpf(2) ** -450 + 1
    assert exact.round(long) == exact.round(np.array([long]))[0] == 1
    for times in (np.array([5], "m8[ns]"), [np.timedelta64(5, "ns")]):
        with pytest.raises(TypeError, match="a time is no real number"):
            exact.add(times, 1)
    s, e = mcf.two_sum(exact, 1.0, 2.0**-1000)
    assert fraction(s) == 1  # 1000 bits apart: more than the 400 it carries
    assert math.isclose(float(e), 2.0**-1000, rel_tol=0)


# -- meter ------------------------------------------------------------------------------------------------
def test_the_meter_counts_calls_and_elements_and_changes_no_result(assert_same):
    a, b = random_tuples(FORMATS["bfloat16"], 100_000, 2, seed=2)
    meter = Meter(mcf.arithmetic("bf16"))
    for watched, plain in zip(mcf.two_sum(meter, a, b), mcf.two_sum(meter.arithmetic, a, b), strict=True):
        assert_same(watched, plain, a, b)
    assert meter.trace == ["add", "sub", "sub", "sub", "sub", "add"]
    assert (meter.tallies["add"].calls, meter.tallies["add"].elements) == (2, 200_000)
    assert (meter.tallies["sub"].calls, meter.tallies["sub"].elements) == (4, 400_000)
    assert meter.format == FORMATS["bfloat16"]
    assert 0.5 < meter.tallies["add"].max_error <= 1


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        # Lost are the first two, and the third, the other way round; the last moves.
        ("add", ([1, 1, 2**-9, 1, 1 + 2**-7], [2**-8, 2**-9, 1, 3, 2**-8]), (4, 3)),
        ("add", ([1.0], [2.0**-100]), (1, 1)),  # beyond binary64
        ("add", (2**60 + 1, -(2**60)), (0, 0)),  # long integers are taken as they are
        ("round", (np.array([2**60 + 1, 2**60, 3]),), (1, 0)),
        ("sqrt", ([2, 4, 9],), (1, 0)),
        ("sqrt", ([-1.0],), (0, 0)),  # what has no root is not judged
    ],
)
def test_the_meter_counts_by_hand(name, operands, expected):
    meter = Meter(mcf.arithmetic("bf16"))
    getattr(meter, name)(*(np.float32(x) if isinstance(x, list) else x for x in operands))
    assert (meter.tallies[name].inexact, meter.tallies[name].lost) == expected


def test_the_meter_counts_functions_and_selections_alone(assert_same):
    meter, x = Meter(mcf.arithmetic("float8_e4m3fn")), np.float32([1.0, 2.0, np.nan])
    assert_same(meter.exp(x), meter.arithmetic.exp(x))
    assert_same(meter.maximum(x, 1.5), meter.arithmetic.maximum(x, 1.5))
    assert meter.trace == ["exp", "maximum"]
    for tally in meter.tallies.values():
        assert (tally.calls, tally.elements, tally.inexact, tally.max_error) == (1, 3, 0, 0.0)


def tally_by_definition(name, fmt, operands, results, before=None):
    """Count in fractions, one element after the other, what `Tally` says of its fields."""
    found = before or dict.fromkeys(("inexact", "overflow", "underflow", "lost", "max_error"), 0)
    quantum = fmt.quantum if hasattr(fmt, "quantum") else Fraction(2) ** (fmt.emax - fmt.precision + 1)
    for row, result in zip(zip(*operands, strict=True), results, strict=True):
        if not all(isinstance(x, Fraction | int) or math.isfinite(x) for x in row):
            continue
        numbers = [Fraction(x) for x in row]
        if name == "div" and numbers[1] == 0:
            continue
        exact = EXACTLY[name](*numbers)
        finite = math.isfinite(result)
        if finite and Fraction(result) == exact:
            continue
        found["inexact"] += 1
        end = finite and (exact > fmt.max == result or exact < fmt.lowest == result)
        if not finite or (end and abs(Fraction(result) - exact) >= quantum):
            found["overflow"] += 1
            continue
        if result == 0:
            found["underflow"] += 1
        else:
            relative = abs((Fraction(result) - exact) / exact) * 2**fmt.precision
            found["max_error"] = max(found["max_error"], relative)
        if name in ("add", "sub"):
            a, b = numbers[0], numbers[1] if name == "add" else -numbers[1]
            found["lost"] += (result == a and b != 0) or (result == b and a != 0)
    return found


@pytest.mark.parametrize("policy", ["ieee", "saturate"])
@pytest.mark.parametrize("name", EXACTLY)
@pytest.mark.sampled(16, each=False)
@pytest.mark.slow
def test_the_meter_counts_by_the_definition(name, policy):
    """On operands of all kinds, with infinities, zeros, over- and underflows, and on scalars of any kind."""
    formats = ("float8_e5m2", "float8_e4m3fn", "bfloat16", "int8", "posit8", "binary8p4uf")
    for fmt, mode in product(map(mcf.get_format, formats), DETERMINISTIC):
        ar = mcf.arithmetic(fmt, mode, policy)
        pool = all_values(fmt) if fmt.bits <= 8 else [*values(fmt)[::97], np.inf, -np.inf, np.nan, 0.0, -0.0]
        drawn = np.random.default_rng(1).choice(pool, (ARITY[name], 40))
        operands = [x.astype(ar.carrier) if name != "round" else x * 1.37 for x in drawn.astype(np.float64)]
        meter, expected = Meter(ar), None
        # And with a scalar that binary64 does not hold.
        for given in [operands, [operands[0], Fraction(1, 3)]][: 1 + (name == "add")]:
            results = getattr(meter, name)(*given).tolist()
            rows = [x.tolist() if isinstance(x, np.ndarray) else [x] * 40 for x in given]
            expected = tally_by_definition(name, fmt, rows, results, expected)
        tally = meter.tallies[name]
        for key in ("inexact", "overflow", "underflow", "lost"):
            assert getattr(tally, key) == expected[key], (fmt, mode, key)
        assert tally.max_error == pytest.approx(float(expected["max_error"]), rel=1e-12, abs=0)


def test_the_meter_watches_every_arithmetic_and_draws_for_a_block_as_it_does(assert_same):
    for ar in (mcf.arithmetic("fp16", backend="native"), mcf.arithmetic(None, backend="exact")):
        meter = Meter(ar)
        mcf.two_sum(meter, np.float16([1.0]), np.float16([2.0]))
        assert len(meter.trace) == 6
    ar = mcf.arithmetic("bf16", "stochastic", random=mcf.RandomWords(5))
    meter = Meter(ar)
    watched, plain = meter.on_block(step=3, start=100), ar.on_block(step=3, start=100)
    x = np.linspace(1, 2, 129, dtype=np.float32)
    assert_same(watched.add(watched.round(x), 2.0**-9), plain.add(plain.round(x), 2.0**-9))
    assert meter.trace == ["round", "add"]
    assert meter.tallies["add"].elements == 129
    for copied in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        again = copied(meter)
        assert (again.tallies, again.trace, again.format) == (meter.tallies, meter.trace, meter.format)


class Emptied(dict):
    """A dictionary that another thread empties after each look into it."""

    def __contains__(self, key):
        found = super().__contains__(key)
        self.clear()
        return found


def test_another_thread_may_empty_the_scalars_that_are_kept():
    kept = operation("mul", FORMATS["bfloat16"], Rounding(), "exact", (False, True))
    before, kept._kept = kept._kept, Emptied()
    try:
        assert kept.bound([0.3], 5) is not None is not kept.bound([0.3], 5)
    finally:
        kept._kept = before


# -- factory ----------------------------------------------------------------------------------------------
def test_random_bits_make_no_difference_where_none_are_drawn():
    rounding = Rounding(random_bits=8, rule="centred")
    for backend in ("numpy", "native"):
        ar = mcf.arithmetic("float64", rounding, backend=backend)
        one = ar.like(FORMATS["float64"], rounding).exp(np.zeros(1))
        assert ar.add(one, 2.0**-52) == one + 2.0**-52


def test_the_factory_gives_what_is_asked_for():
    ar = mcf.arithmetic("e4m3fn", "toward_zero", "saturate", scalars="rounded", threads=2)
    assert isinstance(ar, NumpyArithmetic)
    assert (ar.format, ar.rounding) == (FORMATS["float8_e4m3fn"], Rounding("toward_zero", "saturate"))
    assert (ar.scalars, ar.threads, ar.carrier) == ("rounded", 2, np.float32)
    assert isinstance(mcf.arithmetic("fp16", backend="native"), NativeArithmetic)
    assert mcf.arithmetic(None, backend="exact", precision=77).precision == 77
    assert mcf.arithmetic("bf16", Rounding("up")).rounding == Rounding("up")


def made(*given, backend="numpy"):
    return mcf.arithmetic(*given, backend=backend)


EXACT, native = made(None, backend="exact"), partial(made, backend="native")
NOT_NATIVE = [("bf16", "nearest_even", "saturate"), *(("bf16", mode) for mode in DETERMINISTIC[1:])]


@refusals(
    refused(ValueError, "'abacus'; allowed: numpy, .*native, exact", partial(made, backend="abacus"), "bf16"),
    refused(ValueError, "unknown format 'bf61'.*did you mean", made, "bf61"),
    refused(ValueError, "backend 'numpy' needs a format", made, None),
    refused(ValueError, "unknown rounding 'nearest'", made, ("bf16", "nearest")),
    refused(ValueError, "unknown overflow 'wrap'", made, ("bf16", "up", "wrap")),
    refused(ValueError, "use backend='exact'", made, Format(precision=113, emin=-16382, emax=16383)),
    refused(ValueError, "no dtype of NumPy or ml_dtypes holds", native, "tf32"),
    refused(ValueError, "no dtype of", native, Format("bfloat16", precision=9, emin=-126, emax=127)),
    refused(ValueError, "native arithmetic rounds to nearest even, over- and", native, *NOT_NATIVE),
    # Where there is no real result, and with few bits.
    refused(ZeroDivisionError, None, EXACT.div, (1, 0)),
    refused(ValueError, "square root of the negative", EXACT.sqrt, -1),
    refused(ValueError, "at least 64", ExactArithmetic, 63),
)
def test_refusals(rows):
    check(rows)


def test_an_arithmetic_is_handed_the_function_itself_and_its_options():
    """What is derived from a text can be kept by it: no closure is made at each call."""

    class Watching(NumpyArithmetic):
        def evaluate(self, function, /, *operands, **options):
            seen.append((function, options))
            return super().evaluate(function, *operands, **options)

    seen = []
    ar = Watching(mcf.get_format("bfloat16"), Rounding())
    for _ in range(2):
        summation.sum_k(ar, (1.0, 2.0**-9, np.ones(3, "f4")), 3)
        expansion.renormalize(ar, (np.ones(3, "f4"), np.ones(3, "f4")))
    assert [options for _, options in seen[:2]] == [{"k": 3}, {}]
    assert seen[2:] == seen[:2]
