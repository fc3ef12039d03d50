"""Verbs, the machine operations of a line, as NumPy functions, and execution of a line on arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Line, Type, Value
from mcfsim.kernels.elementary import table_of

DTYPES: Mapping[Type, np.dtype[Any]] = {
    F32: np.dtype(np.float32),
    F64: np.dtype(np.float64),
    I32: np.dtype(np.int32),
    I64: np.dtype(np.int64),
    TRUTH: np.dtype(np.bool_),
}


def _shr(a: Any, count: Any) -> Any:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return np.right_shift(a.view(unsigned), np.asarray(count).view(unsigned)).view(a.dtype)


VERBS: Mapping[str, Callable[..., Any]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt},
    **{"neg": np.negative, "abs": np.absolute, "lt": np.less, "le": np.less_equal, "eq": np.equal},
    **{"shl": np.left_shift, "sar": np.right_shift, "shr": _shr, "select": np.where},
}
BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}
_VIEWS, _CASTS = ("bits", "number"), ("widen", "narrow", "extend", "cut", "count")


def run(line: Line, results: tuple[Value, ...], **operands: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Execute a straight line of machine operations on arrays of one shape.

    Parameters
    ----------
    line, results
        As `mcfsim.kernels.element.machine.recorded` returns them.
    **operands : array
        The inputs by name, each of its type's dtype.

    Raises
    ------
    TypeError
        If an operand is of another dtype.
    """
    known: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for value in line.needed(results):
            known[value.number] = carried_out(value, [known[x.number] for x in value.operands], operands)
    shape = np.broadcast_shapes(*(array.shape for array in operands.values()))
    return tuple(np.broadcast_to(known[result.number], shape) for result in results)


def carried_out(value: Value, given: Sequence[Any], operands: Mapping[str, NDArray[Any]]) -> Any:
    """Return a value, computed by its verb from the arrays of its operands."""
    dtype = DTYPES[value.type]
    if value.verb == "input":
        array = operands[str(value.constant)]
        if array.dtype != dtype:
            raise TypeError(f"{value.constant} is of {array.dtype}, not {dtype}")
        return array
    if value.verb == "constant":
        return np.array(value.constant, dtype)
    if value.verb in _VIEWS:
        return given[0].view(dtype)
    if value.verb in _CASTS:
        return given[0].astype(dtype)
    if value.verb == "look_up":
        return table_of(str(value.constant)).take(given[0], mode="clip")
    return np.asarray((BITWISE | dict(VERBS))[value.verb](*given), dtype)
