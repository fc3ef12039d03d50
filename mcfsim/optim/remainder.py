"""A master copy of which a few bits are stored beside the parameter: what is left of it."""

from __future__ import annotations

from mcfsim.formats import Format, Grid, Specials
from mcfsim.optim.stored import FLOAT32
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import Mode, Overflow, Rounding

#: Below every step of a low format, and to be added to a zero, which has no exponent.
_LEAST = float(FLOAT32.smallest_subnormal)


def _powers(low: Format) -> Format:
    """Return the format of the powers of two among the normal numbers of another."""
    return Format(
        f"powers of {low}",
        precision=1,
        emin=low.emin,
        emax=low.emax,
        specials=Specials.FN,
        signed=False,
        zero=False,
    )


def grid_of(bits: int) -> Grid:
    """Return the integers that a remainder of so many bits has."""
    most = 2 ** (bits - 1) - 1
    return Grid(f"int{bits}_symmetric", low=-most, high=most)


def _half(ar: Arithmetic, low: Format, theta: Value) -> Value:
    """Return half an ulp in the binade of a parameter: of zero and subnormal numbers in the lowest."""
    # The power of two at or below a number; of zeros and subnormal numbers the one where these begin.
    binade = ar.like(_powers(low), Rounding(Mode.TOWARD_ZERO)).round(ar.add(ar.abs(theta), _LEAST))
    return ar.mul(ar.round(binade), 2.0**-low.precision)


def steps_of(ar: Arithmetic, low: Format, bits: int, theta: Value, master: Value) -> Value:
    """Return the remainder that a parameter leaves of its master copy: the integer rho of `remaining`."""
    ar = ar.like(FLOAT32, Rounding())
    theta, grid = ar.round(theta), grid_of(bits)
    share = ar.mul(ar.div(ar.sub(master, theta), _half(ar, low, theta)), float(grid.high))
    return ar.like(grid, Rounding(Mode.NEAREST_AWAY, Overflow.SATURATE)).round(share)


def with_steps(ar: Arithmetic, low: Format, bits: int, theta: Value, rho: Value) -> Value:
    """Return the master copy of a parameter and a remainder."""
    ar = ar.like(FLOAT32, Rounding())
    theta = ar.round(theta)
    share = ar.div(ar.round(rho), float(grid_of(bits).high))
    return ar.add(theta, ar.mul(share, _half(ar, low, theta)))


def remaining(ar: Arithmetic, low: Format, bits: int, master: Value, theta: Value) -> Value:
    """Return what a parameter and a remainder of so many bits say of a master copy.

    Parameters
    ----------
    ar : Arithmetic
        In float32; only its kind matters, all is rounded to nearest even.
    low : Format
        Of the parameter.
    bits : int
        Of the remainder.
    master, theta : value
        The master copy, and the parameter, which is the master copy rounded into `low`.

    Returns
    -------
    value
        ``theta + RN(RN(rho / L) h)``, rounded, with ``L = 2**(bits - 1) - 1``, h half an ulp in theta's
        binade, and rho the integer next to ``RN((master - theta) / h L)``, of two the one away from zero, and
        at most L in magnitude. NaN where the master copy has left the range of `low`.

    References
    ----------
    FlashOptim, arXiv 2602.23349: ``_compute_ecc_bits`` and ``_apply_error_correction`` of its code, with 8
    and 16 bits. (Its multiplications by powers of two are in two parts, of which the first is exact.)
    """
    return with_steps(ar, low, bits, theta, steps_of(ar, low, bits, theta, master))
