"""The backends beside the emulator: native types, exact arithmetic, the meter, and the factory."""

import copy
import math
import pickle
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.exact import ExactArithmetic
from mcfsim.backends.meter import Meter
from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.codec import all_values
from mcfsim.formats import FORMATS, Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.native import NativeArithmetic, native_dtype
from mcfsim.multiword import expansion, summation
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.oracle.operands import SMALL_FORMATS, label, random_tuples, values

BINARY = ["add", "sub", "mul", "div"]


# -- native -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "tf32"])
def test_the_native_dtype_is_the_formats(name):
    dtype = native_dtype(FORMATS[name])
    assert dtype == getattr(ml_dtypes, name, None) or dtype == np.dtype(name)
    assert NativeArithmetic(dtype).format == FORMATS[name]


def test_a_format_is_native_whatever_its_name():
    assert native_dtype(Format("bfloat16", precision=8, emin=-126, emax=127)) == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    "fmt",
    [
        FORMATS["tf32"],
        Format("bfloat16", precision=9, emin=-126, emax=127),
        Format(precision=8, emin=-9, emax=9),
    ],
)
def test_a_format_that_no_library_has_is_refused(fmt):
    with pytest.raises(UnsupportedFormatError, match="no dtype of NumPy or ml_dtypes holds"):
        native_dtype(fmt)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("fmt", [fmt for fmt in SMALL_FORMATS if fmt.has_nan], ids=label)
def test_all_pairs_give_the_bits_of_ml_dtypes(fmt, name, assert_same):
    native = mcf.arithmetic(fmt, backend="native")
    x = values(fmt)
    with np.errstate(all="ignore"):
        a, b = x[:, None].astype(native.dtype), x[None, :].astype(native.dtype)
        expected = getattr(native, name)(a, b).astype(np.float64)
    assert_same(getattr(mcf.arithmetic(fmt), name)(x[:, None], x[None, :]), expected, x[:, None], x[None, :])


@pytest.mark.parametrize("name", [*BINARY, "sqrt"])
@pytest.mark.parametrize("format_name", ["bfloat16", "float16", "float32"])
def test_random_operands_give_the_bits_of_the_library(format_name, name, assert_same):
    fmt = FORMATS[format_name]
    native, ours = mcf.arithmetic(fmt, backend="native"), mcf.arithmetic(fmt)
    operands = random_tuples(fmt, 2**18, 1 if name == "sqrt" else 2, seed=1)
    with np.errstate(all="ignore"):
        expected = getattr(native, name)(*(x.astype(native.dtype) for x in operands)).astype(np.float64)
    assert_same(getattr(ours, name)(*operands), expected, *operands)


def test_native_signs_magnitudes_and_casts(assert_same):
    native = mcf.arithmetic("bf16", backend="native")
    x = values(FORMATS["bfloat16"]).astype(np.float32)
    assert_same(native.neg(native.round(x)).astype(np.float32), -x)
    assert_same(native.abs(native.round(x)).astype(np.float32), np.abs(x))
    assert native.round(1.01).dtype == ml_dtypes.bfloat16


def test_native_python_numbers_are_converted_first():
    native = mcf.arithmetic("bf16", backend="native")
    three = native.round(np.float32([3]))
    assert native.scalars == "rounded"
    assert native.mul(three, 1.004) == 3.03125  # 3 * 1.0078125 lies half-way


def test_native_has_no_fused_multiply_add():
    native = mcf.arithmetic("fp16", backend="native")
    with pytest.raises(UnsupportedFormatError, match="fma in native float16"):
        native.fma(np.float16(1), np.float16(1), np.float16(1))
    with pytest.raises(UnsupportedFormatError, match="fma in native float16"):
        mcf.two_prod_fma(native, np.float16(1), np.float16(1))


def test_a_native_product_and_sum_of_two_roundings_must_be_asked_for():
    twice = mcf.arithmetic("fp16", backend="native", fused=False)
    x = np.float16(1 + 2.0**-9)
    assert twice.fma(x, x, np.float16(-1)) == 2.0**-8  # the square's last bit is lost
    assert mcf.arithmetic("fp16").fma(float(x), float(x), -1.0) == 2.0**-8 + 2.0**-18


# -- exact ------------------------------------------------------------------------------------------------
def test_exact_operations_lose_nothing_that_fits():
    exact = mcf.arithmetic(None, backend="exact")
    a, b = 1 + 2.0**-50, 1 - 2.0**-52
    as_fraction = mcf.expansion.to_fraction
    assert as_fraction(exact.add(a, 2.0**-300)) == Fraction(a) + Fraction(2) ** -300
    assert as_fraction(exact.sub(a, b)) == Fraction(a) - Fraction(b)
    assert as_fraction(exact.mul(a, b)) == Fraction(a) * Fraction(b)
    assert as_fraction(exact.fma(a, b, 2.0**-200)) == Fraction(a) * Fraction(b) + Fraction(2) ** -200
    assert as_fraction(exact.neg(a)) == -Fraction(a)
    assert as_fraction(exact.abs(exact.neg(a))) == Fraction(a)
    assert as_fraction(exact.sqrt(exact.mul(a, a))) == Fraction(a)
    assert exact.format is None


@pytest.mark.parametrize("precision", [64, 113, 400])
def test_exact_quotients_and_roots_have_the_precision_asked_for(precision):
    exact = ExactArithmetic(precision)
    third = mcf.expansion.to_fraction(exact.div(1, 3))
    assert 0 < abs(third - Fraction(1, 3)) <= Fraction(1, 2 ** (precision + 1)) / 2
    root = mcf.expansion.to_fraction(exact.sqrt(2))
    step = Fraction(1, 2**precision)
    assert (root - step) ** 2 < 2 < (root + step) ** 2


def test_exact_numbers_do_not_overflow():
    exact = mcf.arithmetic(None, backend="exact")
    assert exact.mul(1e300, 1e300) > 1e308
    assert mcf.expansion.to_fraction(exact.mul(2.0**-1000, 2.0**-1000)) == Fraction(2) ** -2000


def test_exact_arithmetic_takes_arrays_and_numbers_of_every_kind():
    exact = mcf.arithmetic(None, backend="exact")
    total = exact.add(np.float32([[1, 2], [3, 4]]), np.array([10, 20]))
    assert total.tolist() == [[11, 22], [13, 24]]
    assert exact.mul(np.array([1.5], ml_dtypes.bfloat16), Fraction(1, 2))[0] == 0.75
    assert exact.sqrt(np.array([4.0, 9.0])).tolist() == [2, 3]
    with mpmath.workprec(500):
        assert exact.round(mpmath.mpf(2) ** -450 + 1) == 1


def test_exact_arithmetic_raises_where_there_is_no_real_result():
    exact = mcf.arithmetic(None, backend="exact")
    with pytest.raises(ZeroDivisionError):
        exact.div(1, 0)
    with pytest.raises(ValueError, match="square root of the negative"):
        exact.sqrt(-1)


def test_exact_arithmetic_of_less_than_64_bits_is_refused():
    with pytest.raises(ValueError, match="at least 64"):
        ExactArithmetic(63)


def test_two_exact_arithmetics_do_not_share_their_precision():
    short, long = ExactArithmetic(64), ExactArithmetic(1000)
    assert short.div(1, 3) != long.div(1, 3)
    assert ExactArithmetic(64).div(1, 3) == short.div(1, 3)


# -- meter ------------------------------------------------------------------------------------------------
#: Operations of each text: Knuth, Dekker, Veltkamp; Joldes, Muller, Popescu 2017, Algorithms 4, 6, 9, 11.
COSTS = {
    "two_sum": (lambda ar: mcf.two_sum(ar, 1.0, 2.0), 6),
    "fast_two_sum": (lambda ar: mcf.fast_two_sum(ar, 2.0, 1.0), 3),
    "split": (lambda ar: mcf.split(ar, 1.0), 4),
    "two_prod": (lambda ar: mcf.two_prod(ar, 1.0, 2.0), 17),
    "two_prod_fma": (lambda ar: mcf.two_prod_fma(ar, 1.0, 2.0), 2),
    "grow": (lambda ar: mcf.grow(ar, (1.0, 0.0), 2.0), 10),
    "ordered grow": (lambda ar: mcf.grow(ar, (1.0, 0.0), 2.0, ordered=True), 7),
    "add": (lambda ar: mcf.expansion_add(ar, (1.0, 0.0), (1.0, 0.0)), 20),
    "scale": (lambda ar: mcf.expansion_scale(ar, (1.0, 0.0), 2.0), 6),
    "mul": (lambda ar: mcf.expansion_mul(ar, (1.0, 0.0), (1.0, 0.0)), 8),
    "renormalize 2": (lambda ar: mcf.renormalize(ar, (1.0, 0.0)), 6),
}


@pytest.mark.parametrize("name", COSTS)
def test_every_text_costs_what_the_literature_says(name):
    run, cost = COSTS[name]
    meter = Meter(mcf.arithmetic("bf16"))
    run(meter)
    assert len([operation for operation in meter.trace if operation != "neg"]) == cost
    assert sum(tally.calls for tally in meter.tallies.values()) == len(meter.trace)


def test_the_meter_counts_calls_and_elements_and_changes_no_result(assert_same):
    a, b = random_tuples(FORMATS["bfloat16"], 100_000, 2, seed=2)
    meter = Meter(mcf.arithmetic("bf16"))
    for watched, plain in zip(mcf.two_sum(meter, a, b), mcf.two_sum(meter.arithmetic, a, b), strict=True):
        assert_same(watched, plain, a, b)
    assert meter.trace == ["add", "sub", "sub", "sub", "sub", "add"]
    assert (meter.tallies["add"].calls, meter.tallies["add"].elements) == (2, 200_000)
    assert (meter.tallies["sub"].calls, meter.tallies["sub"].elements) == (4, 400_000)
    assert meter.format == FORMATS["bfloat16"]


def test_the_meter_counts_inexact_and_lost_additions():
    meter = Meter(mcf.arithmetic("bf16"))
    meter.add(np.float32([1, 1, 1, 1, 0]), np.float32([1, 2**-8, 2**-9, 3, 2**-9]))  # 2nd and 3rd are lost
    meter.add(
        np.float32([2**-9, 1 + 2**-7]), np.float32([1, 2**-8])
    )  # the 1st, the other way round; the 2nd moves
    tally = meter.tallies["add"]
    assert (tally.calls, tally.elements, tally.inexact, tally.lost) == (2, 7, 4, 3)


def test_the_meter_sees_what_is_lost_beyond_binary64():
    meter = Meter(mcf.arithmetic("bf16"))
    meter.add(np.float32([1.0]), np.float32([2.0**-100]))
    assert (meter.tallies["add"].inexact, meter.tallies["add"].lost) == (1, 1)


def test_the_meter_reports_the_largest_relative_error_in_units_of_u():
    meter = Meter(mcf.arithmetic("bf16"))
    meter.mul(np.float32([1.0078125, 2]), np.float32([1.0078125, 2]))  # (1 + 2u)**2 loses 4 u**2
    assert meter.tallies["mul"].max_error == pytest.approx(4 * 2.0**-8 / (1 + 2.0**-7) ** 2, rel=1e-12)
    assert meter.tallies["mul"].inexact == 1
    worst = Meter(mcf.arithmetic("bf16"))
    worst.add(*random_tuples(FORMATS["bfloat16"], 10_000, 2, seed=3))
    assert 0.5 < worst.tallies["add"].max_error <= 1


def test_quotients_and_roots_are_inexact_where_they_are_no_values():
    meter = Meter(mcf.arithmetic("bf16"))
    meter.div(np.float32([1, 1, 6]), np.float32([3, 4, 2]))
    meter.sqrt(np.float32([2, 4, 9]))
    meter.fma(np.float32([1, 1]), np.float32([1, 1]), np.float32([1, 2**-9]))
    meter.round(np.array([0.1, 0.5]))
    assert [meter.tallies[name].inexact for name in ("div", "sqrt", "fma", "round")] == [1, 1, 1, 1]


# What each measure means beside infinities and zeros.
def test_an_overflow_is_inexact_and_what_follows_it_is_not_lost():
    meter = Meter(mcf.arithmetic("fp16"))
    meter.add(np.float32([65504.0]), np.float32([65504.0]))
    tally = meter.tallies["add"]
    assert (tally.inexact, tally.overflow, tally.lost, tally.max_error) == (1, 1, 0, 0.0)
    meter.add(np.float32([np.inf, np.inf, np.nan, 1.0]), np.float32([1.0, -np.inf, 1.0, -np.inf]))
    assert (tally.elements, tally.inexact, tally.overflow, tally.lost) == (5, 1, 1, 0)


def test_an_underflow_to_zero_is_counted_and_is_no_relative_error():
    meter = Meter(mcf.arithmetic("bf16"))
    meter.mul(np.float32([2.0**-100]), np.float32([2.0**-100]))
    tally = meter.tallies["mul"]
    assert (tally.inexact, tally.underflow, tally.overflow, tally.max_error) == (1, 1, 0, 0.0)


def test_a_zero_divisor_and_a_root_of_less_than_zero_are_not_judged():
    meter = Meter(mcf.arithmetic("e4m3fn"))
    meter.div(np.float32([1.0, 0.0]), np.float32([0.0, 0.0]))
    meter.sqrt(np.float32([-1.0]))
    assert [meter.tallies[name].inexact for name in ("div", "sqrt")] == [0, 0]
    assert [meter.tallies[name].overflow for name in ("div", "sqrt")] == [0, 0]


EXACTLY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
    "neg": lambda a: -a,
    "abs": abs,
    "round": lambda a: a,
}


def tally_by_definition(name, fmt, operands, results):
    """Count in fractions, one element after the other, what `Tally` says of its fields."""
    found = dict.fromkeys(("inexact", "overflow", "underflow", "lost", "max_error"), 0)
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
@pytest.mark.sampled(4)
@pytest.mark.slow
def test_the_meter_counts_by_the_definition(name, policy):
    """On operands of all kinds, with infinities, zeros, over- and underflows, and on scalars of any kind."""
    arity = 3 if name == "fma" else 1 if name in ("neg", "abs", "round") else 2
    for fmt in map(
        mcf.get_format, ("float8_e5m2", "float8_e4m3fn", "bfloat16", "int8", "posit8", "binary8p4uf")
    ):
        for mode in DETERMINISTIC:
            ar = mcf.arithmetic(fmt, mode, policy)
            rng = np.random.default_rng(1)
            drawn = rng.choice(all_values(fmt) if fmt.bits <= 8 else corner_values(fmt), (arity, 60))
            operands = [x.astype(ar.carrier) for x in drawn]
            if name == "round":
                operands = [drawn[0].astype(np.float64) * 1.37]
            meter = Meter(ar)
            results = getattr(meter, name)(*operands)
            expected = tally_by_definition(name, fmt, [x.tolist() for x in operands], results.tolist())
            if name == "add":  # and with a scalar that binary64 does not hold
                second = meter.add(operands[0], Fraction(1, 3))
                rows = [operands[0].tolist(), [Fraction(1, 3)] * 60]
                more = tally_by_definition(name, fmt, rows, second.tolist())
                joined = {key: expected[key] + more[key] for key in expected}
                expected = {**joined, "max_error": max(expected["max_error"], more["max_error"])}
            tally = meter.tallies[name]
            for key in ("inexact", "overflow", "underflow", "lost"):
                assert getattr(tally, key) == expected[key], (fmt, mode, key)
            assert tally.max_error == pytest.approx(float(expected["max_error"]), rel=1e-12, abs=0)


def corner_values(fmt):
    return np.concatenate([values(fmt)[::97], [np.inf, -np.inf, np.nan, 0.0, -0.0]])


def test_the_meter_takes_long_integers_as_they_are():
    meter = Meter(mcf.arithmetic("bf16"))
    meter.round(np.array([2**60 + 1, 2**60, 3], dtype=np.int64))
    assert meter.tallies["round"].inexact == 1
    meter.add(2**60 + 1, -(2**60))
    assert (meter.tallies["add"].inexact, meter.tallies["add"].lost) == (0, 0)


def test_the_meter_watches_every_arithmetic():
    for ar in (mcf.arithmetic("fp16", backend="native"), mcf.arithmetic(None, backend="exact")):
        meter = Meter(ar)
        mcf.two_sum(meter, np.float16([1.0]), np.float16([2.0]))
        assert len(meter.trace) == 6


def test_the_meter_draws_for_a_block_of_a_step_as_the_arithmetic_does(assert_same):
    words = mcf.RandomWords(5)
    ar = mcf.arithmetic("bf16", "stochastic", random=words)
    meter = Meter(mcf.arithmetic("bf16", "stochastic", random=words))
    watched, plain = meter.on_block(step=3, start=100), ar.on_block(step=3, start=100)
    x = np.linspace(1, 2, 129, dtype=np.float32)
    assert_same(watched.add(watched.round(x), 2.0**-9), plain.add(plain.round(x), 2.0**-9))
    assert meter.trace == ["round", "add"]
    assert meter.tallies["add"].elements == 129


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_meter_is_copied_with_what_it_counted(copied):
    meter = Meter(mcf.arithmetic("bf16"))
    meter.add(256.0, 1.0)
    again = copied(meter)
    assert (again.tallies, again.trace, again.format) == (meter.tallies, meter.trace, meter.format)
    assert again.add(1.0, 1.0) == 2.0


# -- factory ----------------------------------------------------------------------------------------------
def test_the_factory_gives_what_is_asked_for():
    ar = mcf.arithmetic("e4m3fn", "toward_zero", "saturate", scalars="rounded", threads=2)
    assert isinstance(ar, NumpyArithmetic)
    assert (ar.format, ar.rounding) == (FORMATS["float8_e4m3fn"], Rounding("toward_zero", "saturate"))
    assert (ar.scalars, ar.threads, ar.carrier) == ("rounded", 2, np.float32)
    assert isinstance(mcf.arithmetic("fp16", backend="native"), NativeArithmetic)
    assert mcf.arithmetic(None, backend="exact", precision=77).precision == 77
    assert mcf.arithmetic("bf16", Rounding("up")).rounding == Rounding("up")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("bf16",), {"backend": "abacus"}, "unknown backend 'abacus'; allowed: numpy, .*native, exact"),
        (("bf61",), {}, "unknown format 'bf61'.*did you mean"),
        ((None,), {}, "backend 'numpy' needs a format"),
        (("bf16", "nearest"), {}, "unknown rounding 'nearest'"),
        (("bf16", "up", "wrap"), {}, "unknown overflow 'wrap'"),
        (("tf32",), {"backend": "native"}, "no dtype of NumPy or ml_dtypes"),
    ],
)
def test_the_factory_names_what_it_cannot_give(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        mcf.arithmetic(*arguments, **options)


@pytest.mark.parametrize(
    "rounding", [*(mode for mode in DETERMINISTIC if mode != "nearest_even"), "saturate"]
)
def test_native_arithmetic_in_any_other_rounding_is_refused(rounding):
    policy = ("nearest_even", "saturate") if rounding == "saturate" else (rounding,)
    with pytest.raises(ValueError, match="native arithmetic rounds to nearest even, over- and"):
        mcf.arithmetic("bf16", *policy, backend="native")


def test_formats_wider_than_float64_are_refused_with_a_way_out():
    with pytest.raises(UnsupportedFormatError, match="use backend='exact'"):
        mcf.arithmetic(Format(precision=113, emin=-16382, emax=16383))


def test_exact_arithmetic_is_where_a_sum_in_any_format_comes_from():
    exact = mcf.arithmetic(None, backend="exact")
    s, e = mcf.two_sum(exact, 1.0, 2.0**-1000)
    assert mcf.expansion.to_fraction(s) == 1  # 1000 bits apart: more than the 400 it carries
    assert math.isclose(float(e), 2.0**-1000, rel_tol=0)


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
