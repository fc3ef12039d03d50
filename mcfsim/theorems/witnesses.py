"""Counterexamples as data: operands that refute a false statement in every format that has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

from mcfsim.formats import Format
from mcfsim.rounding import Mode, Overflow, Rounding

#: A case: exact numbers, one for every component of the operands.
Case = tuple[Fraction, ...]
#: What a `mcfsim.theorems.statement.Theorem` takes: candidates, of which the first counts that a format has.
Witnesses = Callable[[Format, Rounding], Iterable[Case]]


def power(exponent: int) -> Fraction:
    """Return ``2**exponent``."""
    return Fraction(2) ** exponent


def quantum(fmt: Format) -> int:
    """Return the exponent of the smallest subnormal number."""
    return fmt.emin - fmt.precision + 1


def scaled(case: Iterable[int | Fraction], fmt: Format, last: int) -> Iterator[Case]:
    """Yield a case as it is, and so that the bit of exponent `last` becomes the smallest subnormal number.

    It must refute a statement at any scale, as long as the format has all of its numbers.
    """
    numbers = tuple(map(Fraction, case))
    yield numbers
    yield tuple(number * power(quantum(fmt) - last) for number in numbers)


def exchanged(witnesses: Witnesses) -> Witnesses:
    """Return the same cases, operands in the opposite order."""
    return lambda fmt, rounding: (case[::-1] for case in witnesses(fmt, rounding))


def shows(fmt: Format, rounding: Rounding, number: Fraction) -> bool:
    """Return whether a number is in range, or else its overflow is seen: it does not saturate."""
    return number <= fmt.max or (fmt.has_nan and rounding.overflow is not Overflow.SATURATE)


def halves(total: int) -> tuple[int, int]:
    """Return two exponents that add up to a given one, as near to each other as can be."""
    return total // 2, total - total // 2


def nearest_to(wanted: int, low: int, high: int) -> Iterator[int]:
    """Yield the integer from low to high that is nearest to a wanted one, if there is any."""
    if low <= high:
        yield min(max(wanted, low), high)


def beyond_the_gap(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield two numbers whose sum, rounded in one direction, has an error of p + 1 bits.

    Of ``P = 2**(p-1)`` it is ``a = P 2**(p+1)`` and ``b = P + 1``: a sum that is rounded up is off by
    ``2**(p+1) - P - 1``. If it is rounded down, both are negative; if toward zero, b is, and a is odd.
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
    """Yield 1 and ``-(2**p + 2)``: Fast2Sum in this order rounds three times, and is off by 1."""
    return scaled((1, -(2**fmt.precision + 2)), fmt, 0)
