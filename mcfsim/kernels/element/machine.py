"""Straight lines of machine operations on one element: on numbers, their bits, integers and truth values.

An element algorithm is a Python function of `Value` objects. Running it once records a `Line`: the machine
operations, called verbs, that a processor performs for each element, in order and without branches. Code that
executes a line must know some twenty verbs, but no formats or rounding. Here NumPy's functions execute it,
verb by verb (`run`); elsewhere generated source does.

Verbs and types
---------------
Numbers are binary32 or binary64. The processor rounds each operation to nearest even and keeps subnormal
numbers. Integers have 32 or 64 bits, in two's complement, and wrap around. The code of a NaN result is
unspecified, and so is a shift by a count that is negative or not below the size: processors differ.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import Opaque
from mcfsim.kernels.elementary import table_of


class Type(StrEnum):
    """The type of a register."""

    F32 = "f32"
    F64 = "f64"
    I32 = "i32"
    I64 = "i64"
    TRUTH = "truth"

    @property
    def is_float(self) -> bool:
        """Whether a register of this type holds a floating-point number."""
        return self in (Type.F32, Type.F64)

    @property
    def is_integer(self) -> bool:
        """Whether a register of this type holds an integer."""
        return self in (Type.I32, Type.I64)

    @property
    def bits(self) -> int:
        """The size of a number or an integer, in bits."""
        return int(self[1:])


F32, F64, I32, I64, TRUTH = Type
#: The integer type of a number's size, and the number type of an integer's size.
BITS_OF = {F32: I32, F64: I64}
NUMBER_OF = {I32: F32, I64: F64}
#: The integers that an integer type holds.
_INTEGERS = {kind: range(-(2 ** (kind.bits - 1)), 2 ** (kind.bits - 1)) for kind in NUMBER_OF}


@dataclass(eq=False, slots=True)  # a frozen one takes four times as long to make, and a line has hundreds
class Value(Opaque):
    """A register of a line: the result of a verb. Operators and the methods below record verbs.

    A Python number beside a value stands for a constant of the value's type, which must hold it.
    """

    line: Line = field(repr=False)
    number: int
    type: Type
    verb: str
    operands: tuple[Value, ...] = field(repr=False)
    constant: int | float | str | None = None

    opaque = "is a register of a line: compare it by equals(), and choose by select(), for each element"
    # Code that executes a line compares registers by identity; an element algorithm uses equals().
    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__

    def _record(self, verb: str, *others: Any, result: Type | None = None) -> Value:
        operands = (self, *[self.line.enter(other, self.type) for other in others])
        for operand in operands:
            if operand.type is not self.type:
                raise TypeError(f"{verb} of {self.type} and {operand.type}")
        return self.line.record(verb, operands, result or self.type)

    def __add__(self, other: Any) -> Value:
        return self._record("add", other)

    def __sub__(self, other: Any) -> Value:
        return self._record("sub", other)

    def __mul__(self, other: Any) -> Value:
        return self._record("mul", other)

    def __truediv__(self, other: Any) -> Value:
        return self._record("div", other)

    def __neg__(self) -> Value:
        return self.operands[0] if self.verb == "neg" else self._record("neg")

    def __abs__(self) -> Value:
        return self._record("abs")

    def __and__(self, other: Any) -> Value:
        return self._record("and", other)

    def __or__(self, other: Any) -> Value:
        return self._record("or", other)

    def __xor__(self, other: Any) -> Value:
        return self._record("xor", other)

    def __invert__(self) -> Value:
        return self._record("not")

    def __lshift__(self, count: Any) -> Value:
        return self._record("shl", count)

    def __rshift__(self, count: Any) -> Value:
        return self._record("sar", count)

    def __lt__(self, other: Any) -> Value:
        return self._record("lt", other, result=TRUTH)

    def __le__(self, other: Any) -> Value:
        return self._record("le", other, result=TRUTH)

    def __gt__(self, other: Any) -> Value:
        return self.line.enter(other, self.type) < self

    def __ge__(self, other: Any) -> Value:
        return self.line.enter(other, self.type) <= self

    def equals(self, other: Any) -> Value:
        """Return whether two numbers or integers are equal; NaN equals nothing."""
        return self._record("eq", other, result=TRUTH)

    def shr(self, count: Any) -> Value:
        """Return an integer shifted right, filled with zeros."""
        return self._record("shr", count)

    def sqrt(self) -> Value:
        """Return the square root of a number."""
        return self._record("sqrt")

    def bits(self) -> Value:
        """Return the code of a number."""
        return self._record("bits", result=BITS_OF[self.type])

    def as_number(self) -> Value:
        """Return the number with a given code."""
        return self._record("number", result=NUMBER_OF[self.type])

    def widen(self) -> Value:
        """Return a number as binary64."""
        return self if self.type is F64 else self._record("widen", result=F64)

    def narrow(self) -> Value:
        """Return a number rounded to binary32."""
        if self.verb == "widen":
            return self.operands[0]
        return self if self.type is F32 else self._record("narrow", result=F32)

    def extend(self) -> Value:
        """Return an integer extended to 64 bits."""
        return self if self.type is I64 else self._record("extend", result=I64)

    def cut(self) -> Value:
        """Return the low 32 bits of an integer."""
        return self if self.type is I32 else self._record("cut", result=I32)

    def count(self, kind: Type = I32) -> Value:
        """Return 1 where a truth value holds and 0 elsewhere, as an integer."""
        one = self._record("count", result=I32)
        return one if kind is I32 else one.extend()

    def select(self, yes: Any, no: Any) -> Value:
        """Return `yes` where a truth value holds and `no` elsewhere; both have one type."""
        kind = yes.type if isinstance(yes, Value) else no.type
        yes, no = self.line.enter(yes, kind), self.line.enter(no, kind)
        if self.type is not TRUTH or yes.type is not no.type:
            raise TypeError(f"select by {self.type} of {yes.type} and {no.type}")
        return self.line.record("select", (self, yes, no), yes.type)

    def look_up(self, table: str) -> Value:
        """Return the number of binary64 at this place of a table (`mcfsim.kernels.elementary.table_key`).

        For a place outside the table the result is unspecified.
        """
        if self.type is not I32:
            raise TypeError(f"a place in a table is an integer of 32 bits, not {self.type}")
        return self.line.record("look_up", (self,), F64, table)

    def like(self, number: float) -> Value:
        """Return a constant of this value's type."""
        return self.line.constant(number, self.type)


#: Verbs of two operands that commute, except for which NaN results.
_COMMUTE = {"add", "mul", "and", "or", "xor", "eq"}


class Line:
    """A straight line of machine operations: values in the order of recording, equal ones recorded once.

    Parameters
    ----------
    narrows : bool, optional
        Whether the machine is faster in binary32 than in binary64, so that switching pays. A vector then has
        more elements, but a NumPy call per verb on few elements costs the same.

    Attributes
    ----------
    values : list of Value
    """

    def __init__(self, *, narrows: bool = True) -> None:
        self.narrows = narrows
        self.values: list[Value] = []
        self._known: dict[Any, Value] = {}
        self._noted: dict[int, Value] = {}

    def input(self, name: str, kind: Type) -> Value:
        """Return a new input of the line, given for each element."""
        return self.record("input", (), kind, name)

    def constant(self, number: float, kind: Type) -> Value:
        """Return a constant of a type that holds it.

        Raises
        ------
        TypeError, ValueError
            If it is no number of that type.
        """
        if kind is TRUTH or isinstance(number, bool):
            raise TypeError(f"{number!r} is no constant of type {kind}")
        if kind in _INTEGERS:
            if not isinstance(number, int) or number not in _INTEGERS[kind]:
                raise ValueError(f"{number!r} is no integer of {kind.bits} bits")
            return self.record("constant", (), kind, number)
        number = float(number)
        if kind is F32 and not _is_binary32(number):
            raise ValueError(f"{number!r} is no binary32 number")
        return self.record("constant", (), kind, number)

    def enter(self, x: Any, kind: Type) -> Value:
        """Return a value unchanged, and a Python number as a constant."""
        return x if isinstance(x, Value) else self.constant(x, kind)

    def record(
        self, verb: str, operands: tuple[Value, ...], kind: Type, constant: int | float | str | None = None
    ) -> Value:
        """Record a verb and return its result; if it was recorded before, return the existing value."""
        numbers = tuple([operand.number for operand in operands])
        if verb in _COMMUTE and numbers[0] > numbers[1]:
            numbers = numbers[::-1]
        code = struct.pack("<d", constant) if isinstance(constant, float) else constant
        key = verb, numbers, kind, type(constant), code
        value = self._known.get(key)
        if value is None:
            value = self._known[key] = Value(self, len(self.values), kind, verb, operands, constant)
            self.values.append(value)
        return value

    def note(self, value: Value, verb: str, *operands: Value) -> None:
        """Note that a verb of some machines also computes a value, from values before it."""
        if value.operands and all(operand.number < value.number for operand in operands):
            self._noted[value.number] = replace(value, verb=verb, operands=operands)

    def noted(self, value: Value) -> Value | None:
        """Return a value as computed by the verb noted for it, or None if there is none."""
        return self._noted.get(value.number)

    def needed(
        self, results: tuple[Value, ...], *, hardware: bool | Collection[str] = False
    ) -> Iterator[Value]:
        """Return an iterator over the values that results need, in order.

        Parameters
        ----------
        results : tuple of Value
        hardware : bool or collection of str, optional
            Whether to use the noted verb for values that have one (`mcfsim.kernels.element.gpu_verbs`), or
            which of these verbs to use.
        """
        made = self.values
        if hardware:
            noted = {k: x for k, x in self._noted.items() if hardware is True or x.verb in hardware}
            made = [noted.get(x.number, x) for x in made]
        wanted = {result.number for result in results}
        for value in reversed(made):
            if value.number in wanted:
                wanted |= {operand.number for operand in value.operands}
        return (value for value in made if value.number in wanted)


def _is_binary32(number: float) -> bool:
    try:
        return number != number or struct.unpack("<f", struct.pack("<f", number))[0] == number
    except OverflowError:
        return False


def least(a: Value, b: Any) -> Value:
    """Return the lesser of two integers."""
    b = a.line.enter(b, a.type)
    lesser: Value = (a < b).select(a, b)
    return lesser


def greatest(a: Value, b: Any) -> Value:
    """Return the greater of two integers."""
    b = a.line.enter(b, a.type)
    greater: Value = (a < b).select(b, a)
    return greater


def recorded(function: Callable[..., Any], **kinds: Type) -> tuple[Line, tuple[Value, ...]]:
    """Run an element algorithm on inputs of given names and types; return the line and its results."""
    line = Line()
    results = function(*(line.input(name, kind) for name, kind in kinds.items()))
    return line, results if isinstance(results, tuple) else (results,)


# -- a line on arrays ----------------------------------------------------------------------------------------
DTYPES: Mapping[Type, np.dtype[Any]] = {
    F32: np.dtype(np.float32),
    F64: np.dtype(np.float64),
    I32: np.dtype(np.int32),
    I64: np.dtype(np.int64),
    TRUTH: np.dtype(np.bool_),
}


def _shr(a: Any, count: Any) -> Any:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return np.right_shift(a.view(unsigned), np.asarray(count).view(unsigned)).view(a.dtype)


VERBS: Mapping[str, Callable[..., Any]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt},
    **{"neg": np.negative, "abs": np.absolute, "lt": np.less, "le": np.less_equal, "eq": np.equal},
    **{"shl": np.left_shift, "sar": np.right_shift, "shr": _shr, "select": np.where},
}
BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}
_VIEWS, _CASTS = ("bits", "number"), ("widen", "narrow", "extend", "cut", "count")


def run(line: Line, results: tuple[Value, ...], **operands: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Execute a straight line of machine operations on arrays of one shape.

    Parameters
    ----------
    line, results
        As `recorded` returns them.
    **operands : array
        The inputs by name, each of its type's dtype.

    Raises
    ------
    TypeError
        If an operand is of another dtype.
    """
    known: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for value in line.needed(results):
            known[value.number] = carried_out(value, [known[x.number] for x in value.operands], operands)
    shape = np.broadcast_shapes(*(array.shape for array in operands.values()))
    return tuple(np.broadcast_to(known[result.number], shape) for result in results)


def carried_out(value: Value, given: Sequence[Any], operands: Mapping[str, NDArray[Any]]) -> Any:
    """Return a value, computed by its verb from the arrays of its operands."""
    dtype = DTYPES[value.type]
    if value.verb == "input":
        array = operands[str(value.constant)]
        if array.dtype != dtype:
            raise TypeError(f"{value.constant} is of {array.dtype}, not {dtype}")
        return array
    if value.verb == "constant":
        return np.array(value.constant, dtype)
    if value.verb in _VIEWS:
        return given[0].view(dtype)
    if value.verb in _CASTS:
        return given[0].astype(dtype)
    if value.verb == "look_up":
        return table_of(str(value.constant)).take(given[0], mode="clip")
    return np.asarray((BITWISE | dict(VERBS))[value.verb](*given), dtype)
