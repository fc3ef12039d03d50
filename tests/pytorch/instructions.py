"""PTX's instructions on NumPy arrays, by their specification, and Triton's interpreter made to use them.

They share no code with the package but its oracle: casts are those of ml_dtypes and NumPy, operations on
bfloat16 are exact in integers and rounded once. A NaN has all bits set but the sign, as a GPU makes it.
"""

import re
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from mcfsim.formats import get_format
from mcfsim.oracle import operate_integers

BFLOAT16 = get_format("bfloat16")


def cast(number, dtype):
    """Return the codes of 16 bits of binary32 numbers, rounded to nearest even."""
    with np.errstate(all="ignore"):
        codes = number.astype(dtype).view(np.uint16)
    return np.where(np.isnan(number), np.uint16(0x7FFF), codes)


def fma(*codes):
    """Return the codes of a * b + c for codes of bfloat16."""
    with np.errstate(all="ignore"):
        numbers = [x.view(ml_dtypes.bfloat16).astype(np.float64) for x in codes]
        return cast(operate_integers("fma", *numbers, fmt=BFLOAT16).astype(np.float32), ml_dtypes.bfloat16)


def joined(low, high):
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


def execute(ptx, given):
    """Return what PTX makes of registers of 32 bits; of anything unknown a ValueError."""
    registers = {f"${place}": np.asarray(x).view(np.uint32) for place, x in enumerate(given, 1)}

    def read(name):
        if name.startswith("0x"):
            return np.uint32(int(name, 16))
        return np.uint32(int(name[2:], 16)) if name.startswith("0f") else registers[name]

    for row in filter(None, (row.strip() for row in ptx.strip("{} ").split(";"))):
        if row.startswith(".reg"):
            continue
        if match := re.fullmatch(r"mov\.b32 \{(\w+), (\w+)\}, (\S+)", row):
            whole = read(match[3])
            registers[match[1]], registers[match[2]] = (whole & 0xFFFF), whole >> np.uint32(16)
            continue
        name, operands = row.split(" ", 1)
        result, *taken = operands.split(", ")
        values = [read(x) for x in taken]
        if name == "mov.b32":
            made = values[0]
        elif name == "fma.rn.bf16x2":
            values = [np.ascontiguousarray(x) for x in np.broadcast_arrays(*values)]
            low, high = (fma(*((x >> np.uint32(at)).astype(np.uint16) for x in values)) for at in (0, 16))
            made = joined(low, high)
        elif name in ("cvt.rn.bf16x2.f32", "cvt.rn.f16x2.f32"):
            dtype = ml_dtypes.bfloat16 if "bf16" in name else np.float16
            high, low = (cast(np.atleast_1d(x).view(np.float32), dtype) for x in values)
            made = joined(low, high)
        elif name == "cvt.rn.f16.f32":
            made = cast(values[0].view(np.float32), np.float16).astype(np.uint32)
        elif name == "cvt.f32.f16":
            with np.errstate(all="ignore"):
                made = values[0].astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
        else:
            raise ValueError(f"{name} is not known here")
        registers[result] = made
    return registers["$0"]


@pytest.fixture
def with_instructions(monkeypatch):
    """Let Triton's interpreter carry PTX out."""
    from triton.runtime import interpreter

    def create(self, ptx, constraints, values, types, pure, pack):
        dtype = interpreter._get_np_dtype(types[0].scalar)
        made = np.broadcast_to(execute(ptx, [x.data for x in values]), values[0].data.shape)
        handle = interpreter.TensorHandle(np.ascontiguousarray(made).view(dtype), types[0].scalar)
        return SimpleNamespace(get_result=lambda place: handle)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_inline_asm", create)
