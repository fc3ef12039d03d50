"""Real scalars inside a text, those that an algorithm returns as they came, and what is no scalar."""

import itertools
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.numpy import OPERATIONS, NumpyArithmetic
from mcfsim.formats import get_format
from mcfsim.multiword import double_word, expansion, shewchuk, summation
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.kernels.test_scalars import ARITY, agree, by_calls
from tests.oracle.operands import FLUSHING


@pytest.mark.parametrize("size", [1, 3, 2**17 + 1])
def test_a_result_of_a_second_format_stays_as_it_is(size):
    """Of arrays, and of numbers alone: .30078125 is no value of e4m3fn."""

    def text(ar, x):
        other = ar.like(get_format("bfloat16"), Rounding())
        return other.add(0.1, 0.2), other.mul(other.round(x), 0.3), ar.add(0.1, 0.2), 0.3

    fmt, expected = get_format("float8_e4m3fn"), [0.30078125, 0.30078125, 0.3125, 0.3125]
    ar = mcf.arithmetic(fmt, compiled=False)
    for arithmetic in (ar, mcf.Meter(ar)):
        found = arithmetic.evaluate(text, np.ones(size, np.float32))
        assert [np.unique(x).tolist() for x in found] == [[x] for x in expected]
        assert list(arithmetic.evaluate(text, 1.0)) == expected
    assert list(OracleArithmetic(fmt).evaluate(text, 1.0)) == expected
    called = by_calls(lambda ar, x: text(ar, x)[:3], fmt, Rounding(), np.ones(2, "f4"))
    assert [x[0] for x in called] == expected[:3]


@pytest.mark.parametrize("compiled", [False, None])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lambda ar, other, x: other.add(other.round(x), 0.1), "another carrier"),
        (lambda ar, other, x: ar.add(other.round(x), x), "round brings values of other formats over"),
    ],
)
def test_values_of_another_carrier_are_refused(text, message, compiled):
    def whole(ar, x):
        return text(ar, ar.like(get_format("float64"), Rounding()), x)

    with pytest.raises(ValueError, match=message):
        mcf.arithmetic("bfloat16", compiled=compiled).evaluate(whole, np.ones(3, np.float32))


def test_every_operation_of_the_protocol_has_its_line():
    ar = NumpyArithmetic(get_format("bfloat16"), Rounding())
    assert set(OPERATIONS) == set(ARITY) - {"round"}
    for name in OPERATIONS:
        getattr(ar, name)(*[np.ones(2, np.float32)] * ARITY[name])
        assert (name, (False,) * ARITY[name]) in ar.blocks._operations


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *(
            (
                lambda ar, x=x, name=name: getattr(ar, name)(x, *[1.0] * (ARITY[name] - 1)),
                TypeError,
                "real numbers",
            )
            for x in (np.array(Fraction(1, 3)), np.array(Decimal("0.1")), np.array([Fraction(1)]))
            for name in ("add", "neg", "round")
        ),
        *(
            (lambda ar, x=x, one=one: ar.add(one, x), TypeError, None)
            for x in (True, np.True_, "1", 1j, None, mpmath.mpc(1))
            for one in (np.float32([1]), 1.0)
        ),
        (lambda ar: ar.add(1.0, Decimal("1e-2000000")), ValueError, "too large an exponent"),
    ],
)
def test_what_is_no_real_number_stays_refused(call, error, message):
    for ar in (mcf.arithmetic("bfloat16"), mcf.arithmetic("posit8")):
        with pytest.raises(error, match=message):
            call(ar)
    if message is None:
        with pytest.raises(error):
            call(OracleArithmetic(get_format("bfloat16")))


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


@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.slow
def test_a_number_leaves_an_algorithm_as_a_value_of_the_format_and_as_the_backend_has_numbers(name):
    run = OF_ONE[name]
    for fmt, mode in itertools.product(
        map(get_format, ("bfloat16", "e4m3fn", "posit8", "int8")), DETERMINISTIC
    ):
        for x in (0.1, Fraction(-1, 3), -0.0):
            truth, ar = OracleArithmetic(fmt, Rounding(mode)), mcf.arithmetic(fmt, mode)
            for arithmetic in (truth, ar, mcf.Meter(ar)):
                assert agree(run(arithmetic, x), truth.round(x))
    native, exact = mcf.arithmetic("bfloat16", backend="native"), mcf.arithmetic(None, backend="exact")
    assert np.asarray(run(native, 0.1)).dtype == native.dtype
    assert agree(run(native, 0.1), 0.10009765625)
    assert isinstance(run(exact, Fraction(1, 2)), exact.context.mpf)
    for rounding in FLUSHING:  # a subnormal value is not flushed on its way through
        for ar in (mcf.arithmetic("float16", rounding), OracleArithmetic(get_format("float16"), rounding)):
            if name == "recursive_sum":
                assert [run(ar, x) for x in (2.0**-24, -(3 * 2.0**-24))] == [2.0**-24, -(3 * 2.0**-24)]


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
