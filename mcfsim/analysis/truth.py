"""True results of a function by mpmath, with a precision that is doubled until they settle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis.attribution import RoundedFunction
from mcfsim.backends.exact import ExactArithmetic
from mcfsim.compile.program import flat, mapped

#: Precisions tried, in bits, and how closely two of them must agree, relative to the result.
_FIRST, _LAST, _SETTLED = 128, 1 << 13, 2.0**-64
#: A smaller result that does not settle is taken as zero.
_NOTHING = 2.0**-1000


class Truth(NamedTuple):
    """True results, rounded to nearest in binary64, and the remainders; NaN where there is no result.

    Attributes
    ----------
    nearest, rest : array of float64
        Their sum is the result, to 100 bits.
    bits : int
        The largest precision that an input needed.
    """

    nearest: NDArray[np.float64]
    rest: NDArray[np.float64]
    bits: int

    def error_of(self, computed: NDArray[Any]) -> NDArray[np.float64]:
        """Return computed minus true results; NaN if both are infinite."""
        with np.errstate(invalid="ignore"):
            error: NDArray[np.float64] = (computed - self.nearest) - self.rest
        return error


@dataclass(frozen=True)
class TruthCheck:
    """A comparison with mpmath, whose precision was doubled until two results agreed.

    Attributes
    ----------
    inputs, compared : int
        Inputs that were tried, and those whose error is finite and not zero.
    off : float
        The largest deviation of an error from mpmath's, relative to the error.
    bits : int
        The largest precision that was needed.
    constants : float
        The largest relative difference between the recorded program and the function itself, both in mpmath:
        the cost of constants that the function rounds into the format. NaN if the function does not run in
        exact arithmetic.
    """

    inputs: int
    compared: int
    off: float
    bits: int
    constants: float

    def about_constants(self, u: float) -> str:
        """Return a sentence on the constants, or nothing if they cost nothing."""
        if np.isnan(self.constants):
            return "the function itself does not run in exact arithmetic: what its constants cost is unknown"
        if self.constants <= 2.0**-60:
            return ""
        return (
            "constants rounded into the format change exact results by up to "
            f"{self.constants / u:.3g} u: the program is not the function"
        )


#: Returns the result of a function for the numbers of one input.
Evaluate = Callable[[ExactArithmetic, tuple[Any, ...]], Any]


def truth(evaluate: Evaluate, inputs: Sequence[Any]) -> Truth:
    """Return the true results of a function for each input.

    Parameters
    ----------
    evaluate : callable
        ``evaluate(ar, numbers)`` returns the result of the function for the numbers of one input.
    inputs : sequence of array
        One array for each number of an input.

    Notes
    -----
    Where two precisions agree to 64 bits, the result is taken. One that shrinks with every precision is taken
    as zero: no precision tells zero from a small number. An input outside of the domain, such as the root of
    a negative number, has no result.
    """
    (nearest, rest), most = np.full((2, len(inputs[0])), np.nan), _FIRST
    for place, numbers in enumerate(zip(*inputs, strict=True)):
        try:
            value, bits = _settled(evaluate, tuple(map(float, numbers)))
        except (ArithmeticError, ValueError):
            continue
        nearest[place] = float(value)
        rest[place] = float(value - nearest[place]) if np.isfinite(nearest[place]) else 0.0
        most = max(most, bits)
    return Truth(nearest, rest, most)


def _settled(evaluate: Evaluate, numbers: tuple[Any, ...]) -> tuple[Any, int]:
    bits, before = _FIRST, None
    while bits <= _LAST:
        value = evaluate(ExactArithmetic(bits), numbers)
        if before is not None and abs(value - before) <= _SETTLED * abs(value):
            return value, bits
        bits, before = 2 * bits, value
    if abs(value) < _NOTHING:
        return value * 0, _LAST
    raise ArithmeticError("the result does not settle")


def of_program(rounded: RoundedFunction, inputs: Sequence[Any]) -> Truth:
    """Return the true results of a function's recorded program."""
    asked = replace(rounded.program, results=rounded.outputs)

    def evaluate(ar: ExactArithmetic, numbers: tuple[Any, ...]) -> Any:
        return sum(asked.run(lambda fmt, rounding: ar, *map(ar.round, numbers)))

    return truth(evaluate, inputs)


def of_function(rounded: RoundedFunction, inputs: Sequence[Any]) -> Truth:
    """Return the true results of a function itself, whose constants may differ from those of its program."""
    function = partial(rounded.function, **rounded.options)

    def evaluate(ar: ExactArithmetic, numbers: tuple[Any, ...]) -> Any:
        given = map(ar.round, numbers)
        operands = mapped(lambda name: next(given), rounded.inputs.shape)
        return rounded.chosen(flat(ar.evaluate(function, *operands)))

    return truth(evaluate, inputs)
