"""Uniform grids: the integers of a range, optionally divided by a power of two."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from functools import cached_property

from mcfsim.checks import check_int
from mcfsim.formats.floating import Format, Parity, Specials

_INTEGERS = re.compile(r"int(\d{1,9})(_symmetric)?", re.ASCII)
_WIDEST = 32


@dataclass(frozen=True)
class Grid(Format):
    """A uniform grid: the numbers ``k * 2**-fraction_bits`` with integers ``low <= k <= high``.

    Codes are the integers k in two's complement. There is one zero, no NaN and no infinity. A finite number
    beyond either end becomes that end in every mode and under every overflow policy. A NaN or an infinity is
    NaN in a carrier and has no code.

    Parameters
    ----------
    name : str, optional
        A label, ignored by comparison and hashing.
    low, high : int
        The range, ``low <= 0 < high``.
    fraction_bits : int, optional
        f, where neighbours are ``2**-f`` apart.

    Attributes
    ----------
    precision, emin, emax : int
        Fields of the narrowest fixed-point format (one binade of floating point) that contains the grid.

    Raises
    ------
    TypeError
        If a field is of the wrong type.
    ValueError
        If the range is empty or does not contain zero.

    Examples
    --------
    >>> eights = Grid(low=-128, high=127)
    >>> eights.name, eights.bits, eights.lowest, eights.max
    ('int8', 8, Fraction(-128, 1), Fraction(127, 1))
    """

    _: KW_ONLY
    low: int
    high: int
    fraction_bits: int = 0
    precision: int = field(init=False)
    emin: int = field(init=False)
    emax: int = field(init=False)
    specials: Specials = field(init=False, default=Specials.NONE)
    signed: bool = field(init=False)
    zero: bool = field(init=False, default=True)
    parity: Parity = field(init=False, default=Parity.SIGNIFICAND)

    def __post_init__(self) -> None:
        for label in ("low", "high", "fraction_bits"):
            check_int(label, getattr(self, label))
        if not self.low <= 0 < self.high:
            raise ValueError(f"low = {self.low} and high = {self.high}: low <= 0 < high is required")
        precision = max(-self.low, self.high).bit_length()
        object.__setattr__(self, "precision", precision)
        object.__setattr__(self, "emin", precision - 1 - self.fraction_bits)
        object.__setattr__(self, "emax", self.emin)
        object.__setattr__(self, "signed", self.low < 0)
        super().__post_init__()

    def _described(self) -> str:
        whole = self.signed and (self.low, self.high) == (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1)
        range_ = f"int{self.bits}" if whole else f"integers_{self.low}_{self.high}"
        return range_ + (f"_fraction{self.fraction_bits}" if self.fraction_bits else "")

    # -- what the fields imply -------------------------------------------------------------------------
    @cached_property
    def quantum(self) -> Fraction:
        """Distance between neighbours, exactly: ``2**-fraction_bits``."""
        return Fraction(2) ** -self.fraction_bits

    @cached_property
    def bits(self) -> int:
        """Width of a code in two's complement, without a sign bit if ``low`` is zero."""
        return self.signed + max(-self.low - 1, self.high).bit_length()

    @cached_property
    def max_significand(self) -> int:
        """The largest number in units of the quantum."""
        return self.high

    @cached_property
    def lowest(self) -> Fraction:
        """Least number, exactly."""
        return self.low * self.quantum

    @cached_property
    def smallest_normal(self) -> Fraction:
        """Smallest positive number, exactly: the quantum, as no number is subnormal."""
        return self.quantum

    @property
    def has_subnormals(self) -> bool:
        """Whether there are subnormal numbers: always False."""
        return False

    @cached_property
    def has_negative_zero(self) -> bool:
        """Whether the format encodes negative zero: always False."""
        return False


def grid(name: str) -> Grid:
    """Return the grid with a given name.

    Parameters
    ----------
    name : str
        ``"intN"`` with N from 2 to 32 for ``-2**(N - 1) ... 2**(N - 1) - 1``; ``"intN_symmetric"`` without
        the least number; ``"ternary"`` for -1, 0, 1.

    Raises
    ------
    ValueError
        If no grid has this name.

    Examples
    --------
    >>> grid("int4_symmetric").low, grid("ternary").bits
    (-7, 2)
    """
    if name == "ternary":
        return Grid(name, low=-1, high=1)
    if (found := _INTEGERS.fullmatch(name)) and 2 <= (bits := int(found[1])) <= _WIDEST:
        high = 2 ** (bits - 1) - 1
        return Grid(name, low=-high if found[2] else -high - 1, high=high)
    raise ValueError(
        f"unknown grid {name!r}; known: 'ternary', and 'intN' or 'intN_symmetric' with N from 2 to {_WIDEST}"
    )
