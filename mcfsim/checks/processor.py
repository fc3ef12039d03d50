"""Whether the processor computes as IEEE 754 has it: with subnormal numbers, and rounding to nearest."""

from __future__ import annotations

import struct

#: By their codes, for a processor that flushes would read no such number from a text.
_LEAST, _LEAST_NORMAL = struct.unpack("<2d", struct.pack("<2Q", 1, 1 << 52))
_SCALE, _HALF = 2.0**60, 0.5
#: A sum that is 1 to nearest, and a difference, which no compiler sees.
_ONE, _TINY = 1.0, 2.0**-60


class ProcessorError(FloatingPointError, ValueError):
    """The processor is set to compute otherwise than IEEE 754 has it, so that no result can be relied on."""


class FlushedSubnormalsError(ProcessorError):
    """The processor treats subnormal numbers as zeros."""


class RoundingDirectionError(ProcessorError):
    """The processor rounds in another direction than to nearest."""


def check_processor() -> None:
    """Refuse to go on where this thread's processor flushes subnormal numbers or does not round to nearest.

    These are settings of a thread: operands taken for zeros (x86's DAZ), results replaced by zeros (FTZ), and
    the rounding direction, one for binary32 and binary64. Others change them, the former for speed. The
    check takes a fraction of a microsecond, and remembers nothing.

    Raises
    ------
    FlushedSubnormalsError, RoundingDirectionError
        If one of them is set, both of them `ProcessorError`.
    """
    if _LEAST * _SCALE != 0.0 != _LEAST_NORMAL * _HALF and _ONE + _TINY == _ONE == _ONE - _TINY:
        return
    if _ONE + _TINY != _ONE or _ONE - _TINY != _ONE:
        # Toward zero 1 becomes less, and -1 more.
        up, down = _ONE + _TINY > _ONE, -_ONE - _TINY < -_ONE
        direction = "upward" if up else "downward" if down else "toward zero"
        raise RoundingDirectionError(
            f"this thread's processor rounds {direction} and not to nearest, which falsifies results; set it "
            "right by C's fesetround(FE_TONEAREST), in Python ctypes.CDLL(None).fesetround(0). Code that "
            "needs another direction must set it back"
        )
    faults = []
    if _LEAST * _SCALE == 0.0:
        faults.append("takes subnormal operands for zero (DAZ)")
    if struct.pack("<d", _LEAST_NORMAL * _HALF) == bytes(8):  # a comparison would have taken it for zero
        faults.append("puts zero in place of subnormal results (FTZ)")
    raise FlushedSubnormalsError(
        f"this thread's processor {' and '.join(faults)}, which falsifies results; switch it off, in PyTorch "
        "with torch.set_flush_denormal(False). Libraries that were linked with -ffast-math switch it on when "
        "they are loaded"
    )
