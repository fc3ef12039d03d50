"""Recorded blocks: predicates written for arrays run once on them, and become a line for one element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import partial, reduce
from operator import and_, ge, le, or_
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from mcfsim.checks import Opaque
from mcfsim.formats import Format
from mcfsim.kernels.element.floats import with_sign
from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Line, Type, Value, greatest, least
from mcfsim.kernels.element.verbs import DTYPES
from mcfsim.theorems.sealed_blocks import Elementwise

_TYPES: Mapping[np.dtype[Any], Type] = {dtype: kind for kind, dtype in DTYPES.items()}
#: A binary64 number of at least this magnitude is an integer; so is its rounded sum with one of its sign.
_WHOLE = 2.0**52
#: The exponents of binary64's normal numbers.
_LEAST, _MOST = -1022, 1023


class PredicateRecorder:
    """A recorder of predicates on a line, which notes where their binary64 operations may be inexact.

    Parameters
    ----------
    line : Line
    clean : bool, optional
        Whether the machine makes clean codes of NaN (`mcfsim.compile.lowering.lower`).
    """

    def __init__(self, line: Line, *, clean: bool = True) -> None:
        self.line, self.clean = line, clean
        self._doubts: list[Value] = []
        self._asked: list[Value] = []

    def doubt(self, where: Value) -> None:
        """Note where the line cannot tell: such cases are judged elsewhere."""
        self._doubts.append(reduce(and_, self._asked, where))

    def doubts(self) -> Value:
        """Return where there was doubt since the last call."""
        found = reduce(or_, self._doubts, self.truth(False))
        self._doubts.clear()
        return found

    @contextmanager
    def asking(self, where: Value) -> Iterator[None]:
        """Restrict all doubt to the elements where something is asked."""
        self._asked.append(where)
        try:
            yield
        finally:
            self._asked.pop()

    def truth(self, held: bool) -> Value:
        """Return a truth value for every element."""
        return self.line.constant(int(held), I32).equals(1)

    def enter(self, x: Any, dtype: np.dtype[Any]) -> Value:
        """Return a recorded block, or a number for all elements, as a register of a dtype."""
        kind = _kind(dtype)
        if isinstance(x, Recorded):
            return _cast(x.value, kind)
        number = np.asarray(x).astype(dtype)
        if number.ndim:
            raise TypeError(f"an array of shape {number.shape} goes with no recorded block")
        return self.truth(bool(number)) if kind is TRUTH else self.line.constant(number.item(), kind)


class Recorded(NDArrayOperatorsMixin, Opaque):
    """One register that takes the place of a block.

    Parameters
    ----------
    recorder : PredicateRecorder
    value : Value
    fmt : Format, optional
        The format of these values, infinities and NaN, if it is known.
    """

    opaque = "is a recorded block: it has no one truth value, no size and no items"

    def __init__(self, recorder: PredicateRecorder, value: Value, fmt: Format | None = None) -> None:
        self.recorder, self.value, self.format = recorder, value, fmt

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of such a block."""
        return DTYPES[self.value.type]

    def astype(self, dtype: Any, *, copy: bool = True) -> Recorded:
        """Return the same numbers in a wider type."""
        return Recorded(self.recorder, _cast(self.value, _kind(np.dtype(dtype))), self.format)

    def view(self, dtype: Any) -> Recorded:
        """Return the codes of numbers, or the numbers with given codes."""
        kind = _kind(np.dtype(dtype))
        if TRUTH in (kind, self.value.type) or kind.bits != self.value.type.bits:
            raise TypeError(f"{self.dtype} is not seen as {dtype}")
        if kind is self.value.type:
            return self
        if kind.is_integer and not self.recorder.clean:
            self.recorder.doubt(~self.value.equals(self.value))  # NaN has another code there
        return Recorded(self.recorder, self.value.bits() if kind.is_integer else self.value.as_number())

    def only(self, test: Callable[..., Any], *blocks: Any) -> Recorded:
        """Return where both this and a test of blocks hold."""
        with self.recorder.asking(self.value):
            held: Recorded = self & test(*blocks)
        return held

    def rarely(self, test: Callable[..., Any], *blocks: Any) -> Recorded:
        """Return False everywhere; note doubt where this holds, instead of asking a test of blocks."""
        self.recorder.doubt(self.value)
        return Recorded(self.recorder, self.recorder.truth(False))

    def exactly(self) -> RecordedExact:
        """Return the exact numbers of this block."""
        return RecordedExact.of(self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        verb = _VERBS.get(ufunc)
        if verb is None or method != "__call__" or options.keys() - {"dtype"}:
            return NotImplemented
        given = (np.dtype(options["dtype"]),) * len(inputs) if options else map(_dtype_of, inputs)
        kinds = ufunc.resolve_dtypes((*given, *[None] * ufunc.nout))
        taken = [self.recorder.enter(x, dtype) for x, dtype in zip(inputs, kinds, strict=False)]
        made = verb(self.recorder, *taken)
        results = made if isinstance(made, tuple) else (made,)
        for value, dtype in zip(results, kinds[len(inputs) :], strict=True):
            if value.type is not _kind(dtype):
                raise TypeError(f"{ufunc.__name__} gave {value.type}, not {dtype}")
        kept = self.format if ufunc in (np.negative, np.absolute) else None
        found = tuple(Recorded(self.recorder, value, kept) for value in results)
        return found if len(found) > 1 else found[0]

    def __array_function__(self, function: Any, types: Any, given: Any, options: Any) -> Any:
        if function is not np.where or len(given) != 3 or options:
            return NotImplemented
        there, yes, no = given
        dtype = np.result_type(*(x.dtype if isinstance(x, Recorded) else x for x in (yes, no)))
        kept = {x.format if isinstance(x, Recorded) else None for x in (yes, no) if not _is_zero(x)}
        where = self.recorder.enter(there, np.dtype(np.bool_))
        value = where.select(self.recorder.enter(yes, dtype), self.recorder.enter(no, dtype))
        return Recorded(self.recorder, value, kept.pop() if len(kept) == 1 else None)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a recorded block is no array")


def _kind(dtype: np.dtype[Any]) -> Type:
    if dtype not in _TYPES:
        raise TypeError(f"no register holds {dtype}")
    return _TYPES[dtype]


def _dtype_of(x: Any) -> Any:
    """Return the dtype of an operand; of Python's int and float the type, since they adapt to others."""
    if isinstance(x, Recorded | np.ndarray | np.generic):
        return x.dtype
    return type(x) if type(x) in (int, float) else np.dtype(type(x))


def _is_zero(x: Any) -> bool:
    return not isinstance(x, Recorded) and np.ndim(x) == 0 and bool(x == 0)


def _cast(value: Value, kind: Type) -> Value:
    """Return a register converted to a type that holds all of its values."""
    if value.type is kind:
        return value
    if value.type is F32 and kind is F64:
        return value.widen()
    if value.type is I32 and kind is I64:
        return value.extend()
    if value.type is TRUTH and kind in (I32, I64):
        return value.count(kind)
    raise TypeError(f"{value.type} is not made {kind} without loss")


# -- functions of NumPy's -----------------------------------------------------------------------------------
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
        raise TypeError("integers are those of binary64")
    large = (x < 0).select(x.like(-_WHOLE), x.like(_WHOLE))
    near = with_sign(x + large - large, x.bits())  # a zero has lost its sign
    found: Value = (abs(x) < _WHOLE).select(near, x)
    return found


def _floor(recorder: PredicateRecorder, x: Value) -> Value:
    near = _rint(recorder, x)
    found: Value = (near > x).select(near - 1, near)
    return found


def _ldexp(recorder: PredicateRecorder, x: Value, by: Value) -> Value:
    """Return ``x * 2**by``; note doubt where the power of two is no normal number and x is not zero."""
    if x.type is not F64:
        raise TypeError("powers of two are those of binary64")
    by = by.extend()
    recorder.doubt(((by < _LEAST) | (by > _MOST)) & ~x.equals(0))
    power = ((least(greatest(by, _LEAST), _MOST) - (_LEAST - 1)) << 52).as_number()
    return x * power


def _frexp(recorder: PredicateRecorder, x: Value) -> tuple[Value, Value]:
    """Return a significand of magnitude in [1/2, 1) and the exponent; doubt subnormal binary64 numbers."""
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


_VERBS: Mapping[Any, Callable[..., Any]] = {
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


# -- exact numbers of a line ------------------------------------------------------------------------------
Real = int | float | Fraction
#: Precision of binary64, and the least and largest exponents of its numbers.
_BITS, _LEAST_EXACT, _MOST_EXACT = 53, -1074, 1023


class RecordedExact(Elementwise):
    """Recorded exact numbers, which take the place of an `mcfsim.theorems.exact.Exact`.

    If bounds on their bits do not show that an operation is exact in binary64, the line checks it, and notes
    doubt where it is not exact.

    Parameters
    ----------
    recorder : PredicateRecorder
    value : Value
        A binary64 register.
    unit, top : int
        The numbers are multiples of ``2**unit``, of magnitudes up to ``2**top``.
    bits : int
        The most bits from a number's first set bit to its last.

    Raises
    ------
    TypeError
        If binary64 does not have this range.
    """

    __slots__ = ("bits", "recorder", "top", "unit", "value")

    def __init__(self, recorder: PredicateRecorder, value: Value, unit: int, top: int, bits: int) -> None:
        if unit < _LEAST_EXACT or top > _MOST_EXACT:
            raise TypeError(f"binary64 does not hold exact numbers from 2^{unit} to 2^{top}")
        self.recorder, self.value, self.unit, self.top = recorder, value, unit, top
        self.bits = min(bits, top - unit)

    @classmethod
    def of(cls, x: Recorded) -> RecordedExact:
        """Return finite values of a format as exact numbers."""
        fmt = x.format
        if fmt is None or not x.value.type.is_float:
            raise TypeError("only values of a format are known to be exact numbers")
        value = x.value.widen()
        x.recorder.doubt(~(abs(value) < np.inf))
        return cls(x.recorder, value, fmt.emin - fmt.precision + 1, fmt.emax + 1, fmt.precision)

    def __neg__(self) -> RecordedExact:
        return RecordedExact(self.recorder, -self.value, self.unit, self.top, self.bits)

    def __abs__(self) -> RecordedExact:
        return RecordedExact(self.recorder, abs(self.value), self.unit, self.top, self.bits)

    def __add__(self, other: RecordedExact | Real) -> RecordedExact:
        x = self._operand(other)
        a, b = self.value, x.value
        total = a + b
        unit, top = min(self.unit, x.unit), max(self.top, x.top) + 1
        if top - unit > _BITS:
            # The rounded sum minus the larger operand is exact. If it is the smaller operand, the sum is
            # exact, too (Dekker).
            self.recorder.doubt(~((total - a).equals(b) & (total - b).equals(a)))
        return RecordedExact(self.recorder, total, unit, top, _BITS)

    def __radd__(self, other: Real) -> RecordedExact:
        return self + other

    def __sub__(self, other: RecordedExact | Real) -> RecordedExact:
        return self + -self._operand(other)

    def __rsub__(self, other: Real) -> RecordedExact:
        return -self + other

    def __mul__(self, other: RecordedExact | Real) -> RecordedExact:
        other = self._operand(other)
        unit, top = self.unit + other.unit, self.top + other.top
        spare = _BITS - self.bits - other.bits
        if spare < 0:
            # The longer factor may have the bits that the other leaves, or each about half of all.
            half = _BITS // 2
            for x, y in ((self, other), (other, self)):
                most = max(_BITS - y.bits, half)
                if x.bits > most:
                    mask = (1 << (_BITS - most)) - 1
                    self.recorder.doubt(~(x.value.bits() & mask).equals(0))
        return RecordedExact(self.recorder, self.value * other.value, unit, top, min(_BITS, _BITS - spare))

    def __rmul__(self, other: Real) -> RecordedExact:
        return self * other

    def __le__(self, other: Any) -> Any:
        return Recorded(self.recorder, self.value <= self._operand(other).value)

    def __eq__(self, other: Any) -> Any:
        return Recorded(self.recorder, self.value.equals(self._operand(other).value))

    def numbers(self) -> Any:
        """Return the numbers in binary64."""
        return Recorded(self.recorder, self.value)

    def is_zero(self) -> Any:
        """Return where the number is zero."""
        return Recorded(self.recorder, self.value.equals(0.0))

    def ratio(self, other: RecordedExact) -> Any:
        """Return the quotient in binary64, rounded once; 0 where both are zero."""
        if self.unit - other.top <= -1022 or self.top - other.unit > _MOST_EXACT:
            raise TypeError("a quotient might leave the range of binary64")
        neither = self.value.equals(0.0) & other.value.equals(0.0)
        quotient = neither.select(self.value.like(0.0), self.value / other.value)
        return Recorded(self.recorder, quotient)

    def _operand(self, other: RecordedExact | Real) -> RecordedExact:
        if isinstance(other, RecordedExact):
            return other
        if not isinstance(other, int | float | Fraction) or isinstance(other, bool):
            raise TypeError(f"exact numbers do not go with {type(other).__name__}")
        number = Fraction(other)
        n, d = abs(number.numerator), number.denominator
        zeros = (n & -n).bit_length() - 1 if n else 0
        bits = n.bit_length() - zeros
        if d & (d - 1) or bits > _BITS:
            raise TypeError(f"{number} is no number of binary64")
        unit = zeros - (d.bit_length() - 1)
        value = self.recorder.line.constant(float(number), F64)
        return RecordedExact(self.recorder, value, unit, unit + bits, bits)
