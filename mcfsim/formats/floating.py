"""Binary floating-point formats as data: a few integers that determine all other properties."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import Any

from mcfsim.checks import check_flag, check_int, chosen


def floor_log2(value: Fraction) -> int:
    """Return the exponent of the largest power of two that does not exceed a positive number."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if value >= Fraction(2) ** exponent else exponent - 1


class Specials(StrEnum):
    """The special values of a format: its infinities, NaNs and negative zero, and their codes.

    ``ieee``: infinities and NaNs fill the top exponent field. ``fn``: no infinity; NaN is the all-ones code
    of either sign. ``fnuz``: no infinity, no negative zero; NaN has the code of negative zero. ``nuz``: the
    topmost code of either sign is infinity; no negative zero; NaN has the code of negative zero. An unsigned
    ``nuz`` format has NaN as its topmost code and infinity just below it. ``none``: finite numbers only.
    """

    IEEE = "ieee"
    FN = "fn"
    FNUZ = "fnuz"
    NUZ = "nuz"
    NONE = "none"


class Parity(StrEnum):
    """How ties are broken in precision 1, where both neighbours have the significand 1.

    ``significand``: neither neighbour is even, and a tie goes to the larger magnitude (IEEE 754-2019, 4.3.1).
    ``code``: the last bit of the code decides which is even (IEEE P3109). With a precision of 2 or more both
    rules agree.
    """

    SIGNIFICAND = "significand"
    CODE = "code"


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with gradual underflow.

    A finite value is ``m * 2**(e - precision + 1)`` with integers ``|m| < 2**precision`` and
    ``emin <= e <= emax``; it is normal if ``|m| >= 2**(precision - 1)`` and subnormal (``e == emin``)
    otherwise.

    Parameters
    ----------
    name : str, optional
        A label, ignored by comparison and hashing: formats with equal fields are equal.
    precision : int
        Significand bits p, the implicit bit included; at least 1. The unit roundoff is u = 2**-p.
    emin, emax : int
        Exponents of the smallest normal number and of the largest finite number.
    specials : {"ieee", "fn", "fnuz", "nuz", "none"}, optional
        The infinities, NaNs and signed zeros of the format, see `Specials`.
    signed : bool, optional
        Whether there are negative numbers.
    zero : bool, optional
        Whether there are zero and subnormal numbers; if not, the smallest number is ``2**emin``.
    parity : {"significand", "code"}, optional
        Which numbers are even if the precision is 1, see `Parity`.

    Raises
    ------
    TypeError
        If a field is of the wrong type.
    ValueError
        If a field is out of range, or fields contradict each other.

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
    signed: bool = True
    zero: bool = True
    parity: Parity = Parity.SIGNIFICAND

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, not {self.name!r}")
        for label in ("precision", "emin", "emax"):
            check_int(label, getattr(self, label))
        for label in ("signed", "zero"):
            check_flag(label, getattr(self, label))
        if self.precision < 1:
            raise ValueError(f"precision = {self.precision}: at least 1 bit is needed, implicit bit included")
        if self.emin > self.emax:
            raise ValueError(f"emin = {self.emin} must not exceed emax = {self.emax}")
        for label, kind in (("specials", Specials), ("parity", Parity)):
            object.__setattr__(self, label, chosen(label, getattr(self, label), kind))
        if self.specials is Specials.IEEE and self.precision == 1:
            raise ValueError("precision = 1 has no fraction bit to tell NaN from infinity, as 'ieee' needs")
        if self.specials in (Specials.FNUZ, Specials.NUZ) and self.signed and not self.zero:
            raise ValueError(f"specials {self.specials!s} put NaN at negative zero: zero=True is needed")
        if self.specials is Specials.FNUZ and not self.signed:
            raise ValueError("specials fnuz put NaN at negative zero, which an unsigned format lacks; use fn")
        if not self.bits:
            raise ValueError("a format of one number, without sign and zero, has no code")
        if self.precision > 1:  # it makes no difference, so it must not affect equality
            object.__setattr__(self, "parity", Parity.SIGNIFICAND)
        if not self.name:
            object.__setattr__(self, "name", self._described())

    def __str__(self) -> str:
        return self.name

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: cached properties are not copied."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def _described(self) -> str:
        marks = {
            str(self.specials): self.specials is not Specials.IEEE,
            "unsigned": not self.signed,
            "nozero": not self.zero,
            "codeparity": self.parity is Parity.CODE,
        }
        tail = "".join(f"_{mark}" for mark, holds in marks.items() if holds)
        return f"float_p{self.precision}_emin{self.emin}_emax{self.emax}{tail}"

    # -- what the fields imply -------------------------------------------------------------------------
    @property
    def top_codes(self) -> int:
        """Number of top codes of each sign that infinity and NaN take; those of ``ieee`` are not counted."""
        if self.specials is Specials.NUZ:
            return 1 if self.signed else 2
        return int(self.specials is Specials.FN)

    @cached_property
    def exponent_bits(self) -> int:
        """Width of the exponent field: the fewest bits that hold all exponents and the specials."""
        codes = self.emax - self.emin + 1 + self.zero
        codes += 1 if self.specials is Specials.IEEE else self.top_codes >> (self.precision - 1)
        return (codes - 1).bit_length()

    @cached_property
    def bits(self) -> int:
        """Width of a code: sign, exponent field and the precision - 1 explicit significand bits."""
        return self.signed + self.exponent_bits + self.precision - 1

    @property
    def bias(self) -> int:
        """Exponent field minus exponent of a normal number."""
        return self.zero - self.emin

    @cached_property
    def max_significand(self) -> int:
        """Integer significand of the largest finite number; special values may share its binade."""
        top_field = self.emax + self.bias == 2**self.exponent_bits - 1
        return (1 << self.precision) - 1 - (self.top_codes if top_field else 0)

    @cached_property
    def max(self) -> Fraction:
        """Largest finite number, exactly."""
        return self.max_significand * Fraction(2) ** (self.emax - self.precision + 1)

    @cached_property
    def lowest(self) -> Fraction:
        """Least finite number, exactly: ``-max``, or zero or ``2**emin`` if the format is unsigned."""
        if self.signed:
            return -self.max
        return Fraction(0) if self.zero else self.smallest_normal

    @cached_property
    def smallest_normal(self) -> Fraction:
        """Smallest positive normal number ``2**emin``, exactly."""
        return Fraction(2) ** self.emin

    @cached_property
    def smallest_subnormal(self) -> Fraction:
        """Smallest positive number, exactly: ``2**(emin - precision + 1)``, or ``2**emin`` without zero."""
        return Fraction(2) ** (self.emin - (self.precision - 1 if self.zero else 0))

    @cached_property
    def unit_roundoff(self) -> Fraction:
        """The unit roundoff ``u = 2**-precision``, exactly."""
        return Fraction(1, 2**self.precision)

    @property
    def has_subnormals(self) -> bool:
        """Whether there are numbers between zero and the smallest normal number."""
        return self.zero and self.precision > 1

    @cached_property
    def has_infinity(self) -> bool:
        """Whether the format encodes infinities."""
        return self.specials in (Specials.IEEE, Specials.NUZ)

    @cached_property
    def has_nan(self) -> bool:
        """Whether the format encodes NaN."""
        return self.specials is not Specials.NONE

    @cached_property
    def has_negative_zero(self) -> bool:
        """Whether the format encodes negative zero."""
        return self.signed and self.zero and self.specials not in (Specials.FNUZ, Specials.NUZ)
