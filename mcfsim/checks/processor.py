"""Whether the processor computes with subnormal numbers, or puts zeros in their place without a word."""

from __future__ import annotations

import struct

#: By their codes, for a processor that flushes would read no such number from a text.
_LEAST, _LEAST_NORMAL = struct.unpack("<2d", struct.pack("<2Q", 1, 1 << 52))
_SCALE, _HALF = 2.0**60, 0.5


class FlushedSubnormalsError(FloatingPointError, ValueError):
    """The processor treats subnormal numbers as zeros, so that no result can be relied on."""


def check_subnormals() -> None:
    """Refuse to go on where this thread's processor flushes subnormal numbers.

    Both are settings of a thread: operands taken for zeros (x86's DAZ), and results replaced by zeros (FTZ).
    Others switch them on, for speed. The check takes less than a microsecond.

    Raises
    ------
    FlushedSubnormalsError
        If one of them is on.
    """
    if _LEAST * _SCALE != 0.0 and _LEAST_NORMAL * _HALF != 0.0:
        return
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
