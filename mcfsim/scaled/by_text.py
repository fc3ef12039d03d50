"""Groups of float elements by their largest magnitude, as a text: what `quantize` makes of them."""

from __future__ import annotations

from dataclasses import dataclass

from mcfsim.compile.group_text import GroupText
from mcfsim.formats import FORMATS, Format
from mcfsim.kernels.element.codes import decode_element, encode_element, has_codes
from mcfsim.kernels.element.floats import INFINITY, NAN
from mcfsim.kernels.element.machine import F32, Value
from mcfsim.kernels.element.operations import change_element
from mcfsim.rounding import Overflow, Rounding
from mcfsim.scaled.formats import ScaledFormat, ScaleRule

_FLOAT32 = FORMATS["float32"]
_SATURATING = Rounding(overflow=Overflow.SATURATE)


@dataclass(frozen=True)
class LargestMagnitude(GroupText):
    """Elements of a format, and the group's largest magnitude by the format's as a scale.

    Parameters
    ----------
    element : Format
        Of bytes, with zero and NaN.
    format : Format
        In which the numbers are, a format in binary32.

    Notes
    -----
    Quotients are those of binary64, rounded once more. That of numbers x and s of 24 bits is a tie t of p + 1
    bits itself, or ``x - t s`` is a multiple of the last bit of x or of ``t s``, and no less than 2^-(p + 26)
    of x. So binary64 rounds no quotient onto a tie. The same holds of the scale, a quotient of 24 bits whose
    divisor is the largest element.
    """

    element: Format
    format: Format

    @property
    def shared(self) -> int:
        """The scale."""
        return 1

    @classmethod
    def of(cls, kept: ScaledFormat, fmt: Format) -> LargestMagnitude | None:
        """Return the text of a scaled format, if it is one of these."""
        element = kept.element
        plain = kept.rule is ScaleRule.ABSMAX and kept.scale == _FLOAT32 and kept.tensor_scale is None
        served = has_codes(element) and element.bits <= 8 and element.zero
        return cls(element, fmt) if plain and served and isinstance(kept.block, int) else None

    def measured(self, x: Value) -> Value:
        """Return the code of the magnitude; that of NaN is beyond infinity's."""
        return abs(x).bits()

    def shares(self, greatest: Value, *least: Value) -> tuple[Value, ...]:
        """Return the scale, NaN where a number is not finite."""
        largest = greatest.as_number()
        largest = (largest < INFINITY).select(largest, NAN)
        by = largest.widen() / float(self.element.max)
        return (change_element("round", by, _FLOAT32, _SATURATING, carrier=F32),)

    def encoded(self, x: Value, *shared: Value) -> Value:
        """Return the code of the quotient, of zero where the scale is zero."""
        (scale,) = shared
        quotient = x.widen() / scale.widen()
        quotient = scale.equals(0.0).select(x.widen() * 0.0, quotient)
        element = change_element("round", quotient, self.element, _SATURATING, carrier=F32)
        return encode_element(element, self.element)

    def decoded(self, code: Value, *shared: Value) -> Value:
        """Return the product with the scale, rounded to nearest even."""
        element, (scale,) = decode_element(code, self.element, F32), shared
        if self.format == _FLOAT32:
            return element * scale
        return change_element("round", element.widen() * scale.widen(), self.format, Rounding(), carrier=F32)
