"""Own errors: computed minus exact result of an operation on computed operands, to binary64's last bits.

Each rule is a function of the computed result y and the operands h. Its source is used twice, as in
`mcfsim.analysis.secants`. The products of two of these numbers must be exact in binary64.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from mcfsim.analysis.secants import select
from mcfsim.compile.program import ProgramStep, Register
from mcfsim.eft import two_sum
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT32, carrier_of
from mcfsim.kernels.real_numbers import exact_or_binary64

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
