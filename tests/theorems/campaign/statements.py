"""Statements as data: a straight line, hypotheses, a claim.

Nested tuples stand for expressions, so that a statement prints as what it is made of. `declared` reads them
for the verifier, `brute` for the oracle.

Exact expressions: ``("x", name)`` is an operand, components summed; ``("r", i)`` a result, zero if it is not
finite; ``("number", text)`` an integer, or another rational; ``("+", e, f)``, ``("-", e, f)``,
``("*", e, f)``, ``("times", e, n)``, ``("neg", e)``, ``("abs", e)``.

Floats: ``("head", name)``, ``("result", i)``, ``("size", u)``, or a number.

Predicates: ``("exact", op, e, f)``, ``("is", op, u, v)``, ``("zero", e)``, ``("value", e)`` (is one of the
format), ``("sum", a, b)`` (of two results), ``("finite",)``, ``("within", error, reference, bound)``,
``("not", p)``, ``("and", p, q)``, ``("or", p, q)``, and hypotheses by the names they have in the catalogue.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

Tree = tuple[Any, ...]

COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Line:
    """A straight-line algorithm.

    Attributes
    ----------
    operands : tuple
        Name and kind of each. Their components are the first registers.
    steps : tuple
        Of each operation its name and operands: numbers of registers, or constants, which are floats. The
        result is the next register.
    results : tuple of int
        The registers that are returned.
    """

    operands: tuple[tuple[str, str], ...]
    steps: tuple[Tree, ...]
    results: tuple[int, ...]

    @property
    def components(self) -> int:
        """How many registers hold operands."""
        return sum(1 if kind == "value" else 2 for _, kind in self.operands)


@dataclass(frozen=True)
class Statement:
    """A statement, and the reduction that it is declared with; a gap is one either way, at any precision."""

    line: Line
    claim: Tree
    where: tuple[Tree, ...] = ()
    scaling: str = "none"
    range: str = "bounded"
    gap: int | None = None


def operands_of(*names: str) -> tuple[tuple[str, str], ...]:
    """Return values as operands."""
    return tuple((name, "value") for name in names)
