"""NumPy's functions on registers of a line: what a predicate may call on recorded blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import ge, le
from typing import Any

import numpy as np

from mcfsim.kernels.element.floats import with_sign
from mcfsim.kernels.element.machine import F32, F64, TRUTH, Value, greatest, least

#: An `mcfsim.theorems.recorded.PredicateRecorder`, which notes doubt.
PredicateRecorder = Any
#: A binary64 number of at least this magnitude is an integer; so is its rounded sum with one of its sign.
_WHOLE = 2.0**52
#: The exponents of binary64's normal numbers.
_LEAST, _MOST = -1022, 1023


def _same(_: PredicateRecorder, a: Value, b: Value) -> Value:
    return (a & b) | (~a & ~b) if a.type is TRUTH else a.equals(b)


def _extreme(
    leads: Callable[[Value, Value], Any],
    of_integers: Callable[[Value, Value], Value],
    recorder: PredicateRecorder,
    a: Value,
    b: Value,
) -> Value:
    """Return the greater or the lesser number; note doubt where both are zeros of different signs.

    Which one NumPy takes then depends on the processor.
    """
    if a.type.is_integer:
        return of_integers(a, b)
    if a.type.is_float and not any(x.verb == "constant" and x.constant != 0 for x in (a, b)):
        recorder.doubt(a.equals(0) & b.equals(0) & ~a.bits().equals(b.bits()))
    chosen: Value = (leads(a, b) | ~a.equals(a)).select(a, b)
    return chosen


def _signbit(recorder: PredicateRecorder, x: Value) -> Value:
    recorder.doubt(~x.equals(x))  # a NaN may have either sign
    return x.bits() < 0


def _sign(_: PredicateRecorder, x: Value) -> Value:
    zero_or_nan = x.equals(0).select(x.like(0.0), x)
    found: Value = (x > 0).select(x.like(1.0), (x < 0).select(x.like(-1.0), zero_or_nan))
    return found


def _rint(_: PredicateRecorder, x: Value) -> Value:
    """Round to an integer, ties to even: add and subtract a large number of the same sign."""
    if x.type is not F64:
        raise TypeError("only binary64 numbers are rounded to integers")
    large = (x < 0).select(x.like(-_WHOLE), x.like(_WHOLE))
    near = with_sign(x + large - large, x.bits())  # a zero has lost its sign
    found: Value = (abs(x) < _WHOLE).select(near, x)
    return found


def _floor(recorder: PredicateRecorder, x: Value) -> Value:
    near = _rint(recorder, x)
    found: Value = (near > x).select(near - 1, near)
    return found


def _ldexp(recorder: PredicateRecorder, x: Value, by: Value) -> Value:
    """Return ``x * 2**by``; note doubt where the power of two is not a normal number and x is not zero."""
    if x.type is not F64:
        raise TypeError("only binary64 numbers are multiplied by powers of two")
    by = by.extend()
    recorder.doubt(((by < _LEAST) | (by > _MOST)) & ~x.equals(0))
    power = ((least(greatest(by, _LEAST), _MOST) - (_LEAST - 1)) << 52).as_number()
    return x * power


def _frexp(recorder: PredicateRecorder, x: Value) -> tuple[Value, Value]:
    """Return a significand of magnitude in [1/2, 1) and an exponent; doubt subnormals, infinities and NaN."""
    wide = x.widen()
    size = abs(wide)
    recorder.doubt(((size < 2.0**_LEAST) & ~size.equals(0)) | ~(size < np.inf))
    code = wide.bits()
    field = (code.shr(52) & 0x7FF).cut()
    there = ~wide.equals(0)
    half = ((code & ~(0x7FF << 52)) | ((-_LEAST) << 52)).as_number()
    significand = there.select(half, wide)
    exponent: Value = there.select(field - (-_LEAST), field.like(0))
    return (significand.narrow() if x.type is F32 else significand), exponent


#: A function of registers for each of NumPy's.
VERBS: Mapping[Any, Callable[..., Any]] = {
    np.add: lambda _, a, b: a + b,
    np.subtract: lambda _, a, b: a - b,
    np.multiply: lambda _, a, b: a * b,
    np.divide: lambda _, a, b: a / b,
    np.negative: lambda _, a: -a if a.type.is_float else a.like(0) - a,
    np.absolute: lambda _, a: abs(a) if a.type.is_float else greatest(a, a.like(0) - a),
    np.less: lambda _, a, b: a < b,
    np.less_equal: lambda _, a, b: a <= b,
    np.greater: lambda _, a, b: a > b,
    np.greater_equal: lambda _, a, b: a >= b,
    np.equal: _same,
    np.not_equal: lambda _, a, b: ~_same(_, a, b),
    np.bitwise_and: lambda _, a, b: a & b,
    np.bitwise_or: lambda _, a, b: a | b,
    np.invert: lambda _, a: ~a,
    np.logical_and: lambda _, a, b: a & b,
    np.logical_or: lambda _, a, b: a | b,
    np.logical_not: lambda _, a: ~a,
    np.isfinite: lambda _, a: abs(a) < np.inf,
    np.isnan: lambda _, a: ~a.equals(a),
    np.signbit: _signbit,
    np.maximum: partial(_extreme, ge, greatest),
    np.minimum: partial(_extreme, le, least),
    np.sign: _sign,
    np.rint: _rint,
    np.floor: _floor,
    np.ldexp: _ldexp,
    np.frexp: _frexp,
}
