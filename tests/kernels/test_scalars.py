"""Real scalars of every kind enter every operation exactly: alone, beside arrays, and in a text."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.numpy import OPERATIONS, NumpyArithmetic
from mcfsim.compile.loops import Loop
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format, Grid, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.multiword import double_word, expansion, summation
from mcfsim.oracle import OracleArithmetic, round_fraction, same
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.oracle.operands import FLUSHING, corners, label
from tests.shared.formats import roundings

NAMES = "bfloat16 float16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz tf32 float32 float64"
OTHERS = "posit8 posit16 int8 ternary binary8p4uf binary8p3se binary6p3ue float8_e8m0fnu"
FORMATS = [
    *map(get_format, f"{NAMES} {OTHERS}".split()),
    Grid(low=-2, high=7, fraction_bits=1),
    Format("float_u4", precision=3, emin=0, emax=2, specials="none", signed=False),
]
#: Parts of products of their smallest values leave binary64 first.
DEEP = [
    Format(precision=p, emin=emin, emax=emax)
    for p, emin, emax in [(8, -1022, 127), (24, -1000, 127), (8, -1000, 1000), (20, -490, 480)]
]
ARITY = dict.fromkeys(("add", "sub", "mul", "div"), 2) | {"fma": 3}
ARITY |= dict.fromkeys(("sqrt", "neg", "abs", "sign", "round"), 1)
NOT_FINITE = [math.inf, -math.inf, math.nan, Decimal("-Infinity"), Decimal("NaN"), Decimal("sNaN")]
NOT_FINITE += [mpmath.mpf("inf"), mpmath.mpf("nan")]
ZEROS = [0, 0.0, -0.0, Fraction(0), Decimal("-0"), mpmath.mpf(0)]
FAR = [1e300, 1e-300, -(2.0**-1074), 10**400, Fraction(-1, 10**400), math.inf]
SOME_ROUNDINGS = [
    *map(Rounding, ("nearest_even", "down", "to_odd")),
    *(Rounding(overflow="saturate"), Rounding(underflow="flush_inputs")),
]


def kinds(x):
    """Return a rational number as every kind of Python number that is just this."""
    found = [x]
    if x.denominator == 1:
        found.append(int(x))
    if x.denominator & (x.denominator - 1) == 0:
        with mpmath.workprec(x.numerator.bit_length() + 1):
            found.append(mpmath.mpf(x.numerator) / x.denominator)
        if abs(x) < 2**1000 and Fraction(float(x)) == x:
            found.append(float(x))
    return found


def reals(fmt, rng, count):
    """Return numbers that are hard to take exactly: beside values and ties, far out, and any."""
    found = []
    for _ in range(count):
        size = float(abs(rng.normal()) * 2.0 ** rng.integers(-9, 9))
        near = Fraction(mcf.round_to(size, fmt, "toward_zero")) * int(rng.choice([-1, 1]))
        tiny = Fraction(int(rng.integers(-1, 2)), 3 ** int(rng.integers(1, 80)))
        half = near * Fraction(1, 2 ** (fmt.precision + 1))
        far = Fraction(2) ** int(rng.integers(-1300, 1300))
        any_one = Fraction(int(rng.integers(-(10**9), 10**9)), int(rng.integers(1, 10**6)))
        found += [near + tiny, near + half + tiny, near * far, any_one * far, any_one]
    found += [*map(Fraction, (10**400, -(2**54) - 1, 2**60 + 2**52 + 1, 300)), Fraction(-1, 10**400)]
    return [x for x in found if x]


def agree(found, expected):
    return same(np.asarray(found, np.float64), np.full(np.shape(found), expected)).all()


def by_calls(text, fmt, rounding, *arrays):
    """Return the results of a text, carried out as one line by NumPy."""
    names = tuple(f"x{place}" for place, _ in enumerate(arrays))
    program = trace(text, fmt, rounding, operands=names, lines=False)
    bound_loop = Loop(program).on_numpy(program.reals())
    out = [np.empty(arrays[0].size, dtype) for dtype in bound_loop.results]
    assert bound_loop(arrays, out)
    return out


def eagerly(text, fmt, rounding, *arrays):
    return NumpyArithmetic(fmt, rounding, compiled=False).evaluate(text, *arrays)


# -- every operation, every kind of number ----------------------------------------------------------------
@pytest.mark.parametrize(("fmt", "rounding"), [(x, r) for x in FORMATS for r in roundings(x)], ids=label)
@pytest.mark.sampled(208, each=False)
@pytest.mark.slow
def test_numbers_alone_are_rounded_once(fmt, rounding):
    """Of every kind, in every operation and in a text of one; they come out as floats."""
    try:
        ar, truth = mcf.arithmetic(fmt, rounding), OracleArithmetic(fmt, rounding)
    except UnsupportedFormatError:
        assert fmt in (get_format("float64"), get_format("float8_e8m0fnu"))
        return
    rng = np.random.default_rng(1)
    every = [*reals(fmt, rng, 1), *NOT_FINITE, *ZEROS]
    for name, arity in ARITY.items():
        rows = [[x] for x in every] if arity == 1 else rng.choice(np.array(every, object), (6, arity))
        for row in rows:
            try:
                expected = getattr(truth, name)(*row)
                ways = [kinds(x) if isinstance(x, Fraction) else [x] for x in row]
                for entered in zip(*ways, strict=False):
                    found = getattr(ar, name)(*entered)
                    assert type(found) is float
                    assert agree(found, expected), (name, entered, found, expected)
                in_text = ar.evaluate(lambda inner, *xs, name=name: getattr(inner, name)(*xs), *entered)
                assert agree(in_text, expected), (name, entered, in_text, expected)
            except UnsupportedFormatError:
                assert fmt == get_format("float64")


# Operations with real scalars, as fractions, beside values of the format, as floats.
def beside_ties(fmt, rng):
    """Yield those in which a double brings the result beside a value or a tie."""
    p = fmt.precision

    def number():
        exponent = int(rng.integers(max(fmt.emin, -20), min(fmt.emax, 20)))
        return float(rng.integers(2 ** (p - 1), 2**p)) * rng.choice([-1, 1]) * 2.0 ** (exponent - p + 1)

    places = [(name, place) for name, arity in ARITY.items() for place in range(arity) if arity > 1]
    for name, place in places * 9:
        others = [number() for _ in range(ARITY[name] - 1)]
        half = Fraction(2) ** int(rng.integers(max(fmt.emin, -12) - 2, min(fmt.emax, 12)) - p)
        t, x, y = int(rng.integers(2**p, 2 ** (p + 1))) * half, Fraction(others[0]), Fraction(others[-1])
        scalar = {
            "add": lambda t, x, y: t - x,
            "sub": lambda t, x, y, place=place: x - t if place else t + x,
            "mul": lambda t, x, y: t / x,
            "div": lambda t, x, y, place=place: x / t if place else t * x,
            "fma": lambda t, x, y, place=place: t - x * y if place == 2 else (t - y) / x,
        }[name](t, x, y)
        toward = rng.choice([float(scalar), -np.inf, np.inf])
        yield name, *others[:place], Fraction(float(np.nextafter(float(scalar), toward))), *others[place:]


def cancelling(fmt, rng):
    """Yield those that cancel: the rest lies far beyond 53 bits, or is what a product of 53 bits by p has."""
    near = OracleArithmetic(fmt)
    for rest in (Fraction(1, 3 * 2**90), Fraction(-1, 7 * 2**200), Fraction(0)):
        a, b = (near.round(float(rng.normal())) for _ in range(2))
        yield "add", a, rest - Fraction(a)
        yield "sub", a, Fraction(a) + rest
        yield "fma", a, b, rest - Fraction(a) * Fraction(b)
    for real in map(Fraction, rng.standard_normal(12).tolist()):
        yield "fma", real, b, -near.mul(real, b)
        yield "fma", b, real, -near.mul(real, b)


def cancelling_twice(fmt, rng):
    """Yield products of 54 bits, and as addend exactly their distance from a value or a tie, of 53.

    Rounded to binary64 by itself the product puts the sum beside the target, on either side.
    """
    p = fmt.precision
    for i in range(60):
        target = int(rng.integers(2**p, 2 ** (p + 1))) << (52 - p - i % 30)
        x = int(rng.integers(2 ** (p - 2), 2 ** (p - 1))) * 2 + 1
        factor = (2**53 // x + 1 + int(rng.integers(0, target // (2 * x)))) | 1
        assert 2**53 < factor * x < 2**53 + target
        addend = Fraction(target - factor * x, 2 ** (49 + p))
        yield "fma", x * 2.0 ** (1 - p), Fraction(factor, 2**50), addend


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize(
    ("rows", "fmt"),
    [
        *itertools.product((beside_ties, cancelling, cancelling_twice), FORMATS[:6]),
        *((cancelling, fmt) for fmt in FORMATS[8:11]),
    ],
    ids=label,
)
@pytest.mark.sampled(32, each=False)
def test_scalars_that_decide_a_result_enter_exactly(rows, fmt, mode):
    ar, truth = mcf.arithmetic(fmt, mode), OracleArithmetic(fmt, Rounding(mode))
    for name, *operands in rows(fmt, np.random.default_rng(5)):
        given = [
            np.array([x], ar.carrier) if isinstance(x, float) else float(x) if Fraction(float(x)) == x else x
            for x in operands
        ]
        found, expected = getattr(ar, name)(*given), getattr(truth, name)(*operands)
        assert agree(found, expected), (name, given, found, expected)


@pytest.mark.parametrize(
    ("name", "fmt", "rounding"),
    [
        (name, fmt, SOME_ROUNDINGS[(i + j) % (5 if type(fmt) is Format else 4)])
        for i, name in enumerate(ARITY)
        for j, fmt in enumerate([*FORMATS, *DEEP])
    ],
    ids=label,
)
@pytest.mark.sampled(104, each=False)
@pytest.mark.slow
def test_numbers_beside_arrays_are_exact_or_refused_by_every_way(name, fmt, rounding, assert_same):
    """In every place of an operation, many in one text."""
    carrier, truth, rng = carrier_of(fmt), OracleArithmetic(fmt, rounding), np.random.default_rng(3)
    arity, deep = ARITY[name], fmt in DEEP
    if type(fmt) is Format:
        quanta = rng.integers(1, 2**fmt.precision, (2, 10)) * rng.choice([-1.0, 1.0], (2, 10))
        tiny = np.ldexp(quanta, fmt.emin - fmt.precision + 1 + rng.integers(0, 4, quanta.shape))
        some = np.append(rng.permutation(corners(fmt))[:14], [np.nan, np.inf])
        drawn = [np.concatenate([x, rng.permutation(some)]) for x in tiny]
    else:
        drawn = [np.append(rng.normal(size=16) * 4, [1, np.nan, 0, 0]), rng.normal(size=20)]
    x, y = (np.asarray(mcf.round_to(z, fmt), carrier) for z in drawn)
    usual, near = [0.1, 0.999, -3.0, 1.0 + 2.0**-30, 0.0, -0.0, -(2.0**-200)], reals(fmt, rng, 1)[:5]
    # Of those that are deep in the range one by one, as each may be refused.
    groups = [[n] for n in (0.1, -3.0, 2.0**-700, 1e300)] if deep else [usual, near, FAR]
    for numbers in [[*itertools.chain(*groups)]] if arity == 1 else groups:

        def text(ar, x, y, numbers=numbers):
            if arity == 1:
                return tuple(ar.add(x, getattr(ar, name)(n)) for n in numbers)
            return tuple(
                getattr(ar, name)(*(x, y)[:place], n, *(x, y)[place : arity - 1])
                for n in numbers
                for place in range(arity)
            )

        expected = None
        for way in (by_calls, eagerly):
            size = 5000 if way is eagerly and numbers is usual else x.size  # where stand-ins are looked for
            operands = [np.resize(z, size) for z in (x, y)]
            try:
                found = way(text, fmt, rounding, *operands)
            except UnsupportedFormatError:
                assert deep or fmt.precision > 23 or (way is by_calls and numbers is not usual)
                continue
            if expected is None:
                expected = np.array([text(truth, *row) for row in zip(x.tolist(), y.tolist(), strict=True)])
            for result, column in zip(found, expected.T, strict=True):
                assert result.dtype == carrier
                assert_same(result, np.resize(column, size), *operands)


def test_signs_of_reals_in_the_other_backends():
    ar = mcf.arithmetic("bfloat16", backend="native")
    exact, to_fraction = mcf.arithmetic(None, backend="exact", precision=100), mcf.expansion.to_fraction
    for x in (Fraction(1, 3), Fraction(2**100 + 1, 7), Fraction(-(10**50), 10**49 + 1)):
        scale = Fraction(2) ** (99 - math.floor(math.log2(abs(x))))
        for name, result in (("neg", -x), ("abs", abs(x)), ("round", x)):
            assert agree(getattr(ar, name)(x), round_fraction(result, FORMATS[0]))
            assert to_fraction(getattr(exact, name)(x)) == Fraction(round(result * scale)) / scale


@pytest.mark.slow
def test_stochastic_rounding_draws_for_a_sign_by_its_stream():
    rounding = Rounding("stochastic", random_bits=16)
    ar = mcf.arithmetic("bfloat16", rounding, random=mcf.RandomWords(5, stream=3))
    drawn = set()
    for place in range(200):
        name, x = ("neg", 0.1) if place % 2 else ("abs", Fraction(-1, 3))
        word = int(mcf.RandomWords(5, stream=3).of(place).words(0, 1, 16)[0])
        exact = abs(Fraction(x)) * 2 ** (11 if name == "neg" else 9)  # in quanta
        up = math.floor(exact % 1 * 2**16) + word >= 2**16
        expected = Fraction(math.floor(exact) + up, 2 ** (11 if name == "neg" else 9))
        found = getattr(ar, name)(x)
        assert found == (-expected if name == "neg" else expected)
        drawn.add(found)
    assert len(drawn) == 4
    assert ar.neg(1.5) == -1.5
    assert ar.random.operation == 200  # a value of the format takes none


# -- in algorithms ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("scalars", ["exact", "rounded", "float32"])
@pytest.mark.parametrize("underflow", ["flush_inputs", "flush_before", "flush_after"])
def test_results_of_numbers_alone_are_values_and_no_numbers_that_enter(underflow, scalars, assert_same):
    ar = mcf.arithmetic("bfloat16", underflow=underflow, scalars=scalars)
    x, small = np.float32([0, -1, 2.0**100]), np.full(3, 2.0**-133, np.float32)

    def text(ar, x, value=None):
        value = ar.like(ar.format, Rounding()).mul(2.0**-100, 2.0**-33) if value is None else value
        return ar.maximum(x, value), ar.mul(x, value), ar.add(x, ar.neg(value)), ar.add(x, ar.sign(value))

    for found, expected in zip(ar.evaluate(text, x), ar.evaluate(text, x, small), strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize("compiled", [False, None])
def test_values_of_another_carrier_are_refused(compiled):
    def text(ar, x, brought):
        other = ar.like(get_format("float64"), Rounding())
        return other.add(other.round(x), 0.1) if brought else ar.add(other.round(x), x)

    ar, x = mcf.arithmetic("bfloat16", compiled=compiled), np.ones(3, np.float32)
    for brought, message in ((True, "another carrier"), (False, "convert values of other formats by round")):
        with pytest.raises(ValueError, match=message):
            ar.evaluate(text, x, brought=brought)


@pytest.mark.costly("it makes tables of eight functions")
def test_every_operation_of_the_protocol_has_its_line():
    ar = NumpyArithmetic(get_format("bfloat16"), Rounding())
    arity = ARITY | dict.fromkeys(FUNCTIONS, 1) | {"maximum": 2, "minimum": 2, "choose": 3}
    assert set(OPERATIONS) == set(arity) - {"round"}
    for name in OPERATIONS:
        getattr(ar, name)(*[np.ones(2, np.float32)] * arity[name])
        assert (name, (False,) * arity[name]) in ar.blocks._operations


@pytest.mark.parametrize("fmt", ["bfloat16", "posit8"])
def test_what_is_no_real_number_is_refused(fmt):
    ar = mcf.arithmetic(fmt)
    for x in (np.array(Fraction(1, 3)), np.array(Decimal("0.1")), np.array([Fraction(1)])):
        for name in ("add", "neg", "round"):
            with pytest.raises(TypeError, match="real numbers"):
                getattr(ar, name)(x, *[1.0] * (ARITY[name] - 1))
    for x in (True, np.True_, "1", 1j, None, mpmath.mpc(1)):
        for arithmetic, one in ((ar, 1.0), (ar, np.float32([1])), (OracleArithmetic(FORMATS[0]), 1.0)):
            with pytest.raises(TypeError):
                arithmetic.add(one, x)
    with pytest.raises(ValueError, match="too large an exponent"):
        ar.add(1.0, Decimal("1e-2000000"))


#: Algorithms of one number, which leaves them as it came.
OF_ONE = {
    "recursive_sum": lambda ar, x: summation.recursive_sum(ar, (x,)),
    "dw_sum": lambda ar, x: summation.dw_sum(ar, (x,))[0],
    "sum_3": lambda ar, x: summation.sum_k(ar, (x,), 3),
    "renormalize": lambda ar, x: expansion.renormalize(ar, (x,))[0],
    "identity": lambda ar, x: ar.evaluate(lambda _, y: y, x),
    "beside an array": lambda ar, x: ar.evaluate(lambda _, y, z: (y, z), x, 1.0)[0],
}


@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.slow
def test_a_number_leaves_an_algorithm_as_a_value_of_the_format_and_as_the_backend_has_numbers(name):
    run = OF_ONE[name]
    for fmt, mode in itertools.product(("bfloat16", "posit8", "int8"), DETERMINISTIC):
        truth, ar = OracleArithmetic(get_format(fmt), Rounding(mode)), mcf.arithmetic(fmt, mode)
        for x, arithmetic in itertools.product((0.1, Fraction(-1, 3), -0.0), (truth, ar, mcf.Meter(ar))):
            assert agree(run(arithmetic, x), truth.round(x))
    native, exact = mcf.arithmetic("bfloat16", backend="native"), mcf.arithmetic(None, backend="exact")
    assert np.asarray(run(native, 0.1)).dtype == native.dtype
    assert isinstance(run(exact, Fraction(1, 2)), exact.context.mpf)
    for rounding in FLUSHING:  # a subnormal value is not flushed on its way through
        for x in (2.0**-24, -(2.0**-23)):
            assert name != "recursive_sum" or run(mcf.arithmetic("float16", rounding), x) == x


@pytest.mark.parametrize("size", [3, 2**17 + 1])
def test_a_number_beside_an_array_leaves_in_the_carrier(size):
    x = np.ones(size, np.float32)
    for fmt in ("bfloat16", "float8_e4m3fn"):
        ar = mcf.arithmetic(fmt)
        number, array = ar.evaluate(lambda _, n, y: (n, y), 0.1, x)
        assert (number == ar.round(0.1)).all()
        for found in (number, array, *double_word.dw_plus_fp(ar, (x, 0.0), x)):
            assert found.dtype == np.float32
