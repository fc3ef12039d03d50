"""Execution of a recorded program on a block of inputs, with the exact rounding error of each operation.

The own error of an operation is its computed minus its exact result on computed operands, to binary64's last
bits. Each rule in `OWN_ERRORS` is a function of the computed result y and the operands h. Its source is used
twice, as in `mcfsim.analysis.secants`. The products of two of these numbers must be exact in binary64.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis.expressions import Component
from mcfsim.analysis.secants import select
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.backends.meter import exact_results, operand_numbers
from mcfsim.compile.program import Program, ProgramStep, Register
from mcfsim.convert import round_to
from mcfsim.eft import two_sum
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT32, carrier_of
from mcfsim.kernels.elementary import FUNCTIONS, odd_value
from mcfsim.kernels.function_blocks import coarse, residual_value, residuals
from mcfsim.kernels.operation_plan import SELECTING
from mcfsim.kernels.real_numbers import Scalars, as_float, enter, exact_or_binary64, is_scalar
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding

Array = NDArray[np.float64]
Block = NDArray[Any]
Formats = Mapping[Register, Format]


@dataclass(frozen=True, eq=False)
class RoundedRun:
    """The results of a program's steps on a block of inputs.

    Parameters
    ----------
    program : Program
    carried : dict of Register to array
        Inputs and results, in the carriers of their formats.
    formats : mapping of Register to Format
        Other formats of some results.
    scalars : {"exact", "rounded"}
        How real scalars entered.
    """

    program: Program
    carried: Mapping[Register, Block]
    formats: Formats
    scalars: Scalars

    @cached_property
    def values(self) -> Mapping[Register, Array]:
        """Inputs and results."""
        return {x: np.asarray(block, np.float64) for x, block in self.carried.items()}

    @cached_property
    def errors(self) -> Mapping[Register, Array]:
        """For each result, computed minus exact result of the operation on its computed operands."""
        return {step.result: self.error_of(step) for step in self.program.steps}

    def error_of(self, step: ProgramStep) -> Array:
        """Return computed minus exact result of a step, to the last bits of binary64."""
        computed = np.asarray(self.carried[step.result], np.float64)
        if is_exact(step, self.formats):
            return np.zeros(computed.size)
        operands = [
            np.asarray(self.carried[x], np.float64) if isinstance(x, Register) else x for x in step.operands
        ]
        with np.errstate(all="ignore"):
            if applies(step, self.formats):
                given = [as_float(x) if is_scalar(x) else x for x in operands]
                return np.asarray(OWN_ERRORS[step.operation](computed, *given))
            nearest, rest = _exactly(step, [operand_numbers(x) for x in operands], self.formats)
            return np.asarray((computed - nearest) - rest)


def run(
    program: Program,
    inputs: Sequence[Block],
    *,
    scalars: Scalars = "exact",
    formats: Formats = MappingProxyType({}),
    random: RandomWords | None = None,
    start: int = 0,
) -> RoundedRun:
    """Run a program on a block.

    Parameters
    ----------
    program : Program
        Its real scalars are the numbers in it.
    inputs : sequence of array
        One-dimensional arrays of values, in the carriers of their formats.
    scalars : {"exact", "rounded"}, optional
        How real scalars enter; either way they count as exact numbers.
    formats : mapping of Register to Format, optional
        Other formats for some results. An operation with an operand in a wider format is performed in that
        format, and its result is then rounded into its own: two roundings, as casts do.
    random : RandomWords, optional
        Random words of stochastic rounding; each step takes the words of its place.
    start : int, optional
        Index of the block's first input, for these words.
    """

    def performed(step: ProgramStep, operands: list[Any], words: RandomWords | None) -> Any:
        own = formats.get(step.result, step.result.format)
        given = [formats.get(x, x.format) for x in step.registers]
        if step.operation == "round":
            x = operands[0]
            ar = _arithmetic(own, step.rounding, scalars).at(words, start)
            if isinstance(x, Component):
                return ar.carrier.type(x.rounded(own))
            return ar.round(x if not isinstance(x, np.ndarray) else x.astype(np.float64, copy=False))
        wide = max([own, *given], key=lambda fmt: (fmt.precision, fmt.emax)) if formats else own
        ar = _arithmetic(wide, step.rounding, scalars).at(words, start)
        taken = [x.astype(ar.carrier, copy=False) if isinstance(x, np.ndarray) else x for x in operands]
        made = getattr(ar, step.operation)(*taken)
        if wide is own or wide == own:
            return made
        return round_to(made, own, step.rounding, random=words)

    size = inputs[0].size if inputs else 1
    carried: dict[Register, Block] = dict(zip(program.inputs, inputs, strict=True))
    with np.errstate(all="ignore"):
        for place, step in enumerate(program.steps):
            operands = [carried[x] if isinstance(x, Register) else x for x in step.operands]
            words = None if random is None else random.of(place)
            made = performed(step, operands, words)
            if np.size(made) != size or np.ndim(made) == 0:  # if all operands are real scalars
                made = np.ascontiguousarray(np.broadcast_to(np.asarray(made), size))
            carried[step.result] = made
    return RoundedRun(program, carried, formats, scalars)


@lru_cache(maxsize=256)
def _arithmetic(fmt: Format, rounding: Rounding, scalars: Scalars) -> BlockArithmetic:
    return BlockArithmetic(fmt, rounding, scalars)


def is_exact(step: ProgramStep, formats: Formats = MappingProxyType({})) -> bool:
    """Return whether a step only selects an operand or changes a sign, and its result needs no rounding."""
    own = formats.get(step.result, step.result.format)

    def has(x: Any) -> bool:
        return formats.get(x, x.format) == own if isinstance(x, Register) else is_held(x, own, step.rounding)

    symmetric = step.operation in ("neg", "abs", "sign") and own.lowest == -own.max
    return (symmetric or step.operation in SELECTING) and all(map(has, step.operands))


def is_held(scalar: Any, fmt: Format, rounding: Rounding) -> bool:
    """Return whether a real scalar enters a format unchanged."""
    return not enter(exact_or_binary64(scalar), fmt, rounding, "exact")[1]


def _exactly(step: ProgramStep, operands: list[Any], formats: Formats) -> tuple[Any, Any]:
    """Return the exact result of a step as a binary64 number and a residual."""
    name = step.operation
    if name in FUNCTIONS and step.registers:
        (x,) = step.registers
        return residuals(name, operands[0], formats.get(x, x.format))
    if name in FUNCTIONS:  # of a real scalar
        exact = exact_or_binary64(step.operands[0])
        odd = odd_value(name, exact)
        return (float(coarse(odd)), residual_value(name, exact)) if isinstance(exact, float) else (odd, 0.0)
    if name in SELECTING:
        return _SELECTED[name](*(x.astype(np.float64) for x in operands)), 0.0
    if name == "sub":
        name, operands[1] = "add", -operands[1]
    nearest, rest = exact_results(name, operands)
    return nearest.astype(np.float64), rest.astype(np.float64)


_SELECTED: Mapping[str, Callable[..., Any]] = {
    "maximum": np.maximum,
    "minimum": np.minimum,
    "choose": lambda s, x, y: np.where(s >= 0, x, np.where(s < 0, y, np.nan)),
}


# -- rules of own errors, which compiled loops copy -------------------------------------------------------
#: Binary64's own operations, on arrays and numbers.
BINARY64: Any = SimpleNamespace(add=operator.add, sub=operator.sub)
exact_sum: Any = two_sum.__wrapped__  # type: ignore[attr-defined]


def applies(step: ProgramStep, formats: Mapping[Register, Format]) -> bool:
    """Return whether the rules hold for a step: all its numbers have at most half of binary64's digits.

    Real scalars that are added may have all of them.
    """
    if step.operation not in OWN_ERRORS:
        return False
    registers = [x for x in (step.result, *step.operands) if isinstance(x, Register)]
    if any(carrier_of(formats.get(x, x.format)) != FLOAT32 for x in registers):
        return False
    numbers = [exact_or_binary64(x) for x in step.operands if not isinstance(x, Register)]
    added = step.operation in ("add", "sub")
    with np.errstate(over="ignore"):
        return all(isinstance(x, float) and (added or float(np.float32(x)) == x) for x in numbers)


def _add(y: Any, a: Any, b: Any) -> Any:
    s, e = exact_sum(BINARY64, a, b)
    return (y - s) - e


def _sub(y: Any, a: Any, b: Any) -> Any:
    return _add(y, a, -b)


def _mul(y: Any, a: Any, b: Any) -> Any:
    return y - a * b


def _fma(y: Any, a: Any, b: Any, c: Any) -> Any:
    return _add(y, a * b, c)


def _div(y: Any, a: Any, b: Any) -> Any:
    return (y * b - a) / b


def _sqrt(y: Any, a: Any) -> Any:
    return select(a == 0, y, (y * y - a) / select(a == 0, 1.0, y + np.sqrt(a)))


OWN_ERRORS: Mapping[str, Callable[..., Any]] = {
    **{"add": _add, "sub": _sub, "mul": _mul, "fma": _fma, "div": _div, "sqrt": _sqrt},
}
