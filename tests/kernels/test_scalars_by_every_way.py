"""Real scalars enter the one text of each operation in the same way: eagerly, as calls, on many elements."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.meter import Meter
from mcfsim.backends.numpy import OPERATIONS, NumpyArithmetic
from mcfsim.compile.loops import Loop
from mcfsim.compile.recording import trace
from mcfsim.compile.scalars import uses
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.oracle.operands import corners

KINDS = [
    *map(
        get_format, ("posit8", "posit16", "int8", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float16")
    ),
    *map(get_format, ("float32", "float64", "float8_e8m0fnu")),
]
NUMBERS = [0.1, -0.1, 1.0, 0.0, -0.0, 3e38, -1e300, 1e-300, math.inf, math.nan, 10**400, Fraction(-1, 3)]
NUMBERS += [Fraction(1, 10**400)]
DEEP = [Format(precision=p, emin=emin, emax=emax) for p, emin, emax in [(8, -1022, 127), (24, -1000, 127)]]
DEEP += [Format(precision=8, emin=-1000, emax=1000), Format(precision=20, emin=-490, emax=480)]


def by_calls(text, fmt, rounding, *arrays):
    """Return the results of a text, carried out as one line by NumPy."""
    names = tuple(f"x{place}" for place, _ in enumerate(arrays))
    program = trace(text, fmt, rounding, operands=names, lines=False)
    filler = Loop(program).on_numpy([use.number({}) for use in uses(program)])
    out = [np.empty(arrays[0].size, dtype) for dtype in filler.results]
    assert filler(arrays, out)
    return out


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("fmt", KINDS, ids=str)
@pytest.mark.parametrize("name", ["neg", "abs", "sign", "round"])
def test_the_sign_of_a_number_changes_in_a_text(name, fmt, overflow, assert_same):
    rounding = Rounding(overflow=overflow)
    if fmt == get_format("float64") and overflow == "saturate":
        pytest.skip("sums of float64 are exact to nearest with infinities alone, and refused else")
    x = np.asarray(mcf.round_to([1.0, 2.0], fmt), carrier_of(fmt))
    for number in NUMBERS:

        def text(ar, x, number=number):
            changed = getattr(ar, name)(number)
            return changed, ar.add(x, changed)

        truth = OracleArithmetic(fmt, rounding)
        expected = np.array([truth.evaluate(text, y) for y in x.tolist()]).T
        assert_same(by_calls(text, fmt, rounding, x), expected)
        assert_same(NumpyArithmetic(fmt, rounding).evaluate(text, x), expected)


@pytest.mark.parametrize("mode", ["nearest_even", "down", "to_odd"])
@pytest.mark.parametrize("fmt", KINDS[3:8], ids=str)
def test_infinities_and_zeros_beside_far_numbers(fmt, mode, assert_same):
    ar, truth = mcf.arithmetic(fmt, mode, compiled=False), OracleArithmetic(fmt, Rounding(mode))
    values = np.asarray(mcf.round_to([3e38, -1.5, math.inf, -math.inf, 0.0, -0.0, math.nan], fmt, mode))
    values = values.astype(ar.carrier)
    for name, arity in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("fma", 3)):
        for far in (-1e300, 1e-300, 10**400, Fraction(-1, 10**400), math.inf, 0.0):
            for place in range(arity):
                arrays = list(np.meshgrid(*[values] * (arity - 1)))
                arrays = [x.reshape(-1) for x in arrays]
                operands = [*arrays[:place], far, *arrays[place:]]
                rows = zip(*map(np.ndarray.tolist, arrays), strict=True)
                expected = [getattr(truth, name)(*row[:place], far, *row[place:]) for row in rows]
                assert_same(getattr(ar, name)(*operands), expected, *arrays)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "fma"])
def test_long_numbers_beside_many_elements_are_as_beside_few(name, assert_same):
    others = (1.5,) if name == "fma" else ()
    for number, place in itertools.product((10**400, -(10**400), Fraction(1, 10**400), 2**60 + 1), range(2)):
        for fmt in ("bfloat16", "float8_e5m2", "posit8"):
            ar = mcf.arithmetic(fmt, compiled=False)
            x = np.asarray(ar.round(np.linspace(-3, 3, 7)), ar.carrier)
            many = np.resize(x, 5000)
            few, found = (
                getattr(ar, name)(*[y] * place, number, *[y] * (1 - place), *others) for y in (x, many)
            )
            assert_same(found, np.resize(few, 5000), many)


@pytest.mark.parametrize("fmt", DEEP, ids=str)
@pytest.mark.parametrize("name", ["mul", "div", "fma"])
@pytest.mark.parametrize("mode", DETERMINISTIC[:4])
def test_formats_with_deep_exponents_are_exact_or_refused_by_every_way(fmt, name, mode, assert_same):
    rounding, carrier, rng = Rounding(mode), carrier_of(fmt), np.random.default_rng(3)
    truth, arity = OracleArithmetic(fmt, rounding), 3 if name == "fma" else 2
    # Near the smallest values, where parts of products leave binary64 first.
    quanta = rng.integers(1, 2**fmt.precision, (arity - 1, 200)) * rng.choice([-1.0, 1.0], (arity - 1, 200))
    tiny = np.ldexp(quanta, fmt.emin - fmt.precision + 1 + rng.integers(0, 4, quanta.shape))
    arrays = [np.concatenate([x, rng.permutation(corners(fmt))]).astype(carrier) for x in tiny]
    for number in (0.1, 0.999, 1.0, -3.0, 2.0**-700, 1e300, 1.0 + 2.0**-30):
        for place in range(arity):

            def text(ar, *operands, place=place, number=number):
                return getattr(ar, name)(*operands[:place], number, *operands[place:])

            rows = zip(*map(np.ndarray.tolist, arrays), strict=True)
            expected = [text(truth, *row) for row in rows]
            for way in (by_calls, _eagerly):
                try:
                    found = way(text, fmt, rounding, *arrays)
                except UnsupportedFormatError:
                    continue
                assert_same(np.asarray(found).reshape(-1), expected, *arrays)


def _eagerly(text, fmt, rounding, *arrays):
    return NumpyArithmetic(fmt, rounding).evaluate(text, *arrays)


@pytest.mark.parametrize("size", [1, 3, 2**17 + 1])
def test_a_result_of_a_second_format_stays_as_it_is(size):
    """Of arrays, and of numbers alone: .30078125 is no value of e4m3fn."""

    def text(ar, x):
        other = ar.like(get_format("bfloat16"), Rounding())
        return other.add(0.1, 0.2), other.mul(other.round(x), 0.3), ar.add(0.1, 0.2), 0.3

    fmt, expected = get_format("float8_e4m3fn"), [0.30078125, 0.30078125, 0.3125, 0.3125]
    ar = mcf.arithmetic(fmt, compiled=False)
    for arithmetic in (ar, Meter(ar)):
        found = arithmetic.evaluate(text, np.ones(size, np.float32))
        assert [np.unique(x).tolist() for x in found] == [[x] for x in expected]
        assert list(arithmetic.evaluate(text, 1.0)) == expected
    assert list(OracleArithmetic(fmt).evaluate(text, 1.0)) == expected
    assert [
        x[0] for x in by_calls(lambda ar, x: text(ar, x)[:3], fmt, Rounding(), np.ones(2, "f4"))
    ] == expected[:3]


def test_a_result_of_another_carrier_is_refused():
    def text(ar, x):
        other = ar.like(get_format("float64"), Rounding())
        return other.add(other.round(x), 0.1)

    for compiled in (False, None):
        with pytest.raises(ValueError, match="another carrier"):
            mcf.arithmetic("bfloat16", compiled=compiled).evaluate(text, np.ones(3, np.float32))


def test_values_of_another_carrier_are_refused():
    def text(ar, x):
        other = ar.like(get_format("float64"), Rounding())
        return ar.add(other.round(x), x)

    with pytest.raises(ValueError, match="round brings values of other formats over"):
        mcf.arithmetic("bfloat16", compiled=False).evaluate(text, np.ones(3, np.float32))


def test_every_operation_of_the_protocol_has_its_line():
    ar = NumpyArithmetic(get_format("bfloat16"), Rounding())
    assert set(OPERATIONS) == {"add", "sub", "mul", "div", "sqrt", "fma", "neg", "abs", "sign"}
    for name in OPERATIONS:
        getattr(ar, name)(*[np.ones(2, np.float32)] * (3 if name == "fma" else 1 if name in _OF_ONE else 2))
        assert (
            name,
            (False,) * (3 if name == "fma" else 1 if name in _OF_ONE else 2),
        ) in ar.blocks._operations


_OF_ONE = ("sqrt", "neg", "abs", "sign")


@pytest.mark.parametrize("underflow", ["gradual", "flush_inputs"])
@pytest.mark.parametrize("fmt", ["binary8p3se", "binary8p3ue", "binary6p3ue", "float8_e4m3fnuz", "bfloat16"])
def test_a_zero_is_that_of_the_format(fmt, underflow, assert_same):
    fmt, rounding = get_format(fmt), Rounding(underflow=underflow)
    x = np.asarray(mcf.round_to([1.0, 2.0, 0.0], fmt), carrier_of(fmt))
    for number in (-0.0, 0.0, -(2.0**-200)):  # the last is none of the formats'

        def text(ar, x, number=number):
            return ar.div(x, number), ar.mul(x, number), ar.add(x, number)

        truth = OracleArithmetic(fmt, rounding)
        expected = np.array([truth.evaluate(text, y) for y in x.tolist()]).T
        assert_same(by_calls(text, fmt, rounding, x), expected)
        assert_same(NumpyArithmetic(fmt, rounding, compiled=False).evaluate(text, x), expected)
