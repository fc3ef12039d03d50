"""Named formats, families of formats, lookup by name, and a table of formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from mcfsim.checks import check_flag, check_int, nearest
from mcfsim.formats.floating import Format, Parity, Specials
from mcfsim.formats.grids import grid
from mcfsim.formats.posit import posit

_ALL = (
    Format("float64", precision=53, emin=-1022, emax=1023),
    Format("float32", precision=24, emin=-126, emax=127),
    Format("tf32", precision=11, emin=-126, emax=127),
    Format("float16", precision=11, emin=-14, emax=15),
    Format("bfloat16", precision=8, emin=-126, emax=127),
    Format("float8_e5m2", precision=3, emin=-14, emax=15),
    Format("float8_e5m2fnuz", precision=3, emin=-15, emax=15, specials=Specials.FNUZ),
    Format("float8_e4m3", precision=4, emin=-6, emax=7),
    Format("float8_e4m3fn", precision=4, emin=-6, emax=8, specials=Specials.FN),
    Format("float8_e4m3fnuz", precision=4, emin=-7, emax=7, specials=Specials.FNUZ),
    Format("float8_e4m3b11fnuz", precision=4, emin=-10, emax=4, specials=Specials.FNUZ),
    Format("float8_e3m4", precision=5, emin=-2, emax=3),
    Format(
        "float8_e8m0fnu", precision=1, emin=-127, emax=127, specials=Specials.FN, signed=False, zero=False
    ),
    Format("float6_e3m2fn", precision=3, emin=-2, emax=4, specials=Specials.NONE),
    Format("float6_e2m3fn", precision=4, emin=0, emax=2, specials=Specials.NONE),
    Format("float4_e2m1fn", precision=2, emin=0, emax=2, specials=Specials.NONE),
)
#: Every named format, by its name in ml_dtypes or NumPy (``tf32`` has none there).
FORMATS: Mapping[str, Format] = MappingProxyType({item.name: item for item in _ALL})

#: Other names, accepted on input only: ml_dtypes names without their prefix, and common short names.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        **{name.split("_", 1)[1]: name for name in FORMATS if "_" in name},
        **{"bf16": "bfloat16", "fp16": "float16", "half": "float16", "binary16": "float16"},
        **{"fp32": "float32", "single": "float32", "binary32": "float32"},
        **{"fp64": "float64", "double": "float64", "binary64": "float64", "tensorfloat32": "tf32"},
    }
)

#: Names that are no formats' names, with what they stand for, for error messages; other modules add theirs.
RELATED: dict[str, str] = {}

_IEEE_LIKE = re.compile(r"e(\d{1,9})m(\d{1,9})", re.ASCII)
_P3109 = re.compile(r"(?:binary|p3109_k)(\d{1,9})p(\d{1,9})([su]?)([ef]?)", re.ASCII)
_WIDEST, _WIDEST_EXPONENT = 10_000, 30


def p3109(bits: int, precision: int, *, signed: bool = True, extended: bool = True) -> Format:
    """Return the binary format of IEEE P3109 with K bits and precision P.

    Parameters
    ----------
    bits, precision : int
        K and P, ``1 <= P < K``, or ``1 <= P <= K`` unsigned.
    signed : bool, optional
        Whether the format is signed.
    extended : bool, optional
        Whether the format has infinities; otherwise it has finite numbers and NaN only.

    Raises
    ------
    TypeError
        If a parameter is of the wrong type.
    ValueError
        If there is no such format, or its exponent field has more than 30 bits.

    References
    ----------
    IEEE SA P3109 working group, Interim report on binary floating-point formats for machine learning.

    Examples
    --------
    >>> p3109(8, 3).max, p3109(8, 3).name
    (Fraction(49152, 1), 'binary8p3se')
    """
    for label, number in (("bits", bits), ("precision", precision)):
        check_int(label, number)
    for label, flag in (("signed", signed), ("extended", extended)):
        check_flag(label, flag)
    if not 1 <= precision <= bits - signed:
        raise ValueError(
            f"no P3109 format has {bits} bits and precision {precision}: at least 1 and at most "
            f"{bits - signed} are allowed, {'signed' if signed else 'unsigned'}"
        )
    width = bits - signed - (precision - 1)
    if width > _WIDEST_EXPONENT:
        raise ValueError(f"the exponent field of {width} bits is wider than {_WIDEST_EXPONENT}")
    bias = 2 ** (width - 1)
    # An unsigned format has NaN and, if it exists, infinity as its top codes.
    specials = Specials.NUZ if extended else Specials.FNUZ if signed else Specials.FN
    top = int(extended) if signed else 1 + extended
    whole_fields = top >> (precision - 1)
    emax = 2**width - 1 - bias - whole_fields
    name = f"binary{bits}p{precision}{'s' if signed else 'u'}{'e' if extended else 'f'}"
    if emax < 1 - bias:
        raise ValueError(f"{name} has no normal number")
    return Format(
        name,
        precision=precision,
        emin=1 - bias,
        emax=emax,
        specials=specials,
        signed=signed,
        parity=Parity.CODE,
    )


def get_format(spec: Any) -> Format:
    """Return the format given by a name, an alias, a dtype or a `Format`.

    Parameters
    ----------
    spec : Format or str or dtype-like
        A `Format` is returned as it is. A NumPy or ml_dtypes dtype or scalar type stands for the format of
        its name. A string is one of these: a name in `FORMATS`; an alias (``"bf16"``, ``"e4m3fn"``);
        ``"eEmM"`` for an IEEE-like format with E exponent and M fraction bits, so that ``"e4m3"`` is the
        IEEE-like one with maximum 240, not ``"e4m3fn"`` with maximum 448; ``"binaryKpP"`` for a format of
        IEEE P3109, followed by ``s`` or ``u`` for signed or unsigned and ``e`` or ``f`` for extended or
        finite (``se`` if left out); ``"positN"``, ``"positNesE"``, ``"posit<N>"`` or ``"posit<N,E>"`` for a
        posit of N bits with E exponent bits, by default 2; ``"intN"``, ``"intN_symmetric"`` or ``"ternary"``
        for integers.

    Raises
    ------
    ValueError
        If there is no such format, as with any name that has non-ASCII characters; the message lists the
        known names.
    """
    if isinstance(spec, Format):
        return spec
    name = str(
        spec if isinstance(spec, str) else getattr(spec, "name", None) or getattr(spec, "__name__", spec)
    )
    # Some non-ASCII letters become Latin in lower case, and int() reads non-ASCII digits.
    key = name.strip().lower() if name.isascii() else ""
    key = ALIASES.get(key, key)
    if key in FORMATS:
        return FORMATS[key]
    if generic := _IEEE_LIKE.fullmatch(key):
        exponent_bits, fraction_bits = map(int, generic.groups())
        if 2 <= exponent_bits <= _WIDEST_EXPONENT and 1 <= fraction_bits <= _WIDEST:
            bias = 2 ** (exponent_bits - 1) - 1
            return Format(key, precision=fraction_bits + 1, emin=1 - bias, emax=bias)
    with suppress(ValueError):
        return grid(key)
    if family := _P3109.fullmatch(key):
        bits, precision = map(int, family.groups()[:2])
        if bits <= _WIDEST:
            return p3109(bits, precision, signed=family[3] != "u", extended=family[4] != "f")
    if (tapered := posit(key)) is not None:
        return tapered
    if key in RELATED:
        raise ValueError(f"{name!r} is {RELATED[key]}")
    hint = ""
    if close := nearest(key, [*FORMATS, *ALIASES, *RELATED], 1):
        hint = f" (did you mean {close[0]!r}{', ' + RELATED[close[0]] if close[0] in RELATED else ''}?)"
    raise ValueError(
        f"unknown format {name!r}{hint}; known formats: {', '.join(FORMATS)}; 'eEmM', as 'e6m9', for an "
        "IEEE-like one; 'binaryKpP', as 'binary8p3', of IEEE P3109; 'positN' or 'positNesE', as 'posit16'; "
        "'intN', N from 2 to 32; or mcfsim.Format(precision=, emin=, emax=)"
    )


# -- the table --------------------------------------------------------------------------------------------
#: Powers of two from this exponent on are computed in decimal, with this many digits more than requested.
_LONG, _GUARD = 2**13, 40


def digits(number: Fraction, precision: int) -> str:
    """Return a rational number in decimal, rounded to `precision` significant digits."""
    above, below = number.numerator, number.denominator
    power = (above & -above).bit_length() - below.bit_length()
    with localcontext(prec=precision, Emax=MAX_EMAX, Emin=MIN_EMIN) as context:
        if abs(power) < _LONG or below & (below - 1):
            return str(Decimal(above) / Decimal(below)).lower()
        context.prec += _GUARD  # so long a number is no tie
        found = Decimal(above >> max(power, 0)) * Decimal(2) ** power
        context.prec = precision
        return str(+found).lower()


def format_table(formats: Iterable[Format] | None = None) -> list[dict[str, str]]:
    """Return one row of strings per format.

    Parameters
    ----------
    formats : iterable of Format, optional
        The formats; by default all of `FORMATS`.
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
