"""Arithmetic on polynomials in ``u = 2**-p``: one run of an algorithm covers every precision p.

Exponents are unbounded: nothing overflows or underflows. Leading terms only propose a result; obligations,
each decided exactly (`decisions`), prove it. The idea is not new: Jeannerod, Louvet, Muller and Plet, A
library for symbolic floating-point arithmetic, hal-01232159, 2016. Begin with `polynomial_arithmetic`.
"""

from mcfsim.theorems.symbolic.decisions import Obligation, Quotient, Relation, UndecidedError
from mcfsim.theorems.symbolic.operand_families import Families, Family, families, family, u
from mcfsim.theorems.symbolic.polynomial import EVEN, EVERY, ODD, Polynomial, Precisions
from mcfsim.theorems.symbolic.polynomial_arithmetic import SymbolicArithmetic, SymbolicValue

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
