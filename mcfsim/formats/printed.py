"""The table of formats that the README, the documentation and ``mcfsim formats`` show."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction

from mcfsim.formats.floating import Format
from mcfsim.formats.named import FORMATS


def digits(number: Fraction, precision: int) -> str:
    """Return a rational number in decimal, rounded to so many significant digits."""
    with localcontext(prec=precision, Emax=MAX_EMAX, Emin=MIN_EMIN):
        return str(Decimal(number.numerator) / Decimal(number.denominator)).lower()


def format_table(formats: Iterable[Format] | None = None) -> list[dict[str, str]]:
    """Return one row of text a format.

    Parameters
    ----------
    formats : iterable of Format, optional
        Default: all of `FORMATS`.
    """
    return [
        {
            "format": item.name,
            "bits": str(item.bits),
            "p": str(item.precision),
            "emin": str(item.emin),
            "emax": str(item.emax),
            "max": digits(item.max, 6),
            "smallest normal": digits(item.smallest_normal, 6),
            "smallest subnormal": digits(item.smallest_subnormal, 6) if item.has_subnormals else "none",
            "u": f"2^-{item.precision}",
            "inf": "yes" if item.has_infinity else "no",
            "NaN": "yes" if item.has_nan else "no",
            "-0": "yes" if item.has_negative_zero else "no" if item.zero else "no zero",
        }
        for item in (FORMATS.values() if formats is None else formats)
    ]
