"""The precisions that a polynomial speaks of: all, or those of one residue."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mcfsim.checks.arguments import check_int

#: The least precision of a format.
LEAST = 2


@dataclass(frozen=True)
class Precisions:
    """The precisions ``p = step * n + rest`` for integers n, of which polynomials in ``t = 2**-n`` speak.

    Parameters
    ----------
    step : int, optional
        1: every precision, and t is u. 2: those of one parity, and ``u = 2**-rest * t**2``, so that powers
        of t are those of the square root of u.
    rest : int, optional
        From 0 to ``step - 1``.

    Raises
    ------
    TypeError, ValueError
        If either is no int, or out of range.
    """

    step: int = 1
    rest: int = 0

    def __post_init__(self) -> None:
        check_int("step", self.step)
        check_int("rest", self.rest)
        if not 1 <= self.step <= 8 or not 0 <= self.rest < self.step:
            raise ValueError(f"precisions {self.step} n + {self.rest}: allowed: 1 <= step <= 8, rest < step")

    def __str__(self) -> str:
        if self.step == 1:
            return "p"
        return f"{self.step} n + {self.rest}" if self.rest else f"{self.step} n"

    @property
    def least(self) -> int:
        """The least n whose precision a format can have."""
        return -((self.rest - LEAST) // self.step)

    def precision(self, n: int) -> int:
        """Return p of an n."""
        return self.step * n + self.rest

    def index(self, p: int) -> int:
        """Return n of a p.

        Raises
        ------
        ValueError
            If p is none of these precisions.
        """
        if p not in self:
            raise ValueError(f"p = {p} is none of the precisions {self}")
        return (p - self.rest) // self.step

    def __contains__(self, p: int) -> bool:
        return p % self.step == self.rest

    @property
    def unit(self) -> tuple[int, Fraction]:
        """The unit roundoff u as a power of t and its coefficient."""
        return self.step, Fraction(1, 2**self.rest)


#: Every precision, and those of one parity.
EVERY, EVEN, ODD = Precisions(), Precisions(2), Precisions(2, 1)
