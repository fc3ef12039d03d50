"""Rounding of one number to a format of any kind."""

from __future__ import annotations

from mcfsim.formats import Format
from mcfsim.formats.grids import Grid
from mcfsim.formats.posit import Posit
from mcfsim.kernels.element.floats import CARRIERS, has_range_of, round_float, round_grid
from mcfsim.kernels.element.machine import Value
from mcfsim.kernels.element.posits import round_posit
from mcfsim.rounding import Mode, Rounding


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
    """Return whether a number of the carrier is a value of a format but for the sign of zero; NaN may be."""
    carrier = CARRIERS[x.type]
    if type(fmt) is Format and has_range_of(carrier, fmt) and fmt.signed and fmt.zero:
        return (x.bits() & ((1 << (carrier.place + 1 - fmt.precision)) - 1)).equals(0)
    # The mode with the shorter algorithm.
    rounding = Rounding(Mode.TOWARD_ZERO) if isinstance(fmt, Posit) else Rounding()
    return round_element(x, fmt, rounding).equals(x)
