"""Unknown numbers of p bits, and unknown roundings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mcfsim.checks.opaque import Opaque
from mcfsim.theorems.solver.linear_forms import ZERO, Formula, LinearForm, equal


@dataclass(frozen=True, eq=False)
class UnknownNumber(Opaque):
    """An unknown number of p bits with an exponent from all integers.

    Attributes
    ----------
    value : Form
        The number.
    first, last : Form
        The powers of two that its first and its last bit that is not zero stand for. Of zero, which has no
        bits, `first` is a power of two below, and `last` one above, all that anything is compared with.
    """

    value: LinearForm
    first: LinearForm
    last: LinearForm

    @staticmethod
    def unknown(name: str) -> UnknownNumber:
        """Return a number of which nothing is known yet."""
        return UnknownNumber(*(LinearForm.unknown(f"{name}{part}") for part in ("", ".first", ".last")))

    @property
    def ulp(self) -> LinearForm:
        """The unit in its last place, ``2 u first``."""
        return 2 * self.first.times_u()

    @property
    def zero(self) -> Formula:
        """Say that it is zero."""
        return equal(self.value, ZERO)

    def __neg__(self) -> UnknownNumber:
        return replace(self, value=-self.value)


def is_multiple_of_ulp(a: UnknownNumber, b: UnknownNumber) -> Formula:
    """Say that a is a multiple of ulp(b), which zero always is and has."""
    return a.zero | b.zero | (b.ulp <= a.last)


@dataclass(frozen=True, eq=False)
class RoundedSum:
    """A sum of numbers and what it is rounded to, to nearest.

    Attributes
    ----------
    result : Number
        A number of p bits that no other one is nearer to the sum than.
    terms : tuple of Number
        What is added exactly.
    own_ties : bool
        Whether ties go by the rule of the arithmetic. Otherwise they go anyhow.
    """

    result: UnknownNumber
    terms: tuple[UnknownNumber, ...]
    own_ties: bool = True

    @property
    def exact(self) -> LinearForm:
        """The sum."""
        return sum((term.value for term in self.terms), ZERO)

    @property
    def off(self) -> LinearForm:
        """What the sum has more than the result."""
        return self.exact - self.result.value
