"""Real scalars of every kind enter every operation exactly, the same way everywhere."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import Format, Grid, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.multiword import double_word, expansion, shewchuk, summation
from mcfsim.oracle import OracleArithmetic, round_fraction, same
from mcfsim.random import RandomWords
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.oracle.operands import FLUSHING, ROUNDINGS, label

FORMATS = [
    *map(get_format, ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "tf32")),
    *map(
        get_format, ("posit8", "posit16", "int8", "ternary", "binary8p4uf", "binary8p3se", "float8_e8m0fnu")
    ),
    Grid(low=-2, high=7, fraction_bits=1),
    Format("float_u4", precision=3, emin=0, emax=2, specials="none", signed=False),
]
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3, "neg": 1, "abs": 1, "round": 1}
NOT_FINITE = [math.inf, -math.inf, math.nan, Decimal("-Infinity"), Decimal("NaN"), Decimal("sNaN")]
NOT_FINITE += [mpmath.mpf("inf"), mpmath.mpf("nan")]
ZEROS = [0, 0.0, -0.0, Fraction(0), Decimal("-0"), mpmath.mpf(0)]


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
    found += [
        Fraction(10**400),
        Fraction(-1, 10**400),
        Fraction(2**60 + 2**52 + 1),
        Fraction(300),
        Fraction(10**6),
    ]
    return [x for x in found if x]


def of(ar, name, *operands):
    """Return a result of an arithmetic as floats."""
    return np.asarray(getattr(ar, name)(*operands), dtype=np.float64)


def agree(found, expected):
    return same(np.asarray(found, np.float64), np.full(np.shape(found), expected)).all()


# -- signs ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", [*ROUNDINGS, *FLUSHING], ids=label)
@pytest.mark.parametrize("name", ["neg", "abs", "round"])
@pytest.mark.sampled(8)
@pytest.mark.slow
def test_a_sign_changes_before_the_rounding(name, rounding):
    rng = np.random.default_rng(1)
    for fmt in FORMATS:
        try:
            ar, truth = mcf.arithmetic(fmt, rounding), OracleArithmetic(fmt, rounding)
        except UnsupportedFormatError:
            continue  # nothing to flush there
        for x in (*reals(fmt, rng, 3), *NOT_FINITE, *ZEROS):
            for number in kinds(x) if isinstance(x, Fraction) else [x]:
                found = getattr(ar, name)(number)
                assert type(found) is float
                assert agree(found, getattr(truth, name)(number)), (fmt, number)


@pytest.mark.slow
def test_signs_of_reals_by_the_definition():
    """The oracle's own, where no policy plays a part."""
    rng = np.random.default_rng(2)
    for fmt, rounding in itertools.product(FORMATS, ROUNDINGS):
        truth = OracleArithmetic(fmt, rounding)
        for x in reals(fmt, rng, 1):
            assert agree(truth.neg(x), round_fraction(-x, fmt, rounding))
            assert agree(truth.abs(x), round_fraction(abs(x), fmt, rounding))


@pytest.mark.parametrize("backend", ["numpy", "native"])
def test_signs_of_reals_to_nearest_in_every_backend(backend):
    rng = np.random.default_rng(3)
    for fmt in FORMATS[:5]:
        ar = mcf.arithmetic(fmt, backend=backend)
        for x in reals(fmt, rng, 5):
            assert agree(of(ar, "neg", x), round_fraction(-x, fmt))
            assert agree(of(ar, "abs", x), round_fraction(abs(x), fmt))
            assert agree(of(ar, "round", x), round_fraction(x, fmt))


def test_exact_arithmetic_takes_reals_to_its_own_precision():
    exact = mcf.arithmetic(None, backend="exact", precision=100)
    for x in (Fraction(1, 3), Fraction(2**300 + 1, 7), Fraction(-(10**50), 10**49 + 1)):
        wide = Format(precision=100, emin=-2000, emax=2000)
        scale = Fraction(2) ** (99 - math.floor(math.log2(abs(x))))
        nearest = Fraction(round(x * scale)) / scale
        assert wide.precision == exact.precision
        for name, expected in (("neg", -nearest), ("abs", abs(nearest)), ("round", nearest)):
            assert expansion.to_fraction(getattr(exact, name)(x)) == expected


def test_stochastic_rounding_draws_for_a_sign_by_its_stream():
    rounding = Rounding("stochastic", random_bits=16)
    ar = mcf.arithmetic("bfloat16", rounding, random=RandomWords(5, stream=3))
    drawn = set()
    for place in range(200):
        name, x = ("neg", 0.1) if place % 2 else ("abs", Fraction(-1, 3))
        word = int(RandomWords(5, stream=3).of(place).words(0, 1, 16)[0])
        exact = abs(Fraction(x)) * 2 ** (11 if name == "neg" else 9)  # in quanta
        up = math.floor(exact % 1 * 2**16) + word >= 2**16
        expected = Fraction(math.floor(exact) + up, 2 ** (11 if name == "neg" else 9))
        found = getattr(ar, name)(x)
        assert found == (-expected if name == "neg" else expected)
        drawn.add(found)
    assert len(drawn) == 4
    assert ar.neg(1.5) == -1.5
    assert ar.random.operation == 200  # a value of the format takes none


def test_under_the_policy_rounded_a_sign_changes_after_the_rounding():
    assert mcf.arithmetic("bfloat16", "up", scalars="rounded").neg(0.1) == -0.10009765625
    assert mcf.arithmetic("int8", scalars="rounded").neg(300) == -127


# -- every operation, every kind of number, everywhere ----------------------------------------------------
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", ARITY)
@pytest.mark.sampled(6)
def test_reals_of_every_kind_are_rounded_once(name, mode):
    """Alone and with an array, in an operation, in a straight line and in a block of many elements."""
    rng = np.random.default_rng(4)
    for fmt in FORMATS:
        ar, truth = mcf.arithmetic(fmt, mode), OracleArithmetic(fmt, Rounding(mode))
        numbers = reals(fmt, rng, 2)
        for _ in range(12):
            operands = [numbers[i] for i in rng.integers(0, len(numbers), ARITY[name])]
            expected = getattr(truth, name)(*operands)
            entered = [kinds(x)[-1] for x in operands]
            assert agree(of(ar, name, *entered), expected)
            assert agree(ar.evaluate(lambda inner, *xs: getattr(inner, name)(*xs), *entered), expected)
            if name == "round":
                continue
            place = int(rng.integers(ARITY[name]))
            operands[place] = value = truth.round(operands[place])
            expected = getattr(truth, name)(*operands)
            array = np.full(3, value, dtype=ar.carrier)
            found = getattr(ar, name)(*[array if i == place else x for i, x in enumerate(entered)])
            assert found.dtype == ar.carrier
            assert agree(found, expected)


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_sums_with_reals_that_cancel_down_to_nearly_nothing(mode):
    """The rest of them lies far beyond 53 bits."""
    rng = np.random.default_rng(5)
    for fmt in FORMATS[:9]:
        ar, truth = mcf.arithmetic(fmt, mode), OracleArithmetic(fmt, Rounding(mode))
        for rest in (Fraction(1, 3 * 2**90), Fraction(-1, 7 * 2**200), Fraction(0)):
            a, b = (truth.round(float(rng.normal())) for _ in range(2))
            for name, operands in {
                "add": (a, rest - Fraction(a)),
                "sub": (a, Fraction(a) + rest),
                "fma": (a, b, rest - Fraction(a) * Fraction(b)),
            }.items():
                arrays = [np.array([x], ar.carrier) if isinstance(x, float) else x for x in operands]
                assert agree(getattr(ar, name)(*arrays), getattr(truth, name)(*operands))


def test_an_infinity_or_a_zero_beside_a_real_of_any_size():
    special = [math.inf, -math.inf, math.nan, 0.0, -0.0]
    for x, s in itertools.product(special, (Fraction(1, 3), -(10**400), Fraction(-1, 10**400))):
        for rounding in (Rounding(), Rounding("down")):
            ar, truth = (
                mcf.arithmetic("float8_e5m2", rounding),
                OracleArithmetic(get_format("e5m2"), rounding),
            )
            block = np.float32([x])
            for name, operands in itertools.product(("add", "sub", "mul", "div"), ((block, s), (s, block))):
                expected = getattr(truth, name)(*[x if o is block else o for o in operands])
                assert agree(getattr(ar, name)(*operands), expected)
            for other in special:
                expected = truth.fma(x, s, other)
                assert agree(ar.fma(block, s, np.float32([other])), expected)


def test_a_long_integer_is_the_same_inside_and_outside():
    for fmt, n in itertools.product(
        ("bfloat16", "float16", "float32"), (2**60 + 2**52 + 1, -(2**54) - 1, 10**30)
    ):
        ar = mcf.arithmetic(fmt, "up")
        expected = round_fraction(Fraction(n), get_format(fmt), Rounding("up"))
        inside = ar.evaluate(lambda inner, x, n=n: (inner.round(n), inner.add(x, n)), np.zeros(2, ar.carrier))
        assert ar.round(n) == expected
        for found in inside:
            assert (found == expected).all()


def test_scalars_alone_give_a_number_inside_a_straight_line_too():
    """Which enters the next operation as one."""
    kinds_seen = []

    def text(ar, x):
        half = ar.mul(0.5, Fraction(1, 3))
        kinds_seen.append(type(half))
        return ar.add(x, half), half

    total, half = mcf.arithmetic("bfloat16").evaluate(text, np.float32([1, 2]))
    assert all(issubclass(kind, float) for kind in kinds_seen)
    assert half.tolist() == [round_fraction(Fraction(1, 6), get_format("bfloat16"))] * 2
    assert total.dtype == half.dtype == np.float32


@pytest.mark.parametrize(
    "value", [np.array(Fraction(1, 3)), np.array(Decimal("0.1")), np.array([Fraction(1)])]
)
def test_arrays_of_objects_stay_refused(value):
    for ar in (mcf.arithmetic("bfloat16"), mcf.arithmetic("posit8")):
        for call in (
            lambda ar=ar: ar.add(value, 1.0),
            lambda ar=ar: ar.neg(value),
            lambda ar=ar: ar.round(value),
        ):
            with pytest.raises(TypeError, match="real numbers"):
                call()


@pytest.mark.parametrize("value", [True, np.True_, "1", 1j, None, mpmath.mpc(1)])
def test_what_is_no_real_number_stays_refused(value):
    with pytest.raises(TypeError):
        mcf.arithmetic("bfloat16").add(np.float32([1]), value)
    with pytest.raises(TypeError):
        OracleArithmetic(get_format("bfloat16")).add(1.0, value)


def test_a_number_with_too_many_digits_is_refused_by_what_it_is():
    with pytest.raises(ValueError, match="too large an exponent"):
        mcf.arithmetic("bfloat16").add(1.0, Decimal("1e-2000000"))
    with pytest.raises(UnsupportedFormatError, match="a number of 16610 bits cannot be rounded once"):
        mcf.round_to(10**5000, "float64", "up")


def test_scalars_of_optimizers_and_expansions_enter_exactly():
    """A step's scalars may be fractions; floats that are the same numbers give the same bits."""
    ar = mcf.arithmetic("bfloat16")
    x = np.float32([1.5, -2.0, 0.1015625])
    x = ar.round(x)
    for gain in (0.999, 2.0**-60, 1 - 2.0**-53):
        assert same(ar.fma(x, gain, x), ar.fma(x, Fraction(gain), x)).all()
    third = expansion.expand(ar, Fraction(1, 3), 3)
    assert third == expansion.expand(ar, mpmath.mpf(mpmath.fraction(1, 3)), 3)
    assert expansion.value(third) != Fraction(1 / 3)


# -- numbers that an algorithm returns as they came -------------------------------------------------------
#: Algorithms of one number.
OF_ONE = {
    "recursive_sum": lambda ar, x: summation.recursive_sum(ar, (x,)),
    "kahan_sum": lambda ar, x: summation.kahan_sum(ar, (x,))[0],
    "dw_sum": lambda ar, x: summation.dw_sum(ar, (x,))[0],
    "neumaier_sum": lambda ar, x: summation.neumaier_sum(ar, (x,)),
    "sum_3": lambda ar, x: summation.sum_k(ar, (x,), 3),
    "vec_sum": lambda ar, x: shewchuk.vec_sum(ar, (x,))[0],
    "renormalize": lambda ar, x: expansion.renormalize(ar, (x,))[0],
    "identity": lambda ar, x: ar.evaluate(lambda _, y: y, x),
    "beside an array": lambda ar, x: ar.evaluate(lambda _, y, z: (y, z), x, 1.0)[0],
}


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", OF_ONE)
def test_a_number_leaves_an_algorithm_as_a_value_of_the_format(name, mode):
    run = OF_ONE[name]
    for fmt in map(get_format, ("bfloat16", "float8_e4m3fn", "posit8", "int8")):
        for x in (0.1, Fraction(1, 3), -(10**30), -0.0):
            expected = OracleArithmetic(fmt, Rounding(mode)).round(x)
            assert agree(run(mcf.arithmetic(fmt, mode), x), expected)
            assert agree(run(OracleArithmetic(fmt, Rounding(mode)), x), expected)
            assert agree(run(mcf.Meter(mcf.arithmetic(fmt, mode)), x), expected)


@pytest.mark.parametrize("name", OF_ONE)
def test_a_number_leaves_every_backend_as_that_has_numbers(name):
    run = OF_ONE[name]
    native, exact = mcf.arithmetic("bfloat16", backend="native"), mcf.arithmetic(None, backend="exact")
    assert np.asarray(run(native, 0.1)).dtype == native.dtype
    assert agree(run(native, 0.1), 0.10009765625)
    assert isinstance(run(exact, Fraction(1, 2)), exact.context.mpf)


@pytest.mark.parametrize("size", [3, 2**17 + 1])
def test_a_number_beside_an_array_leaves_in_the_carrier(size):
    x = np.ones(size, np.float32)
    for fmt in ("bfloat16", "float8_e4m3fn"):
        ar = mcf.arithmetic(fmt)
        number, array = ar.evaluate(lambda _, n, y: (n, y), 0.1, x)
        assert number.dtype == array.dtype == np.float32
        assert (number == ar.round(0.1)).all()
        high, low = double_word.dw_plus_fp(ar, (x, 0.0), x)
        assert high.dtype == low.dtype == np.float32


def test_a_subnormal_value_is_not_flushed_on_its_way_through():
    for rounding in FLUSHING:
        ar = mcf.arithmetic("float16", rounding)
        for x in (2.0**-24, -(3 * 2.0**-24)):
            assert summation.recursive_sum(ar, (x,)) == x
            assert summation.recursive_sum(OracleArithmetic(get_format("float16"), rounding), (x,)) == x
