"""Recorded blocks: predicates written for arrays run once on them, and become a line for one element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import partial, reduce
from operator import and_, or_
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from mcfsim.checks import Opaque
from mcfsim.formats import Format
from mcfsim.kernels.element.machine import DTYPES, F32, F64, I32, I64, TRUTH, Line, Type, Value
from mcfsim.theorems.recorded_functions import VERBS
from mcfsim.theorems.two_words import ExactNumbers

_TYPES: Mapping[np.dtype[Any], Type] = {dtype: kind for kind, dtype in DTYPES.items()}


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
        """Restrict doubt to the elements where a question is asked."""
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
            raise TypeError(f"an array of shape {number.shape} cannot be combined with a recorded block")
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

    opaque = "is a recorded block: it has no single truth value, no size and no items"

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
            raise TypeError(f"{self.dtype} cannot be viewed as {dtype}")
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
        verb = VERBS.get(ufunc)
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
    """Return the dtype of an operand; for Python's int and float, the type, since they adapt to others."""
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
    raise TypeError(f"{value.type} cannot be converted to {kind} without loss")


# -- exact numbers of a line ------------------------------------------------------------------------------
Real = int | float | Fraction
#: Precision of binary64, and the least and largest exponents of its numbers, and the least of normal ones.
_BITS, _LEAST_EXACT, _MOST_EXACT, _LEAST_NORMAL = 53, -1074, 1023, -1022


class RecordedExact(ExactNumbers):
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

    @classmethod
    def rest(cls, x: Recorded, fmt: Format, there: Recorded) -> RecordedExact:
        """Return differences of a format's numbers in binary64; note doubt where they are not exact."""
        x.recorder.doubt(~there.value)
        return cls(x.recorder, x.value, fmt.emin - fmt.precision + 1, fmt.emax + 3, _BITS)

    def __neg__(self) -> RecordedExact:
        return RecordedExact(self.recorder, -self.value, self.unit, self.top, self.bits)

    def __abs__(self) -> RecordedExact:
        return RecordedExact(self.recorder, abs(self.value), self.unit, self.top, self.bits)

    def __add__(self, other: RecordedExact | Real) -> RecordedExact:
        x = self._operand(other)
        a, b = self.value, x.value
        total = a + b
        unit, top = min(self.unit, x.unit), max(self.top, x.top) + 1
        found = RecordedExact(self.recorder, total, unit, top, _BITS)
        if top - unit <= _BITS:
            return found
        return RecordedNear(found, partial(found._sum_of, a, b))

    def __mul__(self, other: RecordedExact | Real) -> RecordedExact:
        if other is self and 2 * self.unit >= _LEAST_NORMAL and 2 * self.top <= _MOST_EXACT:
            square = RecordedExact(self.recorder, self.value * self.value, 2 * self.unit, 2 * self.top, _BITS)
            return RecordedNear(square, self._squared, square=True)
        return self.exact()._product(self._operand(other))

    def _squared(self) -> RecordedExact:
        root = self.exact()
        return root._product(root)

    def _product(self, other: RecordedExact) -> RecordedExact:
        """Return the product; note doubt where it may be rounded."""
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

    def __le__(self, other: Any) -> Any:
        return Recorded(self.recorder, self.value <= self._operand(other).value)

    def __eq__(self, other: Any) -> Any:
        return Recorded(self.recorder, self.value.equals(self._operand(other).value))

    def numbers(self) -> Any:
        """Return the numbers in binary64, without a rounding error."""
        return Recorded(self.recorder, self.exact().value)

    def is_zero(self) -> Any:
        """Return where the number is zero."""
        return Recorded(self.recorder, self.exact().value.equals(0.0))

    def ratio(self, other: RecordedExact) -> Any:
        """Return the quotient in binary64, rounded once; 0 where both are zero."""
        quotient, zero = self.value / other.value, self.value.equals(0.0)
        if self.unit - other.top <= _LEAST_NORMAL or self.top - other.unit > _MOST_EXACT:
            size = abs(quotient)
            left = (size < 2.0**_LEAST_NORMAL) | (size.equals(np.inf) & ~other.value.equals(0.0))
            self.recorder.doubt(left & ~zero)
        quotient = (zero & other.value.equals(0.0)).select(self.value.like(0.0), quotient)
        return Recorded(self.recorder, quotient)

    def exact(self) -> RecordedExact:
        """Return the same numbers without a rounding error."""
        return self

    def _sum_of(self, a: Value, b: Value) -> RecordedExact:
        """Return this sum of two numbers; note doubt where it is rounded."""
        # The rounded sum minus the larger operand is exact. If this difference is the smaller operand, the
        # sum is exact, too (Dekker).
        self.recorder.doubt(~((self.value - a).equals(b) & (self.value - b).equals(a)))
        return self

    def _operand(self, other: RecordedExact | Real) -> RecordedExact:
        if isinstance(other, RecordedExact):
            return other.exact()
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


class RecordedNear(RecordedExact):
    """Recorded numbers that binary64 rounds, with a relative error below ``2**-50``.

    Quotients use them as they are. All other operations use the exact numbers, or note doubt.

    Parameters
    ----------
    near : RecordedExact
        The numbers as they are rounded.
    exact : callable
        Returns the same numbers without a rounding error, after it has noted doubt.
    square : bool, optional
        Whether they are sums of squares, which do not cancel when they are added.
    """

    __slots__ = ("_exact", "square")

    def __init__(
        self, near: RecordedExact, exact: Callable[[], RecordedExact], *, square: bool = False
    ) -> None:
        super().__init__(near.recorder, near.value, near.unit, near.top, near.bits)
        self._exact, self.square = exact, square

    def exact(self) -> RecordedExact:
        """Return the same numbers without a rounding error; a sum of exact squares may be rounded itself."""
        return self._exact().exact()

    def __add__(self, other: RecordedExact | Real) -> RecordedExact:
        if not (self.square and isinstance(other, RecordedNear) and other.square):
            return self.exact() + other
        unit, top = min(self.unit, other.unit), max(self.top, other.top) + 1
        near = RecordedExact(self.recorder, self.value + other.value, unit, top, _BITS)
        return RecordedNear(near, lambda: self.exact() + other.exact(), square=True)

    def __abs__(self) -> RecordedExact:
        return RecordedNear(super().__abs__(), lambda: abs(self.exact()), square=self.square)

    def __neg__(self) -> RecordedExact:
        return RecordedNear(super().__neg__(), lambda: -self.exact())

    def __le__(self, other: Any) -> Any:
        return self.exact() <= other

    def __eq__(self, other: Any) -> Any:
        return self.exact() == other
