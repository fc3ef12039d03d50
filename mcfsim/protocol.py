"""The arithmetic protocol: the operations that every algorithm is written in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, Self, TypeVar, cast, runtime_checkable

from mcfsim.formats import Format
from mcfsim.random import Words
from mcfsim.rounding import Rounding

#: A number of an arithmetic: an array of carrier numbers, a scalar, an mpmath number, ...
Value = Any


class RoundedNumber(float):
    """The result of an operation on Python numbers alone: a value of its format, not rounded again.

    Parameters
    ----------
    number : float
    carrier : dtype
        The carrier of that format.
    """

    __slots__ = ("carrier",)
    carrier: Any

    def __new__(cls, number: float, carrier: Any) -> Self:
        """Return a number that knows its carrier."""
        made = super().__new__(cls, number)
        made.carrier = carrier
        return made

    def __reduce__(self) -> Any:
        return RoundedNumber, (float(self), self.carrier)


@runtime_checkable
class Arithmetic(Protocol):
    """Protocol of an arithmetic: operations that round each result once, correctly, to one format.

    Operands are values of the format, or Python numbers (float, int of any size, Fraction, Decimal, mpf). A
    Python number is a *real scalar*, and enters by the arithmetic's scalar policy:

    - ``exact``: the operation takes the real number and rounds its result once.
    - ``rounded``: the number is first rounded to the format.
    - ``float32``: the number is rounded to binary32, where the operation is carried out, to nearest even with
      the overflow and underflow of IEEE 754, and the result is rounded to the format. If operands are
      flushed, only the values among them are. Sign operations and selections take the number, rounded to
      binary32, as by ``exact``. In binary32 itself, and in formats whose carrier is binary64, this policy is
      the same as ``rounded``.

    The result of an operation on numbers alone is a value, and `round` rounds any number once. An arithmetic
    may also be given symbols in place of values and real scalars. An algorithm therefore never inspects a
    value, and at most negates a real scalar. NaN operands give NaN; infinities, signed zeros and invalid
    operations follow IEEE 754; overflow follows the rounding's policy. Elementary functions are correctly
    rounded like all other operations; their values at zeros and infinities are those of IEEE 754-2019, 9.2.

    Attributes
    ----------
    format : Format or None
        Format of the results; None if nothing is rounded.
    carrier : dtype
        The dtype of arrays of results.
    """

    @property
    def format(self) -> Format | None:
        """The format of the results."""

    @property
    def rounding(self) -> Rounding | None:
        """The rounding of the results; None if nothing is rounded."""

    @property
    def carrier(self) -> Any:
        """The dtype of arrays of results."""

    def like(self, fmt: Format, rounding: Rounding) -> Arithmetic:
        """Return an arithmetic of the same kind in another format and rounding."""

    def on_block(self, step: int, start: int) -> Arithmetic:
        """Return the arithmetic for one step on one block of an optimizer's elements, from index `start` on.

        Stochastic rounding takes the words of the step and of each element's index.
        """

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""

    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``."""

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``."""

    def sqrt(self, a: Value) -> Value:
        """Return the square root of ``a``."""

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, rounded once."""

    def neg(self, a: Value) -> Value:
        """Return ``-a``: exact for a value of the format, rounded once for a real scalar."""

    def abs(self, a: Value) -> Value:
        """Return ``|a|``: exact for a value of the format, rounded once for a real scalar."""

    def sign(self, a: Value) -> Value:
        """Return 1 or -1 by the sign of `a`, or an unchanged zero or NaN; exact if 1 and -1 are values."""

    def exp(self, a: Value) -> Value:
        """Return the exponential function of `a`."""

    def log(self, a: Value) -> Value:
        """Return the natural logarithm: NaN below zero, and minus infinity at zero."""

    def expm1(self, a: Value) -> Value:
        """Return ``exp(a) - 1``, rounded once; a zero is unchanged."""

    def log1p(self, a: Value) -> Value:
        """Return the natural logarithm of ``1 + a``, rounded once; a zero is unchanged."""

    def tanh(self, a: Value) -> Value:
        """Return the hyperbolic tangent; a zero is unchanged."""

    def erf(self, a: Value) -> Value:
        """Return the error function; a zero is unchanged."""

    def sin(self, a: Value) -> Value:
        """Return the sine of `a` in radians; a zero is unchanged, and an infinity gives NaN."""

    def cos(self, a: Value) -> Value:
        """Return the cosine of `a` in radians; an infinity gives NaN."""

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the greater of two values, exactly: NaN if either is NaN; +0 if they are +0 and -0."""

    def minimum(self, a: Value, b: Value) -> Value:
        """Return the lesser of two values, exactly: NaN if either is NaN; -0 if they are +0 and -0."""

    def choose(self, s: Value, x: Value, y: Value) -> Value:
        """Return `x` where ``s >= 0``, -0 included, `y` where ``s < 0``, and NaN where `s` is NaN; exact.

        With it an algorithm selects one of two values without a branch. The difference of two values has the
        right sign only where underflow is gradual, so `choose` is refused under flushing.
        """

    def round(self, x: Value) -> Value:
        """Round any numbers to the format of this arithmetic: the explicit conversion between formats."""

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(arithmetic, *operands, **options)``, computed in the fastest order of elements.

        The function is a branch-free sequence of the operations above. Operands and results are values or
        tuples of values. If the function returns a Python number that is no value of the format, it is
        rounded; the result of an operation is a value of that operation's format and is not rounded again.
        Options are passed to the function unchanged.
        """


class Forwarding(ABC):
    """Base class of arithmetics that carry out all operations in one method, by name; see `Arithmetic`."""

    @abstractmethod
    def _operate(self, name: str, *operands: Value) -> Any:
        """Return the result of the operation of this name."""

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``."""
        return function(self, *operands, **options)

    def _function(self, name: str, a: Value) -> Any:
        """Return the elementary function of this name."""
        return self._operate(name, a)

    def on_block(self, step: int, start: int) -> Any:
        """Return itself: the elements of a block are like any others. Arithmetics that draw override it."""
        return self

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""
        return self._operate("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""
        return self._operate("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``."""
        return self._operate("mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``."""
        return self._operate("div", a, b)

    def sqrt(self, a: Value) -> Value:
        """Return the square root of ``a``."""
        return self._operate("sqrt", a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, rounded once."""
        return self._operate("fma", a, b, c)

    def neg(self, a: Value) -> Value:
        """Return ``-a``."""
        return self._operate("neg", a)

    def abs(self, a: Value) -> Value:
        """Return ``|a|``."""
        return self._operate("abs", a)

    def sign(self, a: Value) -> Value:
        """Return 1 or -1 by the sign of `a`, or an unchanged zero or NaN."""
        return self._operate("sign", a)

    def exp(self, a: Value) -> Value:
        """Return the exponential function of `a`."""
        return self._function("exp", a)

    def log(self, a: Value) -> Value:
        """Return the natural logarithm."""
        return self._function("log", a)

    def expm1(self, a: Value) -> Value:
        """Return ``exp(a) - 1``, rounded once."""
        return self._function("expm1", a)

    def log1p(self, a: Value) -> Value:
        """Return the natural logarithm of ``1 + a``, rounded once."""
        return self._function("log1p", a)

    def tanh(self, a: Value) -> Value:
        """Return the hyperbolic tangent."""
        return self._function("tanh", a)

    def erf(self, a: Value) -> Value:
        """Return the error function."""
        return self._function("erf", a)

    def sin(self, a: Value) -> Value:
        """Return the sine."""
        return self._function("sin", a)

    def cos(self, a: Value) -> Value:
        """Return the cosine."""
        return self._function("cos", a)

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the greater of two values."""
        return self._operate("maximum", a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        """Return the lesser of two values."""
        return self._operate("minimum", a, b)

    def choose(self, s: Value, x: Value, y: Value) -> Value:
        """Return `x` where ``s >= 0``, `y` where ``s < 0``, and NaN where `s` is NaN."""
        return self._operate("choose", s, x, y)

    def round(self, x: Value) -> Value:
        """Round any numbers to the format of this arithmetic."""
        return self._operate("round", x)


class Stream(Protocol):
    """The random words of one operation, see `mcfsim.random.RandomWords`."""

    def draws(self, start: int, count: int, bits: int) -> Words:
        """Return the words of `count` indices from `start` on, with at least `bits` bits."""


class Streams(Protocol):
    """The streams of random words of an algorithm's operations."""

    def of(self, operation: int) -> Stream:
        """Return the stream of an operation, counted from 0."""


class Emulation(Arithmetic, Protocol):
    """A rounding arithmetic for one block of numbers: it has a format and a rounding."""

    @property
    def format(self) -> Format:
        """The format of the results."""

    @property
    def rounding(self) -> Rounding:
        """The rounding of the results."""

    def at(self, random: Streams | None, start: int) -> Emulation:
        """Return the arithmetic for the block from index `start` on, with the streams of its operations."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def straight_line(function: _Function) -> _Function:
    """Declare ``function(ar, *operands, **options)`` to be a branch-free sequence of operations of ``ar``.

    An arithmetic on arrays may then run the whole sequence a block of elements at a time, so that
    intermediate results stay in the cache. The undecorated function is ``function.__wrapped__``.
    """

    @wraps(function)
    def run(ar: Arithmetic, *operands: Any, **options: Any) -> Any:
        try:
            evaluate = ar.evaluate
        except AttributeError:
            given = (
                "the first argument must be an arithmetic, such as mcfsim.arithmetic('bfloat16'), "
                f"not {ar!r:.60}"
            )
            raise TypeError(given) from None
        return evaluate(function, *operands, **options)

    return cast(_Function, run)
