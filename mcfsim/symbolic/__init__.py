"""Arithmetic whose numbers are polynomials in ``u = 2**-p``: one run of a text stands for every precision p.

Exponents are unbounded: nothing overflows or underflows. The idea is not new: Jeannerod, Louvet, Muller and
Plet, A library for symbolic floating-point arithmetic, hal-01232159, 2016.
"""

from mcfsim.symbolic.decisions import Obligation, Relation, UndecidedError
from mcfsim.symbolic.division import Quotient
from mcfsim.symbolic.operand_families import Families, Family, families, family
from mcfsim.symbolic.polynomial import Polynomial
from mcfsim.symbolic.polynomial_arithmetic import SymbolicArithmetic, SymbolicValue
from mcfsim.symbolic.precisions import EVEN, EVERY, ODD, Precisions
from mcfsim.symbolic.variables import u

__all__ = [
    "EVEN",
    "EVERY",
    "ODD",
    "Families",
    "Family",
    "Obligation",
    "Polynomial",
    "Precisions",
    "Quotient",
    "Relation",
    "SymbolicArithmetic",
    "SymbolicValue",
    "UndecidedError",
    "families",
    "family",
    "u",
]
