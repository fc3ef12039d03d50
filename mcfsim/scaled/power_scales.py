"""Scales that are powers of two: the exponent of a block's largest magnitude, and when it is increased."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from mcfsim.kernels.element.machine import Value, greatest, least
from mcfsim.scaled.formats import ScaledFormat
from mcfsim.scaled.scale_rules import ScaleRule


def carried(fmt: ScaledFormat) -> float:
    """Return the significand, in [1/2, 1), from which on the exponent is one larger; 1 if it never is."""
    top, _ = math.frexp(float(fmt.element.max))
    found: Mapping[ScaleRule, float] = {
        ScaleRule.CEIL: math.nextafter(0.5, 1.0),
        ScaleRule.ROUND_UP: math.nextafter(top, 1.0),
        ScaleRule.EVEN: 1 - 2.0 ** -(fmt.top_precision + 1),
    }
    return found.get(fmt.rule, 1.0)


def exponents(fmt: ScaledFormat) -> tuple[int, int, int]:
    """Return the largest element's exponent, as frexp has it, and the least and the largest of a scale."""
    lowest = math.frexp(float(fmt.scale.smallest_subnormal))[1] - 1
    highest = math.frexp(float(fmt.scale.max))[1] - 1
    return math.frexp(float(fmt.element.max))[1], lowest, highest


def power_element(largest: Value, fmt: ScaledFormat) -> Value:
    """Return the power of two for a largest magnitude of binary32, within the range of the scales."""
    bits = largest.widen().bits()
    exponent = bits.shr(52).cut() - 1022  # as frexp has it
    over = (bits & (2**52 - 1)) >= _fraction(carried(fmt))
    exponent = exponent + over.count() if carried(fmt) < 1 else exponent
    top, lowest, highest = exponents(fmt)
    exponent = least(greatest(exponent - top, lowest), highest)
    return ((exponent + 1023).extend() << 52).as_number().narrow()


def _fraction(x: float) -> int:
    """Return the bits of a number's fraction in binary64."""
    return int(struct.unpack("<q", struct.pack("<d", x))[0]) & (2**52 - 1)
