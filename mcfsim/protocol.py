"""The one interface that every algorithm is written against."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, Self, TypeVar, cast, runtime_checkable

from mcfsim.formats import Format
from mcfsim.random import Words
from mcfsim.rounding import Rounding

#: A number of an arithmetic: an array of carrier numbers, a scalar, an mpmath number, ...
Value = Any


class RoundedNumber(float):
    """A number that an operation made of numbers alone: a value of its format, which is rounded no more.

    Parameters
    ----------
    number : float
    carrier : dtype
        Of that format.
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
    """Operations that round each result once, correctly, into one format.

    Operands are values of the format, or Python numbers (float, int of any size, Fraction, Decimal, mpf): a
    Python number is a *real scalar*, which enters by the arithmetic's scalar policy (``exact``: the operation
    takes the real number and rounds its result once; ``rounded``: the number is rounded into the format
    first). An arithmetic may also take symbols for either: a text asks of a value nothing, and of a real
    scalar at most its negative. NaN operands give NaN; infinities, signed zeros and invalid operations follow
    IEEE 754; overflow follows the rounding's policy.

    Attributes
    ----------
    format : Format or None
        Where results are rounded; None if nothing is rounded.
    carrier : dtype
        Of arrays of results.
    """

    @property
    def format(self) -> Format | None:
        """The format of the results."""

    @property
    def rounding(self) -> Rounding | None:
        """How they are rounded; None if nothing is."""

    @property
    def carrier(self) -> Any:
        """The dtype of arrays of results."""

    def like(self, fmt: Format, rounding: Rounding) -> Arithmetic:
        """Return an arithmetic of the same kind in another format and rounding."""

    def on_block(self, step: int, start: int) -> Arithmetic:
        """Return the arithmetic for one block of an optimizer's elements, from index `start` on, in a step.

        Where rounding is stochastic, the words are those of the step and of each element's index.
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
        """Return ``-a``: exact for a value of the format, a real scalar's rounded once."""

    def abs(self, a: Value) -> Value:
        """Return ``|a|``: exact for a value of the format, a real scalar's rounded once."""

    def sign(self, a: Value) -> Value:
        """Return 1 or -1 by the sign of `a`, and a zero or NaN as it is: exact, where 1 and -1 are values."""

    def round(self, x: Value) -> Value:
        """Round numbers from anywhere into this arithmetic: the explicit crossing between formats."""

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(arithmetic, *operands, **options)``, in whatever order of elements is fastest.

        The function is a branch-free sequence of the operations above; operands are values or tuples of
        them, and so are the results. A Python number among these that is no value of the format is rounded,
        but for one that an operation made: that is a value of the operation's own format, and stays.
        Options are no operands: they reach the function as they are.
        """


class Stream(Protocol):
    """The random words of an operation, see `mcfsim.random.RandomWords`."""

    def draws(self, start: int, count: int, bits: int) -> Words:
        """Return the words of some indices."""


class Streams(Protocol):
    """Where the operations of an algorithm find their random words."""

    def of(self, operation: int) -> Stream:
        """Return the stream of an operation, counted from 0."""


class Emulation(Arithmetic, Protocol):
    """An arithmetic that rounds, for one block of numbers: its format and rounding are known."""

    @property
    def format(self) -> Format:
        """The format of the results."""

    @property
    def rounding(self) -> Rounding:
        """How they are rounded."""

    def at(self, random: Streams | None, start: int) -> Emulation:
        """Return the arithmetic for the block that begins with an element, and its operations' streams."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def straight_line(function: _Function) -> _Function:
    """Declare ``function(ar, *operands, **options)`` to be a branch-free sequence of operations of ``ar``.

    An arithmetic on arrays may then run the whole sequence a block of elements at a time, so that no
    intermediate result leaves the cache. The bare text stays at ``function.__wrapped__``.
    """

    @wraps(function)
    def run(ar: Arithmetic, *operands: Any, **options: Any) -> Any:
        return ar.evaluate(function, *operands, **options)

    return cast(_Function, run)
