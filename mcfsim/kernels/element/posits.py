"""Rounding of one number to a posit, as a straight line; `mcfsim.kernels.posits` says why it is exact."""

from __future__ import annotations

from mcfsim.formats.posit import Posit
from mcfsim.kernels.element.floats import CARRIERS, INFINITY, NAN
from mcfsim.kernels.element.machine import I64, Value, greatest, least
from mcfsim.rounding import Mode, Rounding, Rule


def round_posit(x: Value, fmt: Posit, rounding: Rounding, word: Value | None = None) -> Value:
    """Round a number of the carrier to a posit.

    Patterns are ordered as the numbers are, and so are the carrier's codes, whose low bits are those of the
    pattern where anything is cut off: rounding is an addition to the code, and clearing of its low bits.

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
    rounded = ((moved + one) | (code & carrier.sign_bit)).as_number()
    rounded = x.equals(0.0).select(0.0, rounded)
    return (abs(x) < INFINITY).select(rounded, NAN)


def _addend(
    offset: Value, cut: Value, ones: Value, code: Value, fmt: Posit, rounding: Rounding, word: Value | None
) -> Value | int:
    """Return what to add to the offset before its low bits are cleared."""
    mode, carrier = rounding.mode, CARRIERS[code.as_number().type]
    # A regime that fills the code ends in 1 for k = 2 - n and in 0 for k = n - 3; so does k for odd n.
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
    """Return the random bits aligned below the last bit kept; those beyond the bits cut off cannot matter."""
    if word is None or word.type is not I64:
        raise ValueError("stochastic rounding needs a random word of 64 bits")
    draw, bits = word, rounding.random_bits
    if rounding.rule is Rule.CENTRED:
        draw, bits = word * 2 + 1, bits + 1
    beyond = cut.extend() - bits
    aligned = (draw << greatest(beyond, 0)) >> greatest(word.line.enter(0, I64) - beyond, 0)
    if rounding.rule is Rule.NEAREST_FIRST:
        beyond = greatest(beyond, 0)
        aligned = aligned + ((_ones(beyond) + ((offset.extend() >> beyond) & 1)) >> 1)
    return aligned if offset.type is I64 else aligned.cut()


def _ones(count: Value) -> Value:
    """Return an integer of so many ones."""
    return (count.line.enter(1, count.type) << count) - 1
