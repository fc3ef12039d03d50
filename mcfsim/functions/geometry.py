"""Lengths and rotations in the plane: the hypotenuse in two ways, and Givens rotations.

The bounds are relative errors; u is the unit roundoff, and rounding is to nearest.
"""

from __future__ import annotations

from mcfsim.protocol import Arithmetic, Value, straight_line


@straight_line
def hypot(ar: Arithmetic, a: Value, b: Value) -> Value:
    """Return ``sqrt(a**2 + b**2)``, computed as written. 4 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    a, b : value
        A square overflows, or underflows, long before the result does: in float16 beyond 255.

    Returns
    -------
    value
        Off by at most 2 u, without overflow and underflow. The bound is asymptotically optimal.

    References
    ----------
    Jeannerod, Muller, Plet, The classical relative error bounds for computing sqrt(a^2 + b^2) and
    c / sqrt(a^2 + b^2) in binary floating-point arithmetic are asymptotically optimal, ARITH 2017.
    """
    return ar.sqrt(ar.add(ar.mul(a, a), ar.mul(b, b)))


def _ratio(ar: Arithmetic, small: Value, large: Value) -> Value:
    """Return ``small / large``, and small where large is zero."""
    divisor = ar.choose(ar.neg(ar.abs(large)), 1.0, large)
    return ar.div(small, divisor)


@straight_line
def scaled_hypot(ar: Arithmetic, a: Value, b: Value) -> Value:
    """Return ``sqrt(a**2 + b**2)`` as the larger magnitude times ``sqrt(1 + r**2)``, r the ratio of the two.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest, and has `choose`, and therefore gradual underflow.
    a, b : value
        Finite.

    Returns
    -------
    value
        Off by at most 3.25 u, to first order. It overflows only if the result does, and a ratio that
        underflows does not matter. `hypot` is more accurate where it neither overflows nor underflows.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, chapter 27. The bound is that of
    the steps by the standard model.
    """
    a, b = ar.abs(a), ar.abs(b)
    large, small = ar.maximum(a, b), ar.minimum(a, b)
    ratio = _ratio(ar, small, large)
    return ar.mul(large, ar.sqrt(ar.add(1.0, ar.mul(ratio, ratio))))


@straight_line
def rotation(ar: Arithmetic, c: Value, s: Value, x: Value, y: Value) -> tuple[Value, Value]:
    """Return ``(c x + s y, c y - s x)``: the vector (x, y) after a Givens rotation. 6 operations.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    c, s : value
        Cosine and sine, as of `givens`.
    x, y : value

    Returns
    -------
    x, y : value
        The vector is off by at most ``sqrt(2) gamma(2)`` times its length, with gamma as in `reductions`, for
        exact cosine and sine. A component that nearly vanishes has no relative accuracy.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 19.6.
    """
    return ar.add(ar.mul(c, x), ar.mul(s, y)), ar.sub(ar.mul(c, y), ar.mul(s, x))


@straight_line
def givens(ar: Arithmetic, a: Value, b: Value) -> tuple[Value, Value]:
    """Return cosine and sine of the rotation that takes (a, b) to (r, 0), from the ratio of the two.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest, and has `choose`, and therefore gradual underflow.
    a, b : value
        Finite. For two zeros the results are 1 and 0.

    Returns
    -------
    c, s : value
        With ``c**2 + s**2 = 1`` and ``c b = s a``. If ``|a| >= |b|``, c is positive, otherwise s. The
        positive one is off by at most 3.25 u, the other by at most 5.25 u, to first order, where it does not
        underflow.

    References
    ----------
    Golub, Van Loan, Matrix Computations, 4th ed., 2013, Algorithm 5.1.3, up to signs. The bounds are those of
    the steps by the standard model.
    """
    order = ar.sub(ar.abs(a), ar.abs(b))
    ratio = _ratio(ar, ar.choose(order, b, a), ar.choose(order, a, b))
    of_large = ar.div(1.0, ar.sqrt(ar.add(1.0, ar.mul(ratio, ratio))))
    of_small = ar.mul(of_large, ratio)
    return ar.choose(order, of_large, of_small), ar.choose(order, of_small, of_large)
