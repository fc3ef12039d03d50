"""Families of operands as data: one polynomial for every component of every operand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from mcfsim.symbolic.polynomial import Number, Polynomial
from mcfsim.symbolic.precisions import EVERY, LEAST, Precisions


@dataclass(frozen=True)
class Family:
    """Operands of an algorithm, one case for every precision.

    Called with a precision it yields its case there, if it has one, which is what a statement's `families`
    do.

    Attributes
    ----------
    operands : tuple of (str, tuple of Polynomial)
        Name and components of each operand, in the order of the algorithm's.
    over : Precisions
        The precisions that the polynomials are over.
    first : int
        The least precision at which its case is tried with a statement's other cases. From where on its
        results are polynomials is another matter, and proved.
    """

    operands: tuple[tuple[str, tuple[Polynomial, ...]], ...]
    over: Precisions
    first: int = LEAST

    def __str__(self) -> str:
        texts = []
        for name, parts in self.operands:
            inner = ", ".join(map(str, parts))
            texts.append(f"{name} = {inner if len(parts) == 1 else f'({inner})'}")
        return ", ".join(texts)

    def __call__(self, p: int) -> Iterator[tuple[Fraction, ...]]:
        """Yield its case at a precision, if it has one."""
        if p >= self.first and p in self.over:
            yield self.at(p)

    def at(self, p: int) -> tuple[Fraction, ...]:
        """Return the numbers at a precision, one for every component.

        Raises
        ------
        ValueError
            If it is none of those that the polynomials are over.
        """
        return tuple(part.at(p) for _, parts in self.operands for part in parts)

    def structured(self, p: int | None = None) -> tuple[object, ...]:
        """Return the operands as an algorithm takes them: a component, or a tuple of them.

        They are polynomials, or with a precision fractions.
        """
        taken = [[part if p is None else part.at(p) for part in parts] for _, parts in self.operands]
        return tuple(parts[0] if len(parts) == 1 else tuple(parts) for parts in taken)


@dataclass(frozen=True)
class Families:
    """Several families of one algorithm's operands, in order."""

    members: tuple[Family, ...]

    def __call__(self, p: int) -> Iterator[tuple[Fraction, ...]]:
        """Yield the cases at a precision."""
        for member in self.members:
            yield from member(p)


def family(
    *, first: int = LEAST, **operands: Polynomial | Number | tuple[Polynomial | Number, ...]
) -> Family:
    """Return operands as a family.

    Parameters
    ----------
    first : int, optional
        See `Family`.
    **operands : polynomial, number, or tuple of these
        A value, or the components of a double word, by the operand's name and in the operands' order. All
        polynomials are over the same precisions: over all of them, as with u, or over those of one parity.

    Raises
    ------
    TypeError
        If there is no operand, or a component is no polynomial, int, float or Fraction.
    ValueError
        If polynomials are over different precisions, or a number is not dyadic.

    Examples
    --------
    >>> from mcfsim.symbolic import family, u
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
    taken = {
        name: tuple(
            part if isinstance(part, Polynomial) else Polynomial.constant(part, over) for part in parts
        )
        for name, parts in tuples.items()
    }
    return Family(tuple(taken.items()), over, first)


def families(*members: Family) -> Families:
    """Return several families as one."""
    return Families(members)
