"""Counterexamples: single cases in printable form, and functions that yield known ones as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from mcfsim.formats import Format
from mcfsim.rounding import Mode, Overflow, Rounding

# -- single cases, written down ---------------------------------------------------------------------------
#: Most operands or results of a case that are printed.
SHOWN = 8


@dataclass(frozen=True)
class ShownNumber:
    """A binary64 number in hexadecimal, and in the fewest decimals that tell it from its neighbours.

    Raises
    ------
    ValueError
        If the two are not the same number in these forms.
    """

    hexadecimal: str
    decimal: str

    def __post_init__(self) -> None:
        try:
            number = float.fromhex(self.hexadecimal)
        except OverflowError as problem:
            raise ValueError(f"{self.hexadecimal!r} is no number of binary64") from problem
        if (number.hex(), repr(number)) != (self.hexadecimal, self.decimal):
            raise ValueError(f"{self.hexadecimal!r} and {self.decimal!r} are not one number")

    @classmethod
    def of(cls, x: float) -> ShownNumber:
        """Return a number in both forms."""
        return cls(float(x).hex(), repr(float(x)))

    def __float__(self) -> float:
        return float.fromhex(self.hexadecimal)

    def __str__(self) -> str:
        return self.decimal


@dataclass(frozen=True)
class Witness:
    """A case: its operands, component by component, and the results of the algorithm for them.

    Under stochastic rounding, the results of all paths follow one another.
    """

    operands: tuple[ShownNumber, ...]
    results: tuple[ShownNumber, ...]

    def __str__(self) -> str:
        return f"{_listed(self.operands)} -> {_listed(self.results)}"


def _listed(numbers: tuple[ShownNumber, ...]) -> str:
    """Return numbers in decimal; of many numbers, the first ones and how many there are."""
    shown = [str(number) for number in numbers[:SHOWN]]
    if len(numbers) > SHOWN:
        shown.append(f"... {len(numbers)} in all")
    return f"({', '.join(shown)})"


# -- known cases ------------------------------------------------------------------------------------------
#: A case: exact numbers, one for every component of the operands.
Case = tuple[Fraction, ...]
#: Yields candidates for a `mcfsim.theorems.statement.Theorem`; the first one that a format has counts.
Witnesses = Callable[[Format, Rounding], Iterable[Case]]


def power(exponent: int) -> Fraction:
    """Return ``2**exponent``."""
    return Fraction(2) ** exponent


def quantum(fmt: Format) -> int:
    """Return the exponent of the smallest subnormal number."""
    return fmt.emin - fmt.precision + 1


def scaled(case: Iterable[int | Fraction], fmt: Format, last: int) -> Iterator[Case]:
    """Yield a case as it is, then scaled so that its bit of exponent `last` is the smallest subnormal number.

    The case must refute its statement at any scale at which the format has all of its numbers.
    """
    numbers = tuple(map(Fraction, case))
    yield numbers
    yield tuple(number * power(quantum(fmt) - last) for number in numbers)


def exchanged(witnesses: Witnesses) -> Witnesses:
    """Return a function that yields the same cases with their operands reversed."""
    return lambda fmt, rounding: (case[::-1] for case in witnesses(fmt, rounding))


def shows(fmt: Format, rounding: Rounding, number: Fraction) -> bool:
    """Return whether a number is in range, or its overflow is visible because it does not saturate."""
    return number <= fmt.max or (fmt.has_nan and rounding.overflow is not Overflow.SATURATE)


def factors(a: int | Fraction, b: int | Fraction, total: int) -> Case:
    """Return a and b, each times a power of two: two equal or adjacent ones with product ``2**total``."""
    return a * power(total // 2), b * power(total - total // 2)


def nearest_to(wanted: int, low: int, high: int) -> Iterator[int]:
    """Yield the integer from low to high that is nearest to a wanted one; nothing if low > high."""
    if low <= high:
        yield min(max(wanted, low), high)


def beyond_the_gap(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield two numbers whose sum, rounded in one direction, has an error of p + 1 bits.

    With ``P = 2**(p-1)``, they are ``a = P 2**(p+1)`` and ``b = P + 1``: their sum rounded up is off by
    ``2**(p+1) - P - 1``. Rounded down, both are negated; toward zero, b is, and P + 1 replaces P in a.
    """
    p, mode = fmt.precision, rounding.mode
    half = 2 ** (p - 1)
    a, b = half << (p + 1), half + 1
    if mode is Mode.DOWN:
        a, b = -a, -b
    elif mode is Mode.TOWARD_ZERO:
        a, b = (half + 1) << (p + 1), -b
    for x, y in scaled((a, b), fmt, 0):
        if abs(x + y) <= fmt.max:
            yield x, y


def unordered(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield 1 and ``-(2**p + 2)``: in this order Fast2Sum rounds three times and is off by 1."""
    return scaled((1, -(2**fmt.precision + 2)), fmt, 0)
