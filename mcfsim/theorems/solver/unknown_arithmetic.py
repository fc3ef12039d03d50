"""An arithmetic whose numbers are unknown: a text run on it leaves all sums that it rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mcfsim.theorems.operands import OperandSpec
from mcfsim.theorems.solver.linear_forms import Formula
from mcfsim.theorems.solver.numbers import RoundedSum, UnknownNumber

#: ``lemma(ar, *operands)`` returns what the text would, and says so of the results in ``ar.known``.
Lemma = Callable[..., Any]


class Called(NamedTuple):
    """A text with operands, and the results that a lemma gave it."""

    text: Callable[..., Any]
    operands: tuple[Any, ...]
    results: Any


class UnknownArithmetic:
    """An `mcfsim.protocol.Arithmetic` of unknown numbers of p bits, rounded to nearest by any rule for ties.

    Exponents are unbounded. Only sums, differences and changes of sign have linear facts, so other operations
    are refused.

    Parameters
    ----------
    lemmas : mapping, optional
        What stands for texts of which a theorem is proved.

    Attributes
    ----------
    numbers : list of Number
        All there are.
    sums : list of Rounded
        All that were rounded, operands that are double words among them.
    known : list of Formula
        What else is known, by lemmas and of operands.
    called : list of Called
        The texts for which lemmas stood.
    """

    format = rounding = None
    carrier = np.dtype(object)

    def __init__(self, lemmas: Mapping[Callable[..., Any], Lemma] | None = None) -> None:
        self.numbers: list[UnknownNumber] = []
        self.sums: list[RoundedSum] = []
        self.known: list[Formula] = []
        self.called: list[Called] = []
        self._lemmas = lemmas or {}
        self._names: set[str] = set()

    # -- numbers ------------------------------------------------------------------------------------------
    def number(self, name: str = "") -> UnknownNumber:
        """Return a new number, of which nothing is known.

        Raises
        ------
        ValueError
            If another one has the name: they would be the same.
        """
        name = name or f"t{len(self.numbers)}"
        if name in self._names or "." in name:
            raise ValueError(f"an operand cannot be called {name!r}: another unknown is, or may be")
        self._names.add(name)
        self.numbers.append(UnknownNumber.unknown(name))
        return self.numbers[-1]

    def operand(self, operand: OperandSpec) -> Any:
        """Return what an operand is: a number or, of a double word or relaxed pair, a tuple of two.

        The high word of a double word is nearest to their sum, whichever way ties went when it was made.

        Raises
        ------
        ValueError
            If it is a sequence.
        """
        if operand.components == 1:
            return self.number(operand.name)
        if not operand.paired:
            raise ValueError(f"{operand.name} is a {operand.kind}; solved are values, double words and pairs")
        high, low = self.number(f"{operand.name}h"), self.number(f"{operand.name}l")
        if operand.kind == "double word":
            self.sums.append(RoundedSum(high, (high, low), own_ties=False))
        else:
            half = high.first.times_u()
            small = (low.value <= half) & (-low.value <= half)
            self.known += [high.zero.implies(low.zero), high.zero | small]
        return high, low

    def rounded(self, *terms: UnknownNumber) -> UnknownNumber:
        """Return a sum, rounded."""
        self.sums.append(RoundedSum(self.number(), terms))
        return self.sums[-1].result

    # -- operations ---------------------------------------------------------------------------------------
    def add(self, a: Any, b: Any) -> UnknownNumber:
        """Return ``a + b``."""
        return self.rounded(_taken(a), _taken(b))

    def sub(self, a: Any, b: Any) -> UnknownNumber:
        """Return ``a - b``."""
        return self.rounded(_taken(a), -_taken(b))

    def neg(self, a: Any) -> UnknownNumber:
        """Return ``-a``."""
        return -_taken(a)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``, or what a lemma says of it."""
        if function in self._lemmas and not options:
            self.called.append(Called(function, operands, self._lemmas[function](self, *operands)))
            return self.called[-1].results
        return function(self, *operands, **options)

    def _refused(self, *operands: Any) -> NoReturn:
        raise ValueError(
            "products, quotients, roots, signs and other formats have no linear facts; "
            "solved are algorithms that add, subtract and change signs"
        )

    mul = div = sqrt = fma = abs = sign = round = like = on_block = _refused


def _taken(x: Any) -> UnknownNumber:
    if not isinstance(x, UnknownNumber):
        raise ValueError(f"the operand {x!r} is no unknown: a constant has another meaning for every p")
    return x
