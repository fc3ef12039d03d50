"""Arrays with operators: each is the arithmetic's operation, to the bit; what would convert is refused."""

import operator
import pickle
from decimal import Decimal
from fractions import Fraction
from importlib.util import find_spec

import ml_dtypes
import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.rounded_array import _OPERATIONS, _QUESTIONS, RoundedArray
from mcfsim.rounding import DETERMINISTIC

FORMATS = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "int8", "posit8")
BINARY = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
UNARY = {"neg": operator.neg, "abs": operator.abs}
NUMBERS = (3, -0.1, 0.0, Fraction(1, 3), Decimal("0.7"), np.float32(0.1), mpmath.mpf("0.3"))


def values(fmt, shape=(4, 5), seed=0):
    rng = np.random.default_rng(seed)
    x = np.asarray(mcf.round_to(rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape), fmt))
    if not isinstance(mcf.get_format(fmt), mcf.Grid):
        x.flat[:3] = np.nan, float(mcf.get_format(fmt).max), 0.0
    return x


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.sampled(16, each=False)
@pytest.mark.costly("it makes tables of functions")
def test_operators_are_the_operations_of_the_arithmetic(fmt, mode, assert_same):
    ar = mcf.arithmetic(fmt, mode)
    x, y = values(fmt), values(fmt, (5,), 1)
    a, b = mcf.array(x, fmt, mode), mcf.array(y, fmt, mode)
    assert_same(a.values, x)
    for name, sign in BINARY.items():
        assert_same(sign(a, b).values, getattr(ar, name)(x, y))
        for number in NUMBERS:
            real = number.item() if isinstance(number, np.generic) else number
            assert_same(sign(a, number).values, getattr(ar, name)(x, real))
            assert_same(sign(number, a).values, getattr(ar, name)(real, x))
    for name, sign in UNARY.items():
        assert_same(sign(a).values, getattr(ar, name)(x))
    for function, name in _OPERATIONS.items():
        operands, given = ((a, b), (x, y)) if function.nin == 2 else ((a,), (x,))
        if function not in (np.log, np.log1p):  # of negative numbers no more than NaN
            assert_same(function(*operands).values, getattr(ar, name)(*given))
    assert_same(a.fma(b, 0.1).values, ar.fma(x, y, 0.1))
    assert_same(np.square(a).values, ar.mul(x, x))
    assert (+a) is a


@pytest.mark.parametrize("fmt", FORMATS)
def test_an_element_is_a_value_and_no_number(fmt, assert_same):
    """A number enters by the policy of scalars, a value as it is."""
    x = values(fmt)
    for options in ({}, {"scalars": "rounded"}):
        a = mcf.array(x, fmt, **options)
        ar = mcf.arithmetic(fmt, **options)
        assert a[1, 2].shape == ()
        assert_same((a[1, 2] * 0.3).values, ar.mul(x[1, 2:3], 0.3)[0])
        assert_same((a * a[1, 2]).values, ar.mul(x, x[1, 2:3]))
    assert float(a[1, 2]) == x[1, 2]


@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn", "int8"])
def test_a_product_of_matrices_rounds_products_and_sums_from_left_to_right(fmt, assert_same):
    ar, x, y = mcf.arithmetic(fmt), np.nan_to_num(values(fmt)), np.nan_to_num(values(fmt, (5, 3), 1))
    sums = ar.mul(x[:, :1], y[:1])
    for k in range(1, 5):
        sums = ar.add(sums, ar.mul(x[:, k : k + 1], y[k : k + 1]))
    assert_same((mcf.array(x, fmt) @ mcf.array(y, fmt)).values, sums)
    with pytest.raises(TypeError, match="@ takes two arrays"):
        mcf.array(x, fmt) @ 2


@pytest.mark.parametrize("question", sorted(_QUESTIONS, key=lambda ufunc: ufunc.__name__))
def test_comparisons_are_of_the_numbers_themselves(question):
    x = values("float16", (40,))
    a = mcf.array(x, "float16")
    if question.nin == 1:
        assert np.array_equal(question(a), question(x))
        return
    compare = {
        **{"equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le},
        **{"greater": operator.gt, "greater_equal": operator.ge},
    }[question.__name__]
    assert np.array_equal(question(a, a[::-1]), question(x, x[::-1]))
    for number in (*NUMBERS, 0.1, Fraction(float(x[7])), 2**70, -(10**400), float("inf"), float("nan")):
        real = to_fraction(number)
        real = float(number) if real is None else real
        expected = [compare(v, real) for v in x.tolist()]
        assert question(a, number).tolist() == expected, number
        assert compare(a, number).tolist() == expected
    near = mcf.array([float(np.float32(0.1))], "float32")
    assert (near > 0.1).all(), "a number is not rounded to be compared"


@pytest.mark.parametrize("mode", ["nearest_even", "up"])
def test_a_number_has_its_sign_before_it_is_rounded(mode):
    a = mcf.array([1.0, -2.0, 0.0, -0.0], "bfloat16", mode)
    for number in (1 + Fraction(1, 2**8) + Fraction(1, 2**70), Fraction(-1, 3), 10**400, -0.0, float("-inf")):
        size = abs(number)
        expected = [float(mcf.round_to(x, "bfloat16", mode)) for x in (size, -size, size, -size)]
        assert np.copysign(number, a).values.tolist() == expected
        assert np.signbit(np.copysign(number, a).values).tolist() == [False, True, False, True]
        minus = number < 0 or str(number).startswith("-")
        assert np.signbit(np.copysign(a, number).values).tolist() == [minus] * 4


def test_a_masked_array_among_numbers_is_refused():
    with pytest.raises(TypeError, match="masked array in it"):
        mcf.array([np.ma.array([1.0, 2.0], mask=[1, 0]), [Fraction(1, 3), 1]], "bf16")


def test_numbers_enter_rounded_once_and_leave_as_they_are():
    given = [0.1, Fraction(1, 3), 1 + Fraction(1, 2**8) + Fraction(1, 2**40)]
    a = mcf.array(given, "bfloat16")
    assert a.values.tolist() == [float(mcf.round_to(x, "bfloat16")) for x in given]
    shown = a.as_dtype()
    assert shown.dtype == ml_dtypes.bfloat16
    assert shown.astype(float).tolist() == a.values.tolist()
    assert mcf.array(shown, "bfloat16").values.tolist() == a.values.tolist()
    for taken in (np.asarray(a), np.from_dlpack(a), mcf.round_to(a, "bfloat16")):
        assert taken.tolist() == a.values.tolist()
        assert taken.dtype == np.float32
    assert a.__dlpack_device__() == (1, 0)
    np.from_dlpack(a)[:] = 7.0
    assert a.values[0] != 7.0
    back = pickle.loads(pickle.dumps(a * 3))
    assert (back == a * 3).all()
    assert back.format == a.format


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_tensors_enter():
    import torch

    x = torch.tensor([[0.1, 300.0]], dtype=torch.bfloat16, requires_grad=True)
    a = mcf.array(x, "float8_e4m3fn")
    assert a.values.tolist() == mcf.round_to(x.detach().float().numpy(), "float8_e4m3fn").tolist()
    assert torch.from_dlpack(a).tolist() == a.values.tolist()
    xp = a.__array_namespace__()
    assert xp.asarray(x.detach()).values.tolist() == a.values.tolist()
    assert xp.asarray(torch.tensor([3])).dtype == np.int64


def test_formats_arrays_and_modes_do_not_mix():
    a = mcf.array([1.0, 2.0], "bfloat16")
    others = (mcf.array([1.0, 2.0], "float16"), mcf.array([1.0, 2.0], "bfloat16", "up"))
    for other in others:
        for sign in (*BINARY.values(), operator.matmul, operator.eq, operator.lt, np.maximum):
            for pair in ((a, other), (other, a)):
                with pytest.raises(TypeError, match="do not mix; convert one of them by astype"):
                    sign(*pair)
        assert (a + other.astype("bfloat16")).values.tolist() == [2.0, 4.0]
    for other in (
        np.ones(2),
        [1.0, 2.0],
        "1",
        None,
        1j,
        True,
        np.bool_(True),
        np.ones(2, ml_dtypes.bfloat16),
    ):
        for sign in BINARY.values():
            for pair in ((a, other), (other, a)):
                with pytest.raises(TypeError, match=r"does not mix with an array of|unsupported operand"):
                    sign(*pair)


def test_what_rounds_in_an_order_of_its_own_or_writes_is_refused():
    a = mcf.array([[1.0, 2.0], [3.0, 4.0]], "bfloat16")
    for function in (np.var, np.std, np.median, np.cumsum, np.linalg.norm, np.einsum):
        with pytest.raises(TypeError, match=r"may round in an order of its own|no operation"):
            function(a) if function is not np.einsum else function("ij->i", a)
    for function in (np.power, np.floor_divide, np.arctan2, np.hypot):
        with pytest.raises(TypeError, match="is no operation of an arithmetic; there are absolute, add"):
            function(a, a)
    for bad in (
        lambda: np.add.reduce(a),
        lambda: np.add(a, a, out=np.ones((2, 2))),
        lambda: np.add(a, a, where=False),
        lambda: np.sum(a, where=a > 1),
        lambda: np.max(a, initial=5.0),
        lambda: np.take(a, [0], None, np.zeros(1, np.float32)),
        lambda: np.sum(a, None, None, np.zeros(())),
    ):
        with pytest.raises(TypeError, match="of rounded arrays takes no"):
            bad()
    with pytest.raises(TypeError):
        a[0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        a.values[0, 0] = 1.0
    with pytest.raises(ValueError, match="truth value"):
        bool(a)
    for backend in ("exact", "native"):
        with pytest.raises(ValueError, match="computed by backend 'numpy'"):
            mcf.array([1.0], "bfloat16", backend=backend)


@pytest.mark.parametrize("time", [np.timedelta64(5, "ns"), np.datetime64(5, "ns")])
def test_a_time_is_no_number(time):
    a = mcf.array([1.0, 2.0], "bfloat16")
    for operation in (operator.mul, operator.eq, np.copysign):
        with pytest.raises(TypeError, match="does not mix"):
            operation(a, time)


def test_an_array_without_axes_has_no_elements_in_turn():
    for bad in (list, lambda x: 1.0 in x):
        with pytest.raises(TypeError, match="itera"):
            bad(mcf.array(1.0, "bfloat16"))
    assert [float(x) for x in mcf.array([1.0, 2.0], "bfloat16")] == [1.0, 2.0]


@pytest.mark.parametrize("size", [2, 3, 40, 1000])
def test_zeros_of_both_signs_are_told_apart_wherever_they_are(size):
    for seed in range(4):
        x = np.copysign(0.0, np.random.default_rng(seed).standard_normal((3, size)))
        x[:, :2] = [[0.0, -0.0], [-0.0, 0.0], [-1.0, -0.0]]
        minus = np.signbit(np.where(x == 0, x, -1.0))
        a = mcf.array(x, "bfloat16", underflow="flush_inputs")
        signs = minus.all(axis=1), np.signbit(x).any(axis=1)
        for most, right in zip((np.max, np.min, np.amax, np.amin), (*signs, *signs), strict=True):
            assert np.array_equal(np.signbit(most(a, axis=1)), right)
            assert np.signbit(most(a, axis=1, keepdims=True)).shape == (3, 1)
        places = np.argsort(x, axis=1, kind="stable")
        assert np.array_equal(np.argsort(a, axis=1), places)
        assert np.array_equal(np.signbit(np.sort(a, axis=1)), np.signbit(np.take_along_axis(x, places, 1)))
    least = mcf.array([2.0**-120, 0.0], "bfloat16", underflow="flush_inputs") * 2.0**-10
    assert float(np.max(least)) == 2.0**-130  # chosen, and no operand that is flushed
    assert np.isnan(np.max(mcf.array([np.nan, 0.0], "bfloat16")))


@pytest.mark.parametrize("change", [operator.iadd, operator.isub, operator.imul, operator.itruediv])
def test_what_is_written_in_place_makes_a_new_array(change, assert_same):
    a, b = (mcf.array(values("bfloat16", 50, seed), "bfloat16") for seed in (1, 2))
    before, operation = a.values.copy(), getattr(operator, change.__name__.removeprefix("i"))
    for other in (b, 3, 0.1):
        found = change(a, other)
        assert found is not a
        assert_same(found.values, operation(a, other).values)
        assert_same(a.values, before)
    square = mcf.array(np.ones((2, 2)), "bfloat16")
    again = square
    square @= square
    assert (square.values.tolist(), again.values.tolist()) == ([[2, 2], [2, 2]], [[1, 1], [1, 1]])


def test_elements_are_moved_without_a_rounding():
    x = values("bfloat16", (2, 6))
    a = mcf.array(x, "bfloat16")
    pairs = [
        (np.concatenate([a, a]), np.concatenate([x, x])),
        (np.stack([a, a], axis=1), np.stack([x, x], axis=1)),
        (np.transpose(a), x.T),
        (a.T, x.T),
        (a.reshape(3, 4), x.reshape(3, 4)),
        (np.flip(a, axis=1), np.flip(x, axis=1)),
        (a[:, ::2], x[:, ::2]),
        (np.broadcast_to(a, (3, 2, 6)), np.broadcast_to(x, (3, 2, 6))),
        (np.broadcast_arrays(a, a[0])[1], np.broadcast_arrays(x, x[0])[1]),
        (np.stack(arrays=[a, a]), np.stack([x, x])),
    ]
    for moved, right in pairs:
        assert isinstance(moved, RoundedArray)
        assert np.array_equal(moved.values, right, equal_nan=True)
    assert (len(a), a.ndim, a.size, a.shape) == (2, 2, 12, (2, 6))
    with pytest.raises(TypeError, match="do not mix"):
        np.concatenate([a, mcf.array(x, "float16")])


def test_numbers_beside_elements_are_rounded_and_numpys_arrays_stay_as_they_are():
    a = mcf.array([1.0, 2.0], "bfloat16")
    assert np.stack([a[0], 0.1]).values.tolist() == [1.0, mcf.round_to(0.1, "bfloat16")]
    ours, theirs, number = np.broadcast_arrays(a, np.array([[0.1], [0.2]]), 0.1)
    assert isinstance(ours, RoundedArray)
    assert type(theirs) is type(number) is np.ndarray
    assert ours.values.tolist() == [[1.0, 2.0]] * 2
    assert (theirs.tolist(), number.tolist()) == ([[0.1] * 2, [0.2] * 2], [[0.1] * 2] * 2)
    assert (np.shape(a), np.ndim(a), np.size(a)) == ((2,), 1, 2)


def test_stochastic_rounding_draws_new_words_at_each_operation():
    x = np.full(4000, 1.0)
    a = mcf.array(x, "bfloat16", "stochastic", random=mcf.RandomWords(3))
    one, two = a + 2.0**-9, a + 2.0**-9
    assert (one != two).any()
    assert abs(float(np.asarray(one).mean()) - 1 - 2.0**-9) < 3e-4
