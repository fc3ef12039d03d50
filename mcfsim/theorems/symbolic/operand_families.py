"""Families of operands, written as polynomials in the unit roundoff u or in t."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

from mcfsim.theorems.symbolic.polynomial import EVERY, LEAST, Number, Polynomial, Precisions
from mcfsim.theorems.symbolic.polynomial import unit as unit


def root(over: Precisions) -> Polynomial:
    """Return ``t = 2**-n``: the square root of u for even p, and of ``2 u`` for odd p."""
    return Polynomial(((1, Fraction(1)),), over)


#: The unit roundoff ``2**-p`` of every precision p.
u = unit(EVERY)


@dataclass(frozen=True)
class Family:
    """Operands of an algorithm as functions of the precision: one case for every p.

    Called with a precision, it yields its case there, if any, as the `families` of a statement do.

    Attributes
    ----------
    operands : tuple of (str, tuple of Polynomial)
        Name and components of each operand, in the algorithm's order.
    over : Precisions
        The precisions of the polynomials.
    first : int
        The least precision at which its case is tried with a statement's other cases. The precision from
        which its results are polynomials is proved separately.
    """

    operands: tuple[tuple[str, tuple[Polynomial, ...]], ...]
    over: Precisions
    first: int = LEAST

    def __str__(self) -> str:
        inner = ((name, ", ".join(map(str, parts)), len(parts)) for name, parts in self.operands)
        return ", ".join(f"{name} = {text if count == 1 else f'({text})'}" for name, text, count in inner)

    def __call__(self, p: int) -> Iterator[tuple[Fraction, ...]]:
        """Yield the case at a precision, if there is one."""
        if p >= self.first and p in self.over:
            yield self.at(p)

    def at(self, p: int) -> tuple[Fraction, ...]:
        """Return the values of all components at a precision.

        Raises
        ------
        ValueError
            If the polynomials are not defined there.
        """
        return tuple(part.at(p) for _, parts in self.operands for part in parts)

    def structured(self, p: int | None = None) -> tuple[object, ...]:
        """Return the operands as an algorithm takes them, each a component or a tuple of components.

        They are polynomials, or fractions if a precision is given.
        """
        taken = [[part if p is None else part.at(p) for part in parts] for _, parts in self.operands]
        return tuple(parts[0] if len(parts) == 1 else tuple(parts) for parts in taken)


@dataclass(frozen=True)
class Families:
    """Several families of operands of one algorithm."""

    members: tuple[Family, ...]

    def __call__(self, p: int) -> Iterator[tuple[Fraction, ...]]:
        """Yield the cases at a precision."""
        return chain.from_iterable(member(p) for member in self.members)


def family(
    *, first: int = LEAST, **operands: Polynomial | Number | tuple[Polynomial | Number, ...]
) -> Family:
    """Make a family from polynomials.

    Parameters
    ----------
    first : int, optional
        See `Family`.
    **operands : polynomial, number, or tuple of these
        Each operand by name, in the algorithm's order: a value, or the components of a double word. All
        polynomials are over the same precisions: all, as with u, or those of one parity.

    Raises
    ------
    TypeError
        If there is no operand, or a component is not a polynomial, int, float or Fraction.
    ValueError
        If polynomials are over different precisions, or a number is not dyadic.

    Examples
    --------
    >>> from mcfsim.theorems.symbolic import family, u
    >>> one = family(x=(1 + 2 * u, u - 3 * u**2), y=(1 + 2 * u, u - u**2))
    >>> print(one)
    x = (1 + 2 u, u - 3 u^2), y = (1 + 2 u, u - u^2)
    >>> [float(number) for number in one.at(8)]
    [1.0078125, 0.0038604736328125, 1.0078125, 0.0038909912109375]
    """
    if not operands:
        raise TypeError("a family without an operand")
    tuples = {name: parts if isinstance(parts, tuple) else (parts,) for name, parts in operands.items()}
    kinds = {part.over for parts in tuples.values() for part in parts if isinstance(part, Polynomial)}
    if len(kinds) > 1:
        raise ValueError(f"a family over the precisions {' and '.join(sorted(map(str, kinds)))} at once")
    over = kinds.pop() if kinds else EVERY
    taken = (
        (name, tuple(Polynomial.from_any(part, over) for part in parts)) for name, parts in tuples.items()
    )
    return Family(tuple(taken), over, first)


def families(*members: Family) -> Families:
    """Combine several families into one object."""
    return Families(members)
