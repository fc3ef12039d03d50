"""Theorems in place of texts: what 2Sum and Fast2Sum are, where a longer text calls them.

Each is a statement of the catalogue that the solver proves first, from the text itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mcfsim.eft import fast_two_sum, two_sum
from mcfsim.theorems.hypotheses import not_largest, sum_in_range
from mcfsim.theorems.solver.facts import LAST_OF_SUM
from mcfsim.theorems.solver.linear_forms import TRUE, ZERO, Formula, equal
from mcfsim.theorems.solver.numbers import RoundedSum, UnknownNumber, is_multiple_of_ulp
from mcfsim.theorems.solver.unknown_arithmetic import Lemma, UnknownArithmetic
from mcfsim.theorems.statement import Hypothesis


def _compensated(
    ar: UnknownArithmetic, a: UnknownNumber, b: UnknownNumber, where: Formula
) -> tuple[UnknownNumber, UnknownNumber]:
    """Return ``RN(a + b)`` and a number: the rest where a hypothesis holds, and elsewhere any."""
    s = ar.rounded(a, b)
    rest = RoundedSum(ar.number(), (a, b, -s))
    ar.known.append(where.implies(equal(rest.off, ZERO) & LAST_OF_SUM.of(rest)))
    return s, rest.result


def _two_sum(
    ar: UnknownArithmetic, a: UnknownNumber, b: UnknownNumber
) -> tuple[UnknownNumber, UnknownNumber]:
    return _compensated(ar, a, b, TRUE)


def _fast_two_sum(
    ar: UnknownArithmetic, a: UnknownNumber, b: UnknownNumber
) -> tuple[UnknownNumber, UnknownNumber]:
    return _compensated(ar, a, b, is_multiple_of_ulp(a, b))


def text_of(function: Any) -> Callable[..., Any]:
    """Return the bare text of a straight line, and another function as it is."""
    found: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return found


#: The statement that each rests on, by text.
STATEMENTS: Mapping[Callable[..., Any], str] = MappingProxyType(
    {text_of(two_sum): "two_sum", text_of(fast_two_sum): "fast_two_sum_multiple"}
)
LEMMAS: Mapping[Callable[..., Any], Lemma] = MappingProxyType(
    {text_of(two_sum): _two_sum, text_of(fast_two_sum): _fast_two_sum}
)
#: Where nothing overflows on the way, by text: a theorem of Boldo, Graillat and Muller, TOMS 44(1), 2017.
IN_RANGE: Mapping[Callable[..., Any], frozenset[Hypothesis]] = MappingProxyType(
    {
        text_of(two_sum): frozenset({sum_in_range("a", "b"), not_largest("a")}),
        text_of(fast_two_sum): frozenset({sum_in_range("a", "b")}),
    }
)
