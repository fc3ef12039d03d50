"""Stand-ins: numbers of a carrier with which products and sums round as with a real scalar.

A real number s is seldom a number of the carrier, and its product with x then is none that a processor gives.
But a format of p bits does not see all of s. The product's rounding, in any mode, follows from where x s lies
among the numbers of p + 1 bits, and so from where s lies among their quotients by numbers of p bits. Between
two neighbours of these there is room for numbers of the carrier, and one of them acts on every value of the
format like s itself, rounded by the carrier and then into the format. `docs/stand_ins.md` has the theorem.

Of sums with a scalar no such theorem is known. What acts on every value of the format like the scalar is
found by trial of all values that can tell.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.kernels import residuals
from mcfsim.kernels.carriers import FLOAT64, holds
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow

_NEAREST = (Mode.NEAREST_EVEN, Mode.NEAREST_AWAY)
#: For sums: precisions whose values are tried, and how far out a scalar may lie, as a power of two.
_TRIED, _FAR = 12, 100


def stand_in(
    operation: str,
    position: int,
    scalar: float | Fraction,
    fmt: Format,
    rounding: Rounding,
    carrier: np.dtype[Any],
) -> float | None:
    """Return what stands for a real scalar beside a value in an operation, or None if nothing does.

    Parameters
    ----------
    operation : str
        A quotient by a scalar is a product with what stands for it.
    position : {0, 1}
        Of the scalar among the operands.
    scalar, fmt, rounding, carrier
        As for `factor_for`.
    """
    if operation in ("add", "sub"):  # what has one rounds to nearest, where signs do not matter
        return addend_for(scalar, fmt, rounding, carrier)
    if operation == "mul":
        return factor_for(scalar, fmt, rounding, carrier)
    if operation == "div" and position == 1:
        return factor_for(scalar, fmt, rounding, carrier, reciprocal=True)
    return None


@lru_cache(maxsize=4096)
def factor_for(
    scalar: float | Fraction,
    fmt: Format,
    rounding: Rounding,
    carrier: np.dtype[Any],
    *,
    reciprocal: bool = False,
) -> float | None:
    """Return what multiplies every value of a format as a real number does, when rounded into the format.

    Parameters
    ----------
    scalar : float or Fraction
        The real number.
    fmt : Format
        Of operands and results.
    rounding : Rounding
        Of the results; operands that are flushed have been.
    carrier : dtype
        In which the product is made, rounded to nearest even, before it is rounded into the format.
    reciprocal : bool, optional
        Whether to stand for ``1 / scalar``, so that the product stands for a quotient.

    Returns
    -------
    float or None
        A normal number of the carrier; None where none is known. For NaN, infinity and zero there is none.
    """
    regular = type(fmt) is Format and not rounding.stochastic and holds(carrier, fmt)
    if not regular or rounding.underflow is Underflow.FLUSH_AFTER or not scalar or scalar - scalar != 0:
        return None
    exact = abs(1 / Fraction(scalar) if reciprocal else Fraction(scalar))
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    exponent -= exact < Fraction(2) ** exponent
    bits = np.finfo(carrier).nmant + 1
    significand = _central(exact / Fraction(2) ** exponent, fmt.precision, bits)
    lowest, highest = int(np.finfo(carrier).minexp), int(np.finfo(carrier).maxexp) - 1
    if significand is None or not lowest <= exponent <= highest:
        return None
    chosen = Fraction(significand) * Fraction(2) ** exponent
    # An overflow of the carrier looks like an infinite operand, which is never made finite.
    overflows = rounding.mode in _NEAREST and rounding.overflow is Overflow.IEEE and fmt.has_nan
    if not overflows and fmt.max * chosen >= Fraction(2) ** highest:
        return None
    if not _bears_underflow(chosen, exact, fmt, rounding, carrier):
        return None
    return math.copysign(float(chosen), scalar)


@lru_cache(maxsize=1024)
def addend_for(
    scalar: float | Fraction, fmt: Format, rounding: Rounding, carrier: np.dtype[Any]
) -> float | None:
    """Return what added to any value of a format gives the sum with a real number, when rounded into it.

    Parameters
    ----------
    scalar, fmt, rounding, carrier
        As for `factor_for`; only nearest modes have addends that do.

    Returns
    -------
    float or None
        A normal number of the carrier; None where none is known.
    """
    regular = type(fmt) is Format and fmt.signed and fmt.zero and fmt.has_nan and holds(carrier, fmt)
    regular = regular and fmt.precision <= _TRIED
    nearest = rounding.mode in _NEAREST and rounding.overflow is Overflow.IEEE
    if not regular or not nearest or rounding.underflow not in (Underflow.GRADUAL, Underflow.FLUSH_INPUTS):
        return None
    if isinstance(scalar, Fraction) or not 2.0**-_FAR <= abs(scalar) <= 2.0**_FAR:
        return None
    info = np.finfo(carrier)
    chosen = carrier.type(scalar)
    if not info.tiny <= abs(chosen) <= info.max / 4:
        return None
    policy = replace(rounding, underflow=Underflow.GRADUAL)
    values, least = _that_tell(fmt, math.frexp(scalar)[1] - 1, info.nmant + 1)
    exactly = residuals.make_odd(*residuals.add(values, np.array([scalar])))
    get_kernel(fmt, policy, FLOAT64)(exactly, exactly)
    kernel = get_kernel(fmt, policy, carrier)
    for candidate in (chosen, *(np.nextafter(chosen, carrier.type(end)) for end in (0, 2 * scalar))):
        found = values[: len(values) - 2].astype(carrier) + candidate
        alone = np.array([candidate])
        kernel(found, found)
        kernel(alone, alone)
        beside = exactly[-2:] if least else alone
        if _same(found, exactly[:-2]) and (beside == alone).all():
            return float(candidate)
    return None


def _same(a: NDArray[Any], b: NDArray[np.float64]) -> bool:
    return bool((a == b).all() and (np.signbit(a) == np.signbit(b)).all())


def _that_tell(fmt: Format, exponent: int, bits: int) -> tuple[NDArray[np.float64], bool]:
    """Return the values whose sums with a number of an exponent must be tried, and two numbers at the end.

    A value larger by p + 3 binades stays as it is. Values so small that the carrier returns the number as it
    is are stood for by the two numbers, one of each sign: sums are monotone. They do not matter where the
    format has no such value.
    """
    p = fmt.precision
    low, high = exponent - bits - 2, exponent + p + 3
    quantum = fmt.emin - p + 1
    significands = np.arange(2.0 ** (p - 1), 2.0**p)
    exponents = np.arange(max(low, fmt.emin), min(high, fmt.emax) + 1)
    values = np.multiply.outer(2.0 ** (exponents - p + 1.0), significands).reshape(-1)
    if low < fmt.emin:
        values = np.concatenate([np.arange(0, 2.0 ** (p - 1)) * 2.0**quantum, values])
    values = values[values <= float(fmt.max)]
    edge = 2.0**low
    return np.concatenate([values, -values if fmt.signed else values[:0], [edge, -edge]]), quantum <= low


def _central(s: Fraction, precision: int, bits: int) -> float | None:
    """Return a number of so many bits that lies among the boundaries where s does, and at a distance.

    Boundaries are the fractions with denominators up to ``2**(p + 1)``. If the carrier rounds, no product
    reaches one, of which ``2**-bits`` is the share that must lie between.
    """
    if s.denominator & (s.denominator - 1) == 0 and s.numerator.bit_length() + precision <= bits:
        return float(s)  # all products are exact
    most = 2 ** (precision + 1)
    if s.denominator <= most:
        return None
    below, above = neighbours(s, most)
    share = Fraction(1, 2**bits)
    below, above = below * (1 + share), above * (1 - share)
    middle = float((below + above) / 2)
    middle = middle if bits == 53 else float(np.float32(middle))
    return middle if below < middle < above and 1 <= middle < 2 else None


def neighbours(s: Fraction, most: int) -> tuple[Fraction, Fraction]:
    """Return the fractions next below and above s > 0 with denominators up to a number that its own exceeds.

    The last convergent of the continued fraction of s whose denominator is allowed is one, and the last
    intermediate fraction after it the other (Khinchin, Continued Fractions, 1964, section 6).
    """
    before, last = (0, 1), (1, 0)
    n, d = s.numerator, s.denominator
    while True:
        quotient, rest = divmod(n, d)
        further = before[0] + quotient * last[0], before[1] + quotient * last[1]
        if further[1] > most:
            break
        before, last, n, d = last, further, d, rest
    steps = (most - before[1]) // last[1]
    ends = Fraction(*last), Fraction(before[0] + steps * last[0], before[1] + steps * last[1])
    return min(ends), max(ends)


def _bears_underflow(
    chosen: Fraction, exact: Fraction, fmt: Format, rounding: Rounding, carrier: np.dtype[Any]
) -> bool:
    """Return whether products that the carrier rounds to fewer bits still round as they ought.

    In units of half the format's quantum boundaries are the integers, those of nearest modes the odd ones.
    """
    info = np.finfo(carrier)
    quantum = fmt.emin - fmt.precision + 1
    fineness = quantum - (int(info.minexp) - info.nmant)  # the carrier's quantum: so many bits below
    normal = int(info.minexp) - quantum + 1  # the carrier's least normal number, as a power of two
    nearest = rounding.mode in _NEAREST and fmt.zero
    if normal < 0:  # below it is zero alone
        return nearest or chosen * 2**fineness > Fraction(1, 2)
    if carrier == FLOAT64:
        return False
    limit, factor = 2.0**normal + 1, 2 * float(chosen)
    integers = np.arange(1, 2**fmt.precision, dtype=np.float64)
    doublings = max(0, math.ceil(math.log2(limit / factor)) - fmt.precision + 2)
    large = integers[len(integers) // 2 :]
    powers = 2.0 ** np.arange(1, doublings + 1)
    products = factor * np.concatenate([integers, np.multiply.outer(powers, large).reshape(-1)])
    products = products[products < limit]
    boundary = np.rint(products)
    if nearest:
        odd = boundary % 2 == 1
        products, boundary = products[odd], boundary[odd]
    distance = np.abs(products - boundary)
    apart = distance > 2.0**-fineness
    return bool((apart | (distance == 0)).all() if chosen == exact else apart.all())
