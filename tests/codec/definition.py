"""What codes stand for, by the definition of each kind of format, and the formats on which it is tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from mcfsim.formats import Format, Grid, Posit
from mcfsim.oracle.posits import posit_value
from tests.oracle.operands import SMALL_FORMATS, UNUSUAL_FORMATS
from tests.shared.formats import GRIDS, VARIANTS, p3109_formats

P3109_FORMATS = p3109_formats(range(2, 11))
WIDE = Format(precision=9, emin=-62, emax=63)
CUSTOM = [
    Format(precision=2, emin=-1, emax=1),
    Format(precision=5, emin=-1000, emax=-990),
    *(Format(precision=3, emin=-6, emax=4, specials=specials) for specials in ("fn", "fnuz", "none")),
]
POSITS = [Posit(bits, es) for bits in (3, 4, 6, 8, 11) for es in (0, 1, 2, 3)] + [Posit(17)]
MORE_GRIDS = [
    *GRIDS,
    Grid(low=-5, high=9, fraction_bits=2),
    Grid(low=0, high=5, fraction_bits=-3),
    Grid(low=-(2**16), high=2**16 - 1),  # decoded without a table
]
DEFINED = [*SMALL_FORMATS, *UNUSUAL_FORMATS, *CUSTOM, WIDE, *VARIANTS, *P3109_FORMATS, *POSITS, *MORE_GRIDS]


def value_of(code: int, fmt: Format) -> float | None:
    """Return what a code stands for, or None for nothing.

    Of a floating-point format the sign lies on top, then the exponent field, then the fraction. Fields count
    from emin, those of formats with zero from emin - 1, which is the field of the subnormal numbers.
    """
    if isinstance(fmt, Posit):
        exact = posit_value(code, fmt)
        return math.nan if exact is None else float(exact)
    if isinstance(fmt, Grid):
        k = code - 2**fmt.bits if fmt.low < 0 and code >= 2 ** (fmt.bits - 1) else code
        return float(k * fmt.quantum) if fmt.low <= k <= fmt.high else None
    magnitude_bits = fmt.bits - fmt.signed
    negative, magnitude = divmod(code, 2**magnitude_bits)
    sign, top = 1 - 2 * negative, 2**magnitude_bits - 1
    field, fraction = divmod(magnitude, 2 ** (fmt.precision - 1))
    match fmt.specials, fmt.signed:
        case "ieee", _ if field == top >> (fmt.precision - 1):
            return math.nan if fraction else sign * math.inf
        case "fn", _ if magnitude == top:
            return math.nan
        case "nuz", True if magnitude == top:
            return sign * math.inf
        case "nuz", False if magnitude >= top - 1:
            return math.nan if magnitude == top else math.inf
        case (("nuz" | "fnuz"), True) if (negative, magnitude) == (1, 0):
            return math.nan
    if fmt.zero and field == 0:
        exponent, significand = fmt.emin, Fraction(fraction)
    else:
        exponent, significand = fmt.emin + field - fmt.zero, Fraction(2 ** (fmt.precision - 1) + fraction)
    if exponent > fmt.emax:
        return None
    value = float(significand * Fraction(2) ** (exponent - fmt.precision + 1))
    return -value if negative else value


def values_of(fmt: Format) -> Sequence[float | None]:
    """Return what all codes stand for."""
    return [value_of(code, fmt) for code in range(2**fmt.bits)]
