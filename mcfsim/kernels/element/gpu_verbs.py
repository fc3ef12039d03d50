"""Verbs (machine operations) of some GPUs, where one instruction replaces several ordinary verbs.

An element algorithm defines a value by verbs that every machine has. Beside some values it notes one verb
that computes the same, except for the code of a NaN. A machine that has this verb may use it instead
(`Line.needed`); all others never see it. So rounding has one definition only.

Verbs
-----
``round_bfloat16``, ``round_float16``
    Round a binary32 number to nearest even, with subnormal numbers kept and overflow to infinity.
``add_bfloat16``, ``sub_bfloat16``, ``mul_bfloat16``, ``fma_bfloat16``
    Operate on bfloat16 values in binary32, rounded once in the same way. Their codes are the upper halves
    of the binary32 codes, and the lower halves are zero. The lower half of a NaN may be anything, so its
    upper half must show that it is NaN: operands are results of these verbs, or codes read from memory, or
    one of those with another sign.
``encode_float16``, ``decode_float16``
    The code of a float16 value in binary32, and the value of a code. The code of a NaN is unspecified.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcfsim.formats import Format, get_format
from mcfsim.kernels.element.machine import F32, Value
from mcfsim.rounding import Mode, Overflow, Rounding

_BFLOAT16, _FLOAT16 = get_format("bfloat16"), get_format("float16")
_NAMES = {_BFLOAT16: "bfloat16", _FLOAT16: "float16"}


def note_rounding(x: Value, rounded: Value, fmt: Format, rounding: Rounding) -> None:
    """Note the verb that rounds x to a number, subnormal ones included, if there is one."""
    usual = rounding.mode is Mode.NEAREST_EVEN and rounding.overflow is Overflow.IEEE
    if x.type is rounded.type is F32 and fmt in _NAMES and usual:
        rounded.line.note(rounded, f"round_{_NAMES[fmt]}", x)


def note_operation(
    operation: str, operands: Sequence[Value], result: Value, fmt: Format, rounding: Rounding
) -> Value:
    """Return the result of an operation after noting the verb that computes it, if there is one."""
    known = operation in ("add", "sub", "mul", "fma") and fmt == _BFLOAT16 and result.type is F32
    if known and rounding.standard and all(map(_is_upper_half, operands)):
        result.line.note(result, f"{operation}_bfloat16", *operands)
    return result


def note_conversion(verb: str, x: Value, result: Value, fmt: Format) -> Value:
    """Return what ``encode`` or ``decode`` makes of x, after noting the verb that computes it, if any."""
    if F32 in (x.type, result.type) and fmt == _FLOAT16:
        result.line.note(result, f"{verb}_float16", x)
    return result


def _is_upper_half(x: Value) -> bool:
    """Return whether the lower half of a number's code is zero, or its upper half shows that it is NaN."""
    if x.verb in ("neg", "abs"):
        return _is_upper_half(x.operands[0])
    if x.verb == "number":
        code = x.operands[0]
        return x.type is F32 and code.verb == "shl" and code.operands[1].constant == 16
    noted = x.line.noted(x)
    return noted is not None and noted.verb.endswith("_bfloat16")
