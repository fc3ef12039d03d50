"""Rounding of one number to a floating-point format, as a straight line of machine operations.

There are two ways to find the neighbours of a number; the mode decides between the neighbours.

*By addition*, where the carrier has room: add and subtract a power of two whose unit in the last place is the
format's quantum at the number. The sum's code counts in quanta; one more or less is the next value.

*By the code*, elsewhere: rounding a normal number cuts off the low bits of its code, so each mode adds to the
code and clears these bits. Numbers below the smallest normal one are rounded in units of the quantum.

Overflow, infinity, NaN and values that the format lacks are corrected afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mcfsim.formats import Format, Parity, Specials, get_format
from mcfsim.kernels.element.gpu_verbs import note_rounding
from mcfsim.kernels.element.machine import (
    BITS_OF,
    F32,
    F64,
    I32,
    I64,
    NUMBER_OF,
    Type,
    Value,
    greatest,
    least,
)
from mcfsim.rounding import NEAREST, Mode, Overflow, Rounding, Rule, Underflow

NAN, INFINITY = float("nan"), float("inf")
#: Random bits that an integer of 32 bits holds, with room for one more by the rule `CENTRED`.
SHORT = 30


@dataclass(frozen=True)
class FloatLayout:
    """The layout of binary32 or binary64.

    Attributes
    ----------
    place : int
        The number of fraction bits, and so the place of the exponent field.
    bias : int
        The bias of the exponent, which is also the largest exponent.
    """

    place: int
    bias: int

    @property
    def emin(self) -> int:
        """The least exponent of a normal number."""
        return 1 - self.bias

    @property
    def sign_bit(self) -> int:
        """The code of -0, a negative integer."""
        return -(1 << self.sign_place)

    @property
    def sign_place(self) -> int:
        """The place of the sign bit."""
        return 31 if self.place == 23 else 63

    @property
    def exponent_bits(self) -> int:
        """The exponent field with all bits set: the code of infinity."""
        return (2 * self.bias + 1) << self.place

    def field(self, exponent: int) -> int:
        """Return the code of a power of two."""
        return (exponent + self.bias) << self.place


CARRIERS = {F32: FloatLayout(23, 127), F64: FloatLayout(52, 1023)}
_FLOAT32 = get_format("float32")


def round_float(
    x: Value,
    fmt: Format,
    rounding: Rounding,
    word: Value | None = None,
    *,
    residual: Value | None = None,
    clean: bool = False,
) -> Value:
    """Round a number of the carrier to a floating-point format, once; see `mcfsim.convert.round_to`.

    Parameters
    ----------
    x : value of binary32 or binary64
        The carrier; it holds every value of the format.
    fmt : Format
        The target.
    rounding : Rounding
        Mode and policies. Here ``flush_inputs`` is ``flush_before``: the rounded number is the operand.
    word : integer, optional
        For stochastic rounding: the random bits, an integer below ``2**random_bits``; of 64 bits, or of 32
        for up to 30 random ones.
    residual : value, optional
        The rounding error of x in the carrier, if `takes_residual` allows one: the sum of both is rounded.
    clean : bool, optional
        Whether x, if it is NaN, has a *clean* code, as processors make it: all fraction bits but the highest
        are zero. The result then has one, too.
    """
    carrier = CARRIERS[x.type]
    full_range = has_range_of(carrier, fmt)
    usual = fmt.signed and fmt.zero and rounding.underflow is Underflow.GRADUAL
    if usual and full_range and fmt.precision == carrier.place + 1:
        return x if fmt.has_negative_zero else x + 0.0  # -0 + 0 is +0
    if fmt == _FLOAT32 and rounding.standard:
        return x.narrow().widen()
    if _reaches(fmt, carrier) and not rounding.stochastic:
        rounded = _by_addition(x, fmt, rounding.mode)
    else:
        rounded = _by_code(x, fmt, rounding, word, residual)
        if (
            fmt.emin > carrier.emin or fmt.precision == 1
        ):  # whose ties below go to zero, not to an even exponent
            below = abs(x) < float(fmt.smallest_normal)
            rounded = below.select(_below_normal(x, fmt, rounding, word), rounded)
    rounded = _within_range(x, rounded, fmt, rounding, word, clean=clean)
    if residual is None:
        note_rounding(x, rounded, fmt, rounding)
    if rounding.underflow is not Underflow.GRADUAL or not fmt.zero:
        rounded = _above_underflow(x, rounded, fmt, rounding, word)
    if not fmt.signed:
        saturates = rounding.overflow is Overflow.SATURATE or not fmt.has_nan
        lowest = (abs(x) < INFINITY).select(x.like(float(fmt.lowest)), x.like(NAN)) if saturates else NAN
        rounded = ((x < 0.0) & ~rounded.equals(0.0)).select(lowest, rounded)
    if not fmt.zero:
        rounded = rounded.equals(0.0).select(NAN, rounded)
    return rounded if fmt.has_negative_zero else rounded + 0.0


def has_range_of(carrier: FloatLayout, fmt: Format) -> bool:
    """Return whether a format has the exponent range and the infinity of the carrier."""
    return fmt.emin == carrier.emin and fmt.emax == carrier.bias and fmt.has_infinity


def takes_residual(kind: Type, fmt: Format, rounding: Rounding) -> bool:
    """Return whether a number of the carrier can be rounded together with its residual."""
    carrier = CARRIERS[kind]
    usual = type(fmt) is Format and fmt.signed and fmt.zero and rounding.underflow is Underflow.GRADUAL
    spare = carrier.place + 1 >= fmt.precision + rounding.guard_bits and fmt.precision > 1
    decided = rounding.mode not in (Mode.TO_ODD, Mode.STOCHASTIC)
    return usual and spare and decided and not _reaches(fmt, carrier) and fmt.emin == carrier.emin


def carries_over(kind: Type, fmt: Format, rounding: Rounding) -> bool:
    """Return whether the carry in the code alone handles overflow and infinity correctly."""
    plain = fmt.precision > 1 and rounding.overflow is Overflow.IEEE
    return plain and has_range_of(CARRIERS[kind], fmt)


# -- by addition ---------------------------------------------------------------------------------------------
def _reaches(fmt: Format, carrier: FloatLayout) -> bool:
    """Return whether the added power exists for every exponent, with a last bit that tells even from odd."""
    cut = carrier.place + 1 - fmt.precision
    return cut >= 2 and fmt.emax + 1 + cut <= carrier.bias and fmt.precision > 1


def _by_addition(x: Value, fmt: Format, mode: Mode) -> Value:
    carrier = CARRIERS[x.type]
    code = x.bits()
    cut = carrier.place + 1 - fmt.precision
    field = greatest(code & carrier.exponent_bits, carrier.field(fmt.emin))
    field = least(field, carrier.field(fmt.emax + 1))
    # One and a half times the power, so that numbers of either sign stay within its binade.
    power = (field + ((cut << carrier.place) + (1 << (carrier.place - 1)))).as_number()
    if mode in (Mode.UP, Mode.DOWN):
        towards = x if mode is Mode.UP else -x
        total = towards + power
        error = (total - power) - towards  # exact; negative where the result is the neighbour above
        total = (total.bits() - (error.bits() >> carrier.sign_place)).as_number()
        return with_sign(total - power if mode is Mode.UP else power - total, code)
    if mode is Mode.NEAREST_EVEN:
        return with_sign((x + power) - power, code)
    magnitude = abs(x)
    total = magnitude + power
    nearest = total - power
    error = magnitude - nearest  # exact
    if mode is Mode.NEAREST_AWAY:
        # After a tie that went toward zero, the next number is equally far.
        above = ((total.bits() + 1).as_number() - power) - magnitude
        stepped = total.bits() + above.equals(error).count(BITS_OF[x.type])
    else:
        stepped = total.bits() + (error.bits() >> carrier.sign_place)  # one less where it rounded up
        if mode is Mode.TO_ODD:
            stepped = stepped | (~error.equals(0.0)).count(BITS_OF[x.type])
    return with_sign(stepped.as_number() - power, code)


def with_sign(x: Value, code: Value) -> Value:
    """Return a number with its sign bit set if that of a code is: a zero regains its sign."""
    return (x.bits() | (code & CARRIERS[x.type].sign_bit)).as_number()


# -- by the code ---------------------------------------------------------------------------------------------
def _by_code(
    x: Value, fmt: Format, rounding: Rounding, word: Value | None, residual: Value | None = None
) -> Value:
    carrier, code = CARRIERS[x.type], x.bits()
    cut = carrier.place + 1 - fmt.precision
    if not cut:
        return x
    if residual is not None and rounding.mode is not Mode.NEAREST_EVEN:
        code = _towards(code, residual, rounding.mode)
    ones, quantum = (1 << cut) - 1, 1 << cut
    mode, flips = rounding.mode, False
    if fmt.precision == 1:  # the last bit kept belongs to the exponent, not to the significand
        if fmt.parity is Parity.CODE:
            flips = (fmt.bias - carrier.bias) % 2 == 1
        elif mode is Mode.NEAREST_EVEN:
            mode = Mode.NEAREST_AWAY
        elif mode is Mode.TO_ODD:
            mode = Mode.TOWARD_ZERO
    if mode is Mode.NEAREST_EVEN:
        code = _tied_to_even(code, cut, flips, residual)
    elif mode is Mode.NEAREST_AWAY:
        code = code + quantum // 2
    elif mode is Mode.UP:
        code = code + (~(code >> carrier.sign_place) & ones)
    elif mode is Mode.DOWN:
        code = code + ((code >> carrier.sign_place) & ones)
    elif mode is Mode.TO_ODD:
        carry = (code & ones) + ones  # reaches the last bit kept if any bit cut off is set
        # If a clear bit is odd, step up from a set one.
        code = ((carry & code) & quantum) + code if flips else carry | code
    elif mode is Mode.STOCHASTIC:
        bits, rule = rounding.random_bits, rounding.rule
        if rule is Rule.NEAREST_FIRST and bits < cut:
            code = _tied_to_even(code, cut - bits, False)
        code = code + _aligned_draw(word, rounding, cut, code.type)
    return (code & ~ones).as_number()


def _towards(code: Value, residual: Value, mode: Mode) -> Value:
    """Return the code, moved to the next number where the residual changes the result of the mode."""
    if mode in (Mode.TOWARD_ZERO, Mode.NEAREST_AWAY):
        return code - _inward(code, residual).count(code.type)
    sign = code >> CARRIERS[NUMBER_OF[code.type]].sign_place  # 0 or -1
    outward = (residual > 0.0) if mode is Mode.UP else (residual < 0.0)
    step = sign | 1 if mode is Mode.UP else (~sign) | 1
    return outward.select(code + step, code)


def _inward(code: Value, residual: Value) -> Value:
    """Return whether a residual points toward zero from the number of a code."""
    return (code < 0).select(residual > 0.0, residual < 0.0)


def _tied_to_even(code: Value, cut: int, flips: bool, residual: Value | None = None) -> Value:
    """Add just under half a unit of the bit at `cut`, and that bit (or its opposite): ties then go to even.

    A nonzero residual decides ties first.
    """
    odd = (code >> cut) & 1
    up = odd ^ 1 if flips else odd
    if residual is not None:
        outward = (~_inward(code, residual)).count(code.type)
        up = (abs(residual) > 0.0).select(outward, up)
    return code + (up + ((1 << cut >> 1) - 1))


def _aligned_draw(word: Value | None, rounding: Rounding, cut: int, kind: Type) -> Value:
    """Return the random bits aligned below the last bit kept; adding them carries with the right probability.

    With r random bits R the rules truncate and nearest_first carry if ``rest + R 2**(cut - r)`` reaches
    ``2**cut``, and centred does with ``2 R + 1`` and ``r + 1`` in place of R and r. If there are more random
    bits than bits cut off, the excess ones have no effect and are dropped.
    """
    draw, bits = random_bits(word, rounding)
    draw = draw if kind is I32 else draw.extend()
    if bits != cut:
        draw = draw << (cut - bits) if bits < cut else draw >> (bits - cut)
    return draw.cut() if kind is I32 else draw


def random_bits(word: Value | None, rounding: Rounding) -> tuple[Value, int]:
    """Return the random bits as the rule takes them, and their number.

    Raises
    ------
    ValueError
        If there is no random word, or it is too short.
    """
    if word is None or (word.type is not I64 and (word.type is not I32 or rounding.random_bits > SHORT)):
        raise ValueError("stochastic rounding needs a random word of 64 bits, or of 32 for few bits")
    bits = rounding.random_bits
    return (word * 2 + 1, bits + 1) if rounding.rule is Rule.CENTRED else (word, bits)


def _below_normal(x: Value, fmt: Format, rounding: Rounding, word: Value | None) -> Value:
    """Round a number of magnitude below ``2**emin`` to a multiple of the quantum."""
    carrier, kind = CARRIERS[x.type], BITS_OF[x.type]
    code, mode = x.bits(), rounding.mode
    scale = fmt.precision - 1 - fmt.emin
    first, second = scale // 2, scale - scale // 2  # in two steps, as the quantum may be beyond the carrier
    quanta = abs(x) * 2.0**first * 2.0**second
    if scale < 0:  # numbers far below the quantum leave the carrier's range
        lost = quanta.equals(0.0) & ~x.equals(0.0)
        quanta = lost.select(2.0**carrier.emin, quanta)
    unit = 2.0**carrier.place  # the sum's code counts in quanta
    total = quanta + unit
    error = quanta - (total - unit)  # exact
    truncated = total.bits() - (error < 0.0).count(kind)
    inexact = ~error.equals(0.0)
    negative = code < 0
    if mode is Mode.NEAREST_EVEN:
        stepped = total.bits()
    elif mode is Mode.NEAREST_AWAY:
        stepped = total.bits() + error.equals(0.5).count(kind)
    elif mode is Mode.TOWARD_ZERO:
        stepped = truncated
    elif mode is Mode.TO_ODD:
        stepped = truncated | inexact.count(kind)
    elif mode is Mode.STOCHASTIC:
        fraction = (quanta - (truncated.as_number() - unit)).widen()
        draw, bits = random_bits(word, rounding)
        carried = _whole(fraction * 2.0**bits, nearest=rounding.rule is Rule.NEAREST_FIRST) + draw.extend()
        stepped = truncated + (carried >= 1 << bits).count(kind)
    else:
        outward = negative if mode is Mode.DOWN else ~negative
        stepped = truncated + (inexact & outward).count(kind)
    rounded = (stepped.as_number() - unit) * 2.0**-first * 2.0**-second
    return with_sign(rounded, code)


def _whole(x: Value, *, nearest: bool) -> Value:
    """Return a binary64 number from 0 to 2**52 as an integer, rounded to nearest even or down."""
    unit = 2.0**52
    total = x + unit
    whole = total.bits() - CARRIERS[F64].field(52)
    return whole if nearest else whole - (x < total - unit).count(I64)


# -- numbers that are no finite numbers of the format --------------------------------------------------------
def _within_range(
    x: Value, rounded: Value, fmt: Format, rounding: Rounding, word: Value | None, *, clean: bool
) -> Value:
    """Apply the overflow policy, and restore NaN and infinity."""
    carrier, mode, code = CARRIERS[x.type], rounding.mode, x.bits()
    if carries_over(x.type, fmt, rounding):
        # In the code, infinity follows the largest number. A clean NaN stays, too.
        return rounded if clean else x.equals(x).select(rounded, x)
    largest, finite = x.like(float(fmt.max)), abs(x) < INFINITY
    infinite = with_sign(x.like(INFINITY if fmt.has_infinity else NAN), code)
    # In nearest modes the additions preserve NaN and infinity; elsewhere their codes have been changed.
    keeps_nan = _reaches(fmt, carrier) and mode in NEAREST
    exceeds = largest < abs(rounded) if keeps_nan else ~(abs(rounded) <= largest)
    if rounding.overflow is Overflow.NEAREST_BOUNDARY:
        outward, saturates = _past_boundary(x, fmt, rounding, word), not fmt.has_nan
        exceeds = ~(abs(x) <= largest)
    else:
        outward, saturates = None, rounding.overflow is Overflow.SATURATE or not fmt.has_nan
    most = with_sign(largest, code)
    if saturates or mode in (Mode.TOWARD_ZERO, Mode.TO_ODD):
        beyond = finite.select(most, infinite)
    elif outward is not None:
        beyond = outward.select(infinite, most)
    elif mode in (Mode.UP, Mode.DOWN):
        outward = (code < 0) if mode is Mode.DOWN else (code >= 0)
        beyond = (outward | ~finite).select(infinite, most)
    else:
        beyond = infinite
    rounded = exceeds.select(beyond, rounded)
    return rounded if keeps_nan else x.equals(x).select(rounded, x)


def _past_boundary(x: Value, fmt: Format, rounding: Rounding, word: Value | None) -> Value:
    """Return whether a number overflows by its random word, between the maximum and half a quantum above it.

    The excess over the maximum is exact. It is scaled to the binade of 1, where every carrier has room, and
    rounded to half a quantum, or to 0 or less; only half a quantum means overflow. Infinity and NaN overflow.
    """
    half = 2.0**-fmt.precision
    unit = Format(precision=1, emin=-fmt.precision, emax=-fmt.precision, specials=Specials.NONE)
    excess = (abs(x) - float(fmt.max)) * 2.0**-fmt.emax
    share = (excess < half).select(excess, half)  # so that it does not overflow itself
    policies = replace(rounding, overflow=Overflow.SATURATE, underflow=Underflow.GRADUAL)
    return round_float(share, unit, policies, word) > 0.0


def _above_underflow(x: Value, rounded: Value, fmt: Format, rounding: Rounding, word: Value | None) -> Value:
    """Flush a number below the smallest normal one, or replace it by that one if the format has no zero."""
    code = x.bits()
    normal = x.like(float(fmt.smallest_normal))
    tiny = (abs(x) < normal) & ~x.equals(0.0)
    smallest, nothing = with_sign(normal, code), with_sign(x.like(0.0), code)
    if rounding.underflow is Underflow.GRADUAL:
        instead = smallest
    elif rounding.underflow is Underflow.FLUSH_AFTER:
        instead = _survives(x, fmt, rounding, word).select(smallest, nothing)
    else:
        instead = nothing
    return tiny.select(instead, rounded)


#: Fields of a format that has the numbers around 1 and those two binades below it.
_TO_ONE: Any = {"emin": -2, "emax": 0, "specials": Specials.NONE, "signed": True}


def _survives(x: Value, fmt: Format, rounding: Rounding, word: Value | None) -> Value:
    """Return whether a number below the smallest normal one rounds to it with an unbounded exponent.

    The number is divided by the smallest normal one. If parity or random bits decide, the quotient is rounded
    in a format that has numbers below 1. (Codes of precision 1 are greater by 2 there, so their parity is the
    same.) Otherwise it is compared: in the modes up and down with the last number below 1, and in nearest
    modes with the midpoint above that number, where ties go to 1. No other mode rounds it to 1.
    """
    mode, scaled = rounding.mode, x * 2.0**-fmt.emin
    if mode is Mode.STOCHASTIC or fmt.precision == 1:
        gradual = replace(rounding, underflow=Underflow.GRADUAL)
        return abs(round_float(scaled, replace(fmt, **_TO_ONE), gradual, word)) >= 1.0
    if mode in (Mode.UP, Mode.DOWN):
        return (scaled if mode is Mode.UP else -scaled) > 1 - 2.0**-fmt.precision
    has_midpoint = mode in NEAREST and fmt.precision <= CARRIERS[x.type].place
    return abs(scaled) >= (1 - 2.0 ** -(fmt.precision + 1) if has_midpoint else 1.0)
