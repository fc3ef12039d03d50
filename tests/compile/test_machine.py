"""A straight line: what is recorded, what is refused, and its verbs as NumPy carries them out."""

from __future__ import annotations

import numpy as np
import pytest

from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Line, greatest, least, recorded
from mcfsim.kernels.element.on_numpy import run


def test_equal_values_are_made_once_and_unneeded_ones_left_out():
    line, results = recorded(lambda x, y: (x + y) * (y + x), x=F64, y=F64)
    assert [value.verb for value in line.values] == ["input", "input", "add", "mul"]
    line, results = recorded(lambda x, y: (x * y, x + y)[1], x=F64, y=F64)
    assert [value.verb for value in line.needed(results)] == ["input", "input", "add"]


def test_zeros_of_either_sign_and_constants_of_either_type_are_told_apart():
    line = Line()
    constants = [
        *(line.constant(number, F64) for number in (0.0, -0.0, 1.0)),
        *(line.constant(number, kind) for number, kind in ((1.0, F32), (1, I32), (1, I64))),
    ]
    assert len({value.number for value in constants}) == 6
    assert line.constant(-0.0, F64) is constants[1]


def test_subtraction_and_quotients_do_not_commute():
    for text in (lambda x, y: (x - y) + (y - x), lambda x, y: (x / y) + (y / x)):
        line, _ = recorded(text, x=F32, y=F32)
        assert len(line.values) == 5


@pytest.mark.parametrize(
    ("number", "kind"), [(0.1, F32), (2.0**128, F32), (2**31, I32), (-(2**63) - 1, I64), (1.0, I32)]
)
def test_a_constant_that_its_type_does_not_hold_is_refused(number, kind):
    with pytest.raises(ValueError, match="is no"):
        Line().constant(number, kind)


@pytest.mark.parametrize(
    "text",
    [
        lambda x, n: x + n,
        lambda x, n: n.select(x, x),
        lambda x, n: (n < 1).select(x, n),
        lambda x, n: x + True,
        lambda x, n: (x < 1.0) + 1,
    ],
)
def test_types_do_not_mix(text):
    with pytest.raises(TypeError):
        recorded(text, x=F32, n=I32)


@pytest.mark.parametrize(("real", "whole"), [(F32, I32), (F64, I64)])
def test_verbs_are_those_of_python_and_numpy(real, whole):
    rng = np.random.default_rng(0)
    dtype, integer = np.dtype(f"f{real.bits // 8}"), np.dtype(f"i{whole.bits // 8}")
    bits = [rng.integers(np.iinfo(integer).min, np.iinfo(integer).max, 500, integer) for _ in range(2)]
    a, b = (x.view(dtype) for x in bits)
    m, n = (int(x[0]) for x in bits)

    def of(text, **operands):
        kinds = {name: real if array.dtype == dtype else whole for name, array in operands.items()}
        return run(*recorded(text, **kinds), **operands)[0]

    with np.errstate(all="ignore"):
        for text in (
            *(lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b),
            *(lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b),
        ):
            np.testing.assert_array_equal(of(text, a=a, b=b), text(a, b))
        np.testing.assert_array_equal(of(lambda a: a.sqrt(), a=a), np.sqrt(a))
    np.testing.assert_array_equal(of(lambda a: (-abs(a)).bits(), a=a), (-abs(a)).view(integer))
    np.testing.assert_array_equal(of(lambda a: a.bits().as_number().bits(), a=a), bits[0])
    wrap = lambda x: (x + 2 ** (whole.bits - 1)) % 2**whole.bits - 2 ** (whole.bits - 1)  # noqa: E731
    one = [x[:1] for x in bits]
    for text in (
        *(lambda m, n: m + n, lambda m, n: m - n, lambda m, n: m * n, lambda m, n: m & n),
        *(lambda m, n: m | n, lambda m, n: m ^ n, lambda m, n: ~m, lambda m, n: m << 3, lambda m, n: m >> 3),
    ):
        assert of(text, m=one[0], n=one[1]) == wrap(text(m, n))
    assert of(lambda m: m.shr(3), m=one[0]) == wrap((m % 2**whole.bits) >> 3)
    assert of(lambda m, n: least(m, n), m=one[0], n=one[1]) == min(m, n)
    assert of(lambda m, n: greatest(m, n), m=one[0], n=one[1]) == max(m, n)
    assert of(lambda m: m.extend().cut().extend(), m=one[0]) == wrap32(m)
    assert of(lambda m, n: (m < n).count(), m=one[0], n=one[1]) == (m < n)


def wrap32(number):
    return (number + 2**31) % 2**32 - 2**31


def test_numbers_of_either_size_and_truth_values():
    x = np.float32([1.5, np.nan, -0.0])
    line, results = recorded(lambda x: ((x.widen() * 2.0).narrow(), x.equals(x), ~(x < 1.0)), x=F32)
    assert [result.type for result in results] == [F32, TRUTH, TRUTH]
    doubled, ordered, not_less = run(line, results, x=x)
    np.testing.assert_array_equal(doubled, np.float32([3.0, np.nan, -0.0]))
    assert ordered.tolist() == [True, False, True]
    assert not_less.tolist() == [True, True, False]


def test_an_operand_of_another_dtype_is_refused():
    line, results = recorded(lambda x: x + 1.0, x=F32)
    with pytest.raises(TypeError, match="x is of float64, not float32"):
        run(line, results, x=np.zeros(3))
