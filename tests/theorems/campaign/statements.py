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
    """A straight-line algorithm on registers, of which the first ones are the components of operands."""

    #: Name and kind of each.
    operands: tuple[tuple[str, str], ...]
    #: Of each its name, and registers, or constants, which are floats. The result is the next register.
    steps: tuple[Tree, ...]
    #: The registers that are returned.
    results: tuple[int, ...]


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
