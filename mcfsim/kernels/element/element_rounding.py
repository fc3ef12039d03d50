"""Rounding of one number to a format of any kind, and the algorithms for posits and grids.

A posit is rounded by operations on the bits of the carrier's code.

The posit standard rounds a number by its pattern, the code that it would have if codes had no end: n bits are
kept, and the rest, read as a binary fraction, decides. So in the nearest modes the boundary between two
neighbours is the posit of n + 1 bits between them. It is not the arithmetic mean where some exponent bits are
cut off.

Patterns are ordered like the numbers. So are a carrier's codes, whose low bits equal those of the pattern
wherever bits are cut off. The pattern need not be assembled: rounding adds to the carrier's code and clears
low bits, whose number depends on the number rounded. A carry into exponent and regime gives the next posit.

What binary64 can decide. All boundaries of rounding are posits of more bits: n bits for directed rounding and
rounding to odd, n + 1 for rounding to nearest, at most n + r + 1 with r random bits. A posit of n + j bits
has at most p + j significant bits, where p is the precision of the format. Let y be an exact result, rounded
to odd in binary64. If p + j + 1 <= 53, no boundary lies between the exact result and y, and y is a boundary
only if the exact result is. Hence both round alike: in the deterministic modes up to n = 53 + es, with r
random bits up to n = 53 + es - r. As for floating-point formats, 53 bits must hold the precision and
`Rounding.guard_bits`, and exact results must not leave binary64's range. Nonzero results have magnitudes
between minpos**2 and maxpos**2 + maxpos, maxpos = 2**((n - 2) 2**es): within 2**+-481 for n <= 32, es <= 3.
"""

from __future__ import annotations

from mcfsim.formats import Format, Specials
from mcfsim.formats.grids import Grid
from mcfsim.formats.posit import Posit
from mcfsim.kernels.element.floats import (
    CARRIERS,
    INFINITY,
    NAN,
    has_range_of,
    random_bits,
    round_float,
    with_sign,
)
from mcfsim.kernels.element.machine import I64, Value, greatest, least
from mcfsim.rounding import Mode, Rounding, Rule


def round_element(
    x: Value, fmt: Format, rounding: Rounding, word: Value | None = None, *, clean: bool = False
) -> Value:
    """Round a number of the carrier to a format, once; see `mcfsim.kernels.element.floats.round_float`."""
    if isinstance(fmt, Posit):
        return round_posit(x, fmt, rounding, word)
    if isinstance(fmt, Grid):
        return round_grid(x, fmt, rounding, word)
    return round_float(x, fmt, rounding, word, clean=clean)


def is_value(x: Value, fmt: Format) -> Value:
    """Return whether a number of the carrier is NaN or a value of a format, ignoring the sign of zero."""
    return is_kept(x, fmt) | ~x.equals(x)


def is_kept(x: Value, fmt: Format) -> Value:
    """Return whether a number is a value of a format, ignoring the sign of zero; unspecified for NaN."""
    carrier = CARRIERS[x.type]
    if type(fmt) is Format and has_range_of(carrier, fmt) and fmt.signed and fmt.zero:
        return (x.bits() & ((1 << (carrier.place + 1 - fmt.precision)) - 1)).equals(0)
    # The mode with the shorter algorithm.
    rounding = Rounding(Mode.TOWARD_ZERO) if isinstance(fmt, Posit) else Rounding()
    return round_element(x, fmt, rounding).equals(x)


def round_grid(x: Value, fmt: Grid, rounding: Rounding, word: Value | None = None) -> Value:
    """Round a number of the carrier to a uniform grid: to fixed point, then clamped to the grid's ends."""
    # One bit more than the grid needs, so that neither end of the grid is next to an end of this format.
    precision, exponent = fmt.precision + 1, fmt.emin + 1
    fixed_point = Format(precision=precision, emin=exponent, emax=exponent, specials=Specials.NONE)
    rounded = round_float(x, fixed_point, rounding, word)
    low, high = rounded.like(float(fmt.lowest)), rounded.like(float(fmt.max))
    rounded = (rounded < low).select(low, rounded)
    return (high < rounded).select(high, rounded) + 0.0  # -0 + 0 is +0


# -- posits --------------------------------------------------------------------------------------------------
def round_posit(x: Value, fmt: Posit, rounding: Rounding, word: Value | None = None) -> Value:
    """Round a number of the carrier to a posit.

    A mode decides by the fraction cut off the magnitude's pattern. ``up`` and ``down`` also depend on the
    sign. A code is odd if its last bit is 1, and ``nearest_even`` takes a tie to the even code. In every
    mode, directed and stochastic ones included, a nonzero number of magnitude below the smallest posit
    becomes the smallest of its sign, and one beyond the largest becomes the largest of its sign. NaN stays
    NaN, an infinity becomes NaN, and a zero becomes positive.

    Parameters
    ----------
    x, word
        As for `mcfsim.kernels.element.floats.round_float`.
    fmt : Posit
        The target.
    rounding : Rounding
        Mode and random bits; a posit neither over- nor underflows.
    """
    carrier, code = CARRIERS[x.type], x.bits()
    magnitude = code & ~carrier.sign_bit
    one, tail = carrier.field(0), carrier.place + fmt.es
    offset = least(greatest(magnitude - one, fmt.emin << carrier.place), fmt.emax << carrier.place)
    # A regime takes two bits, and one more for each step of k away from 0 and -1.
    k = offset >> tail
    run = least(k ^ (k >> carrier.sign_place), fmt.bits - 3)
    cut = run + (tail - (fmt.bits - 3))
    ones = _ones(cut)
    moved = (offset + _addend(offset, cut, ones, code, fmt, rounding, word)) & ~ones
    rounded = with_sign((moved + one).as_number(), code)
    rounded = x.equals(0.0).select(0.0, rounded)
    return (abs(x) < INFINITY).select(rounded, with_sign(x.like(NAN), code))


def _addend(
    offset: Value, cut: Value, ones: Value, code: Value, fmt: Posit, rounding: Rounding, word: Value | None
) -> Value | int:
    """Return the addend for the offset, before its low bits are cleared."""
    mode, carrier = rounding.mode, CARRIERS[code.as_number().type]
    # A regime that fills the code ends in 1 for k = 2 - n and in 0 for k = n - 3; for odd n, so does k.
    odd = (offset >> cut) & 1
    if fmt.bits % 2 == 0:
        odd = odd ^ cut.equals(carrier.place + fmt.es).count(odd.type)
    match mode:
        case Mode.NEAREST_EVEN:  # half a unit of the last bit kept, or just less for an even code
            return (odd + ones) >> 1
        case Mode.NEAREST_AWAY:
            return (ones + 1) >> 1
        case Mode.TOWARD_ZERO:
            return 0
        case Mode.UP:
            return ~(code >> carrier.sign_place) & ones
        case Mode.DOWN:
            return (code >> carrier.sign_place) & ones
        case Mode.TO_ODD:
            return (odd - 1) & ones
        case Mode.STOCHASTIC:
            return _draw(offset, cut, rounding, word)


def _draw(offset: Value, cut: Value, rounding: Rounding, word: Value | None) -> Value:
    """Return the random bits aligned below the last bit kept; bits beyond those cut off have no effect."""
    kind = offset.type
    draw, bits = random_bits(word, rounding)
    if draw.type is I64 or offset.type is I64:
        draw, cut, offset = draw.extend(), cut.extend(), offset.extend()
    beyond = cut - bits
    aligned = (draw << greatest(beyond, 0)) >> greatest(beyond.line.enter(0, beyond.type) - beyond, 0)
    if rounding.rule is Rule.NEAREST_FIRST:
        beyond = greatest(beyond, 0)
        aligned = aligned + ((_ones(beyond) + ((offset >> beyond) & 1)) >> 1)
    return aligned if kind is I64 else aligned.cut()


def _ones(count: Value) -> Value:
    """Return an integer whose low `count` bits are ones."""
    return (count.line.enter(1, count.type) << count) - 1
