"""Binary floating-point formats as data: a few integers from which everything else follows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Any


class Specials(StrEnum):
    """Which values a format has besides finite numbers, and where their codes lie.

    ``ieee``: infinities and NaNs fill the top exponent field. ``fn``: no infinity, NaN is the all-ones
    code of either sign. ``fnuz``: no infinity, no negative zero, NaN is the code of negative zero.
    ``none``: finite numbers only.
    """

    IEEE = "ieee"
    FN = "fn"
    FNUZ = "fnuz"
    NONE = "none"


@dataclass(frozen=True)
class Format:
    """A signed binary floating-point format with gradual underflow.

    A finite value is ``m * 2**(e - precision + 1)`` with integers ``|m| < 2**precision`` and
    ``emin <= e <= emax``; it is normal if ``|m| >= 2**(precision - 1)`` and subnormal (``e == emin``)
    otherwise.

    Parameters
    ----------
    name : str, optional
        A label. It plays no part in comparison or hashing: formats with equal fields are equal.
    precision : int
        Significand bits p, the implicit bit included; at least 2. The unit roundoff is u = 2**-p.
    emin, emax : int
        Exponents of the smallest normal number and of the largest finite number.
    specials : {"ieee", "fn", "fnuz", "none"}, optional
        Which infinities, NaNs and signed zeros exist, see `Specials`.

    Raises
    ------
    TypeError
        If a field is no integer.
    ValueError
        If a field is out of range or the specials are unknown.

    Examples
    --------
    >>> Format("mine", precision=9, emin=-62, emax=63).bits
    16
    """

    name: str = field(default="", compare=False)
    _: KW_ONLY
    precision: int
    emin: int
    emax: int
    specials: Specials = Specials.IEEE

    def __post_init__(self) -> None:
        for label in ("precision", "emin", "emax"):
            number = getattr(self, label)
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"{label} must be an int, not {number!r}")
        if self.precision < 2:
            raise ValueError(
                f"precision = {self.precision}: at least 2 bits are needed, implicit bit included"
            )
        if self.emin > self.emax:
            raise ValueError(f"emin = {self.emin} must not exceed emax = {self.emax}")
        try:
            object.__setattr__(self, "specials", Specials(self.specials))
        except ValueError:
            allowed = ", ".join(Specials)
            raise ValueError(f"unknown specials {self.specials!r}; allowed: {allowed}") from None
        if not self.name:
            tail = "" if self.specials is Specials.IEEE else f"_{self.specials}"
            object.__setattr__(self, "name", f"float_p{self.precision}_emin{self.emin}_emax{self.emax}{tail}")

    def __str__(self) -> str:
        return self.name

    # -- what the fields imply -------------------------------------------------------------------------
    @property
    def exponent_bits(self) -> int:
        """Width of the exponent field: the fewest bits that hold all exponents and the specials."""
        codes = self.emax - self.emin + 2 + (self.specials is Specials.IEEE)
        return (codes - 1).bit_length()

    @property
    def bits(self) -> int:
        """Width of a code: sign, exponent field and the precision - 1 explicit significand bits."""
        return self.exponent_bits + self.precision

    @property
    def bias(self) -> int:
        """Exponent field minus exponent of a normal number."""
        return 1 - self.emin

    @property
    def max_significand(self) -> int:
        """Integer significand of the largest finite number (``fn`` gives its topmost code to NaN)."""
        top_field = self.emax + self.bias == 2**self.exponent_bits - 1
        return (1 << self.precision) - (2 if self.specials is Specials.FN and top_field else 1)

    @property
    def max(self) -> Fraction:
        """Largest finite number, exactly."""
        return self.max_significand * Fraction(2) ** (self.emax - self.precision + 1)

    @property
    def smallest_normal(self) -> Fraction:
        """Smallest positive normal number ``2**emin``, exactly."""
        return Fraction(2) ** self.emin

    @property
    def smallest_subnormal(self) -> Fraction:
        """Smallest positive number ``2**(emin - precision + 1)``, exactly."""
        return Fraction(2) ** (self.emin - self.precision + 1)

    @property
    def unit_roundoff(self) -> Fraction:
        """The unit roundoff ``u = 2**-precision``, exactly."""
        return Fraction(1, 2**self.precision)

    @property
    def has_infinity(self) -> bool:
        """Whether the format encodes infinities."""
        return self.specials is Specials.IEEE

    @property
    def has_nan(self) -> bool:
        """Whether the format encodes NaN."""
        return self.specials is not Specials.NONE

    @property
    def has_negative_zero(self) -> bool:
        """Whether the format encodes negative zero."""
        return self.specials is not Specials.FNUZ


def _named(*formats: Format) -> Mapping[str, Format]:
    return MappingProxyType({item.name: item for item in formats})


#: Every named format, by its name in ml_dtypes or NumPy (``tf32`` has none there).
FORMATS: Mapping[str, Format] = _named(
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
    Format("float6_e3m2fn", precision=3, emin=-2, emax=4, specials=Specials.NONE),
    Format("float6_e2m3fn", precision=4, emin=0, emax=2, specials=Specials.NONE),
    Format("float4_e2m1fn", precision=2, emin=0, emax=2, specials=Specials.NONE),
)

#: Other spellings, accepted on input only: ml_dtypes' names without their prefix, and the common short names.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        **{name.split("_", 1)[1]: name for name in FORMATS if "_" in name},
        **{"bf16": "bfloat16", "fp16": "float16", "half": "float16", "binary16": "float16"},
        **{"fp32": "float32", "single": "float32", "binary32": "float32"},
        **{"fp64": "float64", "double": "float64", "binary64": "float64", "tensorfloat32": "tf32"},
    }
)

_GENERIC = re.compile(r"e(\d+)m(\d+)")


def get_format(spec: Any) -> Format:
    """Return the format that a name, an alias, a dtype or a `Format` stands for.

    Parameters
    ----------
    spec : Format or str or dtype-like
        A `Format` is returned as it is. A string is a name of `FORMATS`, an alias (``"bf16"``,
        ``"e4m3fn"``), or ``"eEmM"`` for an IEEE-like format with E exponent and M fraction bits; so
        ``"e4m3"`` is the IEEE-like one with maximum 240, not ``"e4m3fn"`` with maximum 448. A NumPy or
        ml_dtypes floating dtype or scalar type stands for the format of its name.

    Raises
    ------
    ValueError
        If no format is meant; the message lists the known names.
    """
    if isinstance(spec, Format):
        return spec
    name = str(
        spec if isinstance(spec, str) else getattr(spec, "name", None) or getattr(spec, "__name__", spec)
    )
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    if key in FORMATS:
        return FORMATS[key]
    if generic := _GENERIC.fullmatch(key):
        exponent_bits, fraction_bits = map(int, generic.groups())
        if 2 <= exponent_bits <= 30 and 1 <= fraction_bits <= 10_000:
            bias = 2 ** (exponent_bits - 1) - 1
            return Format(key, precision=fraction_bits + 1, emin=1 - bias, emax=bias)
    close = difflib.get_close_matches(key, [*FORMATS, *ALIASES], n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ValueError(
        f"unknown format {name!r}{hint}; known formats: {', '.join(FORMATS)}; "
        "or 'eEmM', as 'e6m9', for an IEEE-like one; or mcfsim.Format(precision=, emin=, emax=)"
    )


def digits(number: Fraction, precision: int) -> str:
    """Return a rational number in decimal, rounded to so many significant digits."""
    with localcontext(prec=precision, Emax=MAX_EMAX, Emin=MIN_EMIN):
        return str(Decimal(number.numerator) / Decimal(number.denominator)).lower()


def format_table(formats: Iterable[Format] | None = None) -> list[dict[str, str]]:
    """Return one row of text a format: the table that the README and ``mcfsim formats`` show.

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
            "smallest subnormal": digits(item.smallest_subnormal, 6),
            "u": f"2^-{item.precision}",
            "inf": "yes" if item.has_infinity else "no",
            "NaN": "yes" if item.has_nan else "no",
            "-0": "yes" if item.has_negative_zero else "no",
        }
        for item in (FORMATS.values() if formats is None else formats)
    ]
