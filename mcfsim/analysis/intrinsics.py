"""Functions that generated loops call: casts between numbers and their bits, and typed constants."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray
from numba.core import types
from numba.extending import intrinsic, register_jitable

f32, f64, i32, i64 = np.float32, np.float64, np.int32, np.int64
u32, u64 = np.uint32, np.uint64
sqrt = np.sqrt


def _cast(result: Any, operand: Any, made: Any) -> Any:
    """Return an intrinsic that reads the bits of one type as another."""

    @intrinsic  # type: ignore[untyped-decorator]
    def cast(context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], made)

        return result(operand), generate

    return cast


bits32 = _cast(types.int32, types.float32, ir.IntType(32))
bits64 = _cast(types.int64, types.float64, ir.IntType(64))
number32 = _cast(types.float32, types.int32, ir.FloatType())
number64 = _cast(types.float64, types.int64, ir.DoubleType())


@intrinsic  # type: ignore[untyped-decorator]
def select(context: Any, condition: Any, yes: Any, no: Any) -> Any:
    """Return one of two values of a type, branch-free; Numba's time and memory are quadratic in branches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments)

    return (yes(condition, yes, no), generate) if condition == types.boolean and yes == no else None


def _row(element: Any) -> Any:
    """Return a function that returns the vector of a type at an address, given its size."""

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(context: Any, address: Any) -> Any:
        made = types.CPointer(element)  # type: ignore[attr-defined]

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(made))

        return made(types.int64), generate

    @register_jitable  # type: ignore[untyped-decorator]
    def row(address: Any, size: Any) -> Any:
        return carray(pointer(address), (size,))

    return row


row_float32, row_float64 = _row(types.float32), _row(types.float64)


@intrinsic  # type: ignore[untyped-decorator]
def prefer_whole_vectors(context: Any) -> Any:
    """Ask for the widest vectors in the calling function: on some machines LLVM's default is half as wide."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(
            builder.function.attributes, '"prefer-vector-width"="512"'
        )  # a name that llvmlite does not know
        return context.get_dummy_value()

    return types.void(), generate
