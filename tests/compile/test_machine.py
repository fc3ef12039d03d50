"""A straight line: what is recorded, and what is refused; its verbs are asked of in test_emitters."""

from __future__ import annotations

import numpy as np
import pytest

from mcfsim.kernels.element.machine import F32, F64, I32, I64, Line, recorded
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


def test_an_operand_of_another_dtype_is_refused():
    line, results = recorded(lambda x: x + 1.0, x=F32)
    with pytest.raises(TypeError, match="x is of float64, not float32"):
        run(line, results, x=np.zeros(3))
