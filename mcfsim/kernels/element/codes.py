"""Codes of one number, as in `mcfsim.codec`, for floating-point formats with a code for NaN."""

from __future__ import annotations

from mcfsim.formats import Format, Specials
from mcfsim.kernels.codes_by_kind import FloatCodes
from mcfsim.kernels.element.floats import CARRIERS, INFINITY, NAN
from mcfsim.kernels.element.gpu_verbs import note_conversion
from mcfsim.kernels.element.machine import F64, Type, Value

#: Longer codes are not worth reading instead of numbers of a carrier.
MOST_BITS = 16


def has_codes(fmt: Format) -> bool:
    """Return whether this module reads and writes codes of a format."""
    return type(fmt) is Format and fmt.has_nan and fmt.bits <= MOST_BITS


def decode_element(code: Value, fmt: Format, kind: Type) -> Value:
    """Return the value of a code.

    Parameters
    ----------
    code : value of 32 bits
        A code of the format; for other integers the result is unspecified.
    fmt : Format
        A format for which `has_codes` holds.
    kind : Type
        The type of the format's carrier, and of the value.
    """
    return note_conversion("decode", code, _decoded(code, fmt, kind), fmt)


def _decoded(code: Value, fmt: Format, kind: Type) -> Value:
    codes, carrier = FloatCodes(fmt), CARRIERS[kind]
    code = code.extend() if kind is F64 else code
    cut = carrier.place + 1 - fmt.precision
    if _is_top(fmt, kind):
        return (code << cut).as_number()
    magnitude = code & codes.mask
    aligned = magnitude << cut
    number = (aligned + carrier.field(-fmt.bias)).as_number()
    if fmt.zero:  # below, the exponent is that of the smallest normal number
        below = (aligned + carrier.field(fmt.emin)).as_number() - float(fmt.smallest_normal)
        number = (magnitude < 1 << (fmt.precision - 1)).select(below, number)
    if codes.largest < codes.mask:
        beyond = number.like(NAN)
        if fmt.has_infinity:
            beyond = magnitude.equals(codes.infinity).select(INFINITY, beyond)
        number = (magnitude <= codes.largest).select(number, beyond)
    if fmt.signed:
        sign = (code >> codes.sign_place) << carrier.sign_place
        number = (number.bits() | sign).as_number()
    return code.equals(codes.nan).select(NAN, number) if codes.nan > codes.mask else number


def encode_element(x: Value, fmt: Format) -> Value:
    """Return the code of a value, an integer of the carrier's size; all NaNs have the same code.

    Parameters
    ----------
    x : value of binary32 or binary64
        A value of the format in its carrier; for other numbers the result is unspecified.
    fmt : Format
        A format for which `has_codes` holds.
    """
    codes, carrier = FloatCodes(fmt), CARRIERS[x.type]
    cut = carrier.place + 1 - fmt.precision
    if _is_top(fmt, x.type):
        code = x.bits().shr(cut)
        return x.equals(x).select(code, codes.nan)
    magnitude = abs(x)
    code = magnitude.bits() - carrier.field(-fmt.bias)
    if fmt.zero:
        least = float(fmt.smallest_normal)
        below = (magnitude + least).bits() - carrier.field(fmt.emin)
        code = (magnitude < least).select(below, code)
    code = code >> cut
    if fmt.has_infinity:
        code = (magnitude < INFINITY).select(code, codes.infinity)
    if fmt.signed:
        sign = x.bits().shr(carrier.sign_place) << codes.sign_place
        signed = code | sign
        code = code.equals(0).select(code, signed) if fmt.zero and not fmt.has_negative_zero else signed
    return x.equals(x).select(note_conversion("encode", x, code, fmt), codes.nan)


def is_code(code: Value, fmt: Format) -> Value:
    """Return whether an integer is a code of a format for which `has_codes` holds."""
    codes = FloatCodes(fmt)
    known = code.shr(fmt.bits).equals(0)
    if codes.gaps:
        magnitude = code & codes.mask
        known = known & ((magnitude <= codes.largest) | (magnitude >= codes.special))
    return known


def _is_top(fmt: Format, kind: Type) -> bool:
    """Return whether codes are the upper bits of the carrier's codes."""
    carrier = CARRIERS[kind]
    fields = fmt.exponent_bits == carrier.exponent_bits.bit_count() and fmt.emin == carrier.emin
    return fields and fmt.specials is Specials.IEEE and fmt.zero
