"""Stand-ins: carrier numbers that replace real scalars in products and sums without changing the results.

A real number s is seldom a number of the carrier, and then no processor computes its product with x directly.
But a format of p bits does not see all of s. The product's rounding, in any mode, depends on where x s lies
among the numbers of p + 1 bits, and so on where s lies among their quotients by numbers of p bits. Between
two neighbouring quotients there is room for numbers of the carrier. The product of one of them with any value
of the format, rounded by the carrier and then into the format, equals the rounded product with s
(`stand_ins.md` has the theorem).

For sums with a scalar no such theorem is known. Their stand-ins are found by trial of all values that matter.
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
from mcfsim.formats.floating import floor_log2
from mcfsim.kernels import native
from mcfsim.kernels.blocks import get_kernel
from mcfsim.kernels.carriers import FLOAT64, holds
from mcfsim.rounding import NEAREST, Overflow, Rounding, Underflow

#: For sums: the largest precision whose values are tried, and the largest exponent of a scalar.
_TRIED, _FAR = 12, 100


def stand_in(
    operation: str,
    position: int,
    scalar: float | Fraction,
    fmt: Format,
    rounding: Rounding,
    carrier: np.dtype[Any],
) -> float | None:
    """Return the stand-in of a real scalar beside a value in an operation, or None if there is none.

    Parameters
    ----------
    operation : str
        A quotient by a scalar becomes a product with its stand-in.
    position : {0, 1}
        The position of the scalar among the operands.
    scalar, fmt, rounding, carrier
        As for `factor_for`.
    """
    if operation in ("add", "sub"):  # only nearest modes have stand-ins, and there signs do not matter
        return addend_for(scalar, fmt, rounding, carrier)
    if operation == "mul" or (operation == "div" and position == 1):
        return factor_for(scalar, fmt, rounding, carrier, reciprocal=operation == "div")
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
    """Return a number whose rounded products with all values of a format equal those with a real number.

    Parameters
    ----------
    scalar : float or Fraction
        The real number.
    fmt : Format
        The format of operands and results.
    rounding : Rounding
        The rounding of the results; if operands are flushed, they have been already.
    carrier : dtype
        Computes the product, rounded to nearest even, before it is rounded into the format.
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
    exponent = floor_log2(exact)
    bits = np.finfo(carrier).nmant + 1
    significand = _central(exact / Fraction(2) ** exponent, fmt.precision, bits)
    lowest, highest = int(np.finfo(carrier).minexp), int(np.finfo(carrier).maxexp) - 1
    if significand is None or not lowest <= exponent <= highest:
        return None
    chosen = Fraction(significand) * Fraction(2) ** exponent
    # An overflow of the carrier looks like an infinite operand, which is never made finite.
    overflows = rounding.mode in NEAREST and rounding.overflow is Overflow.IEEE and fmt.has_nan
    if not overflows and fmt.max * chosen >= Fraction(2) ** highest:
        return None
    if not _bears_underflow(chosen, exact, fmt, rounding, carrier):
        return None
    return math.copysign(float(chosen), scalar)


@lru_cache(maxsize=1024)
def addend_for(
    scalar: float | Fraction, fmt: Format, rounding: Rounding, carrier: np.dtype[Any]
) -> float | None:
    """Return a number whose rounded sums with all values of a format equal those with a real number.

    Parameters
    ----------
    scalar, fmt, rounding, carrier
        As for `factor_for`; only nearest modes have such addends.

    Returns
    -------
    float or None
        A normal number of the carrier; None where none is known.
    """
    regular = type(fmt) is Format and fmt.signed and fmt.zero and fmt.has_nan and holds(carrier, fmt)
    regular = regular and fmt.precision <= _TRIED
    nearest = rounding.mode in NEAREST and rounding.overflow is Overflow.IEEE
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
    exactly = native.make_odd(*native.add(values, np.array([scalar])))
    get_kernel(fmt, policy, FLOAT64)(exactly, exactly)
    kernel = get_kernel(fmt, policy, carrier)
    for candidate in (chosen, *(np.nextafter(chosen, carrier.type(end)) for end in (0, 2 * scalar))):
        found = values[: len(values) - 2].astype(carrier) + candidate
        alone = np.array([candidate])
        kernel(found, found)
        kernel(alone, alone)
        beside = exactly[-2:] if least else alone
        same = (found == exactly[:-2]) & (np.signbit(found) == np.signbit(exactly[:-2]))
        if same.all() and (beside == alone).all():
            return float(candidate)
    return None


def _that_tell(fmt: Format, exponent: int, bits: int) -> tuple[NDArray[np.float64], bool]:
    """Return values to try in sums with a number of an exponent, then two more; and whether those matter.

    A sum with a value larger by p + 3 binades is that value. A sum with a very small value is the number
    itself in the carrier. The last two numbers, one of each sign, stand for these small values, as sums are
    monotone. They matter only if the format has such a value.
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
    """Return a number of `bits` bits between the same boundaries as s and away from them, or None.

    Boundaries are the fractions with denominators up to ``2**(p + 1)``. So that no product rounded by the
    carrier reaches a boundary, the number's relative distance from boundaries must exceed ``2**-bits``.
    """
    if s.denominator & (s.denominator - 1) == 0 and s.numerator.bit_length() + precision <= bits:
        return float(s)  # all products are exact
    most = 2 ** (precision + 1)
    if s.denominator <= most:
        return None
    (a, b), (c, d) = (end.as_integer_ratio() for end in neighbours(s, most))
    a, b, c, d = a * (2**bits + 1), b << bits, c * (2**bits - 1), d << bits
    middle = (a * d + c * b) / (2 * b * d)  # of integers, and so rounded once
    middle = middle if bits == 53 else float(np.float32(middle))
    m, unit = middle.as_integer_ratio()
    return middle if a * unit < m * b and m * d < c * unit and 1 <= middle < 2 else None


def neighbours(s: Fraction, most: int) -> tuple[Fraction, Fraction]:
    """Return the nearest fractions below and above s > 0 whose denominators are at most `most`.

    The denominator of s must exceed `most`. One fraction is the last convergent of the continued fraction of
    s whose denominator is allowed, the other the last intermediate fraction after it (Khinchin, Continued
    Fractions, 1964, section 6). For speed one loop on integers finds both: each step of an optimizer has its
    own scalars.
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
    """Return whether products in the carrier's subnormal range, with fewer bits, still round correctly.

    In units of half the format's quantum, boundaries are the integers, and in nearest modes the odd ones.
    """
    info = np.finfo(carrier)
    quantum = fmt.emin - fmt.precision + 1
    fineness = quantum - (int(info.minexp) - info.nmant)  # how many bits the carrier's quantum is below
    normal = int(info.minexp) - quantum + 1  # the exponent of the carrier's least normal number there
    nearest = rounding.mode in NEAREST and fmt.zero
    if normal < 0:  # below it the only boundary is zero
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
