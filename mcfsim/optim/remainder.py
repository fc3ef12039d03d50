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
    most = 2 ** (bits - 1) - 1
    ar = ar.like(FLOAT32, Rounding())
    theta = ar.round(theta)
    # The power of two at or below a number; of zeros and subnormal numbers the one where these begin.
    binade = ar.like(_powers(low), Rounding(Mode.TOWARD_ZERO)).round(ar.add(ar.abs(theta), _LEAST))
    half = ar.mul(ar.round(binade), 2.0**-low.precision)
    share = ar.mul(ar.div(ar.sub(master, theta), half), float(most))
    steps = Grid(f"int{bits}_symmetric", low=-most, high=most)
    rho = ar.like(steps, Rounding(Mode.NEAREST_AWAY, Overflow.SATURATE)).round(share)
    return ar.add(theta, ar.mul(ar.div(ar.round(rho), float(most)), half))
