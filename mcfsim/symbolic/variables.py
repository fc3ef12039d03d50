"""The variables in which families are written."""

from __future__ import annotations

from fractions import Fraction

from mcfsim.symbolic.polynomial import Polynomial
from mcfsim.symbolic.precisions import EVERY, Precisions


def unit(over: Precisions) -> Polynomial:
    """Return the unit roundoff ``u = 2**-p``."""
    return Polynomial((over.unit,), over)


def root(over: Precisions) -> Polynomial:
    """Return ``t = 2**-n``: for even p the square root of u, for odd p that of 2 u."""
    return Polynomial(((1, Fraction(1)),), over)


#: The unit roundoff ``2**-p`` of every precision p.
u = unit(EVERY)
