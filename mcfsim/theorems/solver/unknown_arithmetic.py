"""An arithmetic of unknown numbers, which records every sum that an algorithm rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mcfsim.theorems.operands import OperandSpec
from mcfsim.theorems.solver.linear_forms import Formula, RoundedSum, UnknownNumber

#: ``lemma(ar, *operands)`` returns the results of an algorithm, and adds what they obey to ``ar.known``.
Lemma = Callable[..., Any]


class Called(NamedTuple):
    """A call that a lemma replaced: the algorithm, its operands, and the results of the lemma."""

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
        The lemmas that replace algorithms with a proved theorem.

    Attributes
    ----------
    numbers : list of UnknownNumber
        All numbers made so far.
    sums : list of RoundedSum
        All rounded sums, including one for each operand that is a double word.
    known : list of Formula
        Further facts, from lemmas and about operands.
    called : list of Called
        The calls that lemmas replaced.
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
        """Return a new number, about which nothing is known.

        Raises
        ------
        ValueError
            If another number has the name: the two would be the same.
        """
        name = name or f"t{len(self.numbers)}"
        if name in self._names or "." in name:
            raise ValueError(f"an operand cannot be called {name!r}: another unknown is, or may be")
        self._names.add(name)
        self.numbers.append(UnknownNumber.unknown(name))
        return self.numbers[-1]

    def operand(self, operand: OperandSpec) -> Any:
        """Return unknowns for an operand: a number, or a tuple of two for a double word or relaxed pair.

        The high word of a double word is nearest to the sum of both, whichever way ties went.

        Raises
        ------
        ValueError
            If it is a sequence.
        """
        if operand.components == 1:
            return self.number(operand.name)
        if not operand.paired:
            raise ValueError(f"{operand.name} is a {operand.kind}; the solver takes values and pairs")
        high, low = self.number(f"{operand.name}h"), self.number(f"{operand.name}l")
        if operand.kind == "double word":
            self.sums.append(RoundedSum(high, (high, low), own_ties=False))
        else:
            half = high.first.times_u()
            small = (low.value <= half) & (-low.value <= half)
            self.known += [high.zero.implies(low.zero), high.zero | small]
        return high, low

    def rounded(self, *terms: UnknownNumber) -> UnknownNumber:
        """Return the rounded sum of numbers."""
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
        """Return ``function(self, *operands, **options)``, or the results of a lemma that replaces it."""
        if function in self._lemmas and not options:
            self.called.append(Called(function, operands, self._lemmas[function](self, *operands)))
            return self.called[-1].results
        return function(self, *operands, **options)

    def _refused(self, *operands: Any) -> NoReturn:
        raise ValueError(
            "products, quotients, roots, signs and other formats have no linear facts; "
            "the solver takes algorithms that add, subtract and change signs"
        )

    exp = log = expm1 = log1p = tanh = erf = sin = cos = maximum = minimum = choose = _refused
    mul = div = sqrt = fma = abs = sign = round = like = on_block = _refused


def _taken(x: Any) -> UnknownNumber:
    if not isinstance(x, UnknownNumber):
        raise ValueError(f"the operand {x!r} is no unknown: a constant has another meaning for every p")
    return x
