"""Posits: formats whose precision decreases away from 1, as the exponent takes bits from the fraction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from mcfsim.checks import check_int
from mcfsim.formats.floating import Format, Specials

_NAMES = re.compile(r"posit(?:(\d{1,9})(?:es(\d{1,9}))?|<(\d{1,9})(?:,\s*(\d{1,9}))?>)", re.ASCII)
# With two bits no regime can end; codes are stored in words of 64 bits.
_FEWEST_BITS, _MOST_BITS = 3, 64
# With six exponent bits, binary64 could not even hold posits of 32 bits.
_MOST_EXPONENT_BITS = 5


@dataclass(frozen=True, init=False, repr=False)
class Posit(Format):
    """A posit format of n bits with es exponent bits.

    A code starts with the sign. The regime follows: a run of equal bits, ended by the opposite bit or by the
    end of the code. Then come es bits of exponent e and the fraction f; bits past the end of the code count
    as zeros. A run of r ones means k = r - 1, a run of r zeros means k = -r, and the value is
    ``2**(2**es k + e) (1 + f)``. The code of the negative is the two's complement. There is one zero, and one
    NaN, called NaR, whose code is the sign bit alone; there is no infinity.

    The binary floating-point format with the fields below contains every value, but most of its numbers are
    no posits.

    Parameters
    ----------
    bits : int
        n, from 3 to 64. The carriers decide for which posits there is arithmetic.
    es : int, optional
        From 0 to 5; the standard has 2 for every n.

    Attributes
    ----------
    precision : int
        Largest number of significand bits, ``max(n - 2 - es, 1)``, reached around 1. The unit roundoff is
        that of these numbers.
    emin, emax : int
        Exponents of the smallest and the largest number, ``-(n - 2) 2**es`` and its negative.

    Raises
    ------
    TypeError
        If an argument is no int.
    ValueError
        If an argument is out of range.

    References
    ----------
    Posit Working Group, Standard for Posit Arithmetic (2022). Gustafson and Yonemoto, Beating floating point
    at its own game: posit arithmetic, Supercomputing Frontiers and Innovations 4(2), 2017.

    Examples
    --------
    >>> Posit(8).name, Posit(8).max, Posit(16, es=1).name
    ('posit8', Fraction(16777216, 1), 'posit16es1')
    """

    es: int = 2

    def __init__(self, bits: int, es: int = 2) -> None:
        for label, number, fewest, most in (
            ("bits", bits, _FEWEST_BITS, _MOST_BITS),
            ("es", es, 0, _MOST_EXPONENT_BITS),
        ):
            check_int(label, number)
            if not fewest <= number <= most:
                raise ValueError(f"{label} = {number} of a posit must lie between {fewest} and {most}")
        object.__setattr__(self, "es", es)
        emax = (bits - 2) << es
        super().__init__(
            f"posit{bits}" if es == 2 else f"posit{bits}es{es}",
            precision=max(1, bits - 2 - es),
            emin=-emax,
            emax=emax,
            specials=Specials.FNUZ,
        )

    def __repr__(self) -> str:
        return f"Posit({self.bits}, es={self.es})"

    # -- what the fields imply -------------------------------------------------------------------------
    @cached_property
    def bits(self) -> int:
        """Width of a code, n."""
        return (self.emax >> self.es) + 2

    @cached_property
    def exponent_bits(self) -> int:
        """Width of the full exponent field: es, without the regime."""
        return self.es

    @property
    def bias(self) -> int:
        """Exponent field minus exponent: zero in the regime that contains 1."""
        return 0

    @cached_property
    def max_significand(self) -> int:
        """Integer significand of the largest number, which is a power of two."""
        return 1 << (self.precision - 1)

    @cached_property
    def smallest_subnormal(self) -> Fraction:
        """Smallest positive number, exactly: ``2**emin``, as no number is subnormal."""
        return self.smallest_normal

    @property
    def quire_bits(self) -> int:
        """Width of the quire, a two's complement integer in units of ``smallest_normal**2``: 16 n for es = 2.

        The quire holds every sum of fewer than 2**31 products exactly.
        """
        return 4 * self.emax + 32

    @property
    def has_subnormals(self) -> bool:
        """Whether there are subnormal numbers: always False."""
        return False


def posit(name: str) -> Posit | None:
    """Return the posit format with a given name, or None if the name is not of this form.

    Parameters
    ----------
    name : str
        ``"posit16"`` or ``"posit<16>"``, with es = 2; ``"posit16es1"`` or ``"posit<16,1>"``.

    Raises
    ------
    ValueError
        If the name has this form but no such posit format exists.
    """
    found = _NAMES.fullmatch(name)
    return Posit(*(int(number) for number in found.groups() if number)) if found else None
