"""Multi-component floats: a number as the unevaluated sum of n values of one format.

A component of an expansion is what remains after the ones before it, rounded: ``x[0] = RN(x[0] + x[1])``
and so on. So two components of precision p hold about 2 p bits, three about 3 p, as far as the smallest
subnormal number allows. Every function takes the arithmetic first and runs on any of them; expansions are
tuples, most significant component first. Bounds are relative errors, with u = 2**-p, for rounding to
nearest even without overflow; those of products need products that do not underflow either.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from mcfsim.arithmetic import Arithmetic, Value, straight_line
from mcfsim.convert import round_real
from mcfsim.eft import fast_two_sum, two_prod_fma, two_sum
from mcfsim.reals import to_fraction
from mcfsim.rounding import Rounding

Expansion = tuple[Value, ...]


def expand(ar: Arithmetic, value: Any, n: int) -> tuple[Any, ...]:
    """Return the real number ``value`` as n components: each is the rest, rounded to nearest even.

    Parameters
    ----------
    ar : Arithmetic
        Its format takes the components. An arithmetic without a format gives the number and n - 1 zeros.
    value : float, int, Fraction, Decimal or mpf
        A finite real number, taken exactly: ``0.999`` is the binary64 number, ``Fraction("0.999")`` and
        ``Decimal("0.999")`` the decimal one.
    n : int
        Number of components, at least 1.

    Returns
    -------
    tuple of float
        The components; they end in zeros where the rest is zero or below half the smallest subnormal.

    Raises
    ------
    ValueError
        If n < 1, or the value is not finite or overflows the format.
    """
    if n < 1:
        raise ValueError(f"n = {n}: an expansion has at least one component")
    rest = to_fraction(value)
    if rest is None:
        raise ValueError(f"cannot expand {value!r}: it is not finite")
    if ar.format is None:
        return (ar.round(value), *(ar.round(0) for _ in range(n - 1)))
    components = []
    for _ in range(n):
        component = round_real(rest, ar.format, Rounding())
        exact = to_fraction(component)
        # A format without NaN and infinity saturates, and that shows only here.
        half_ulp = ar.format.max / (2 * ar.format.max_significand)
        if exact is None or (not ar.format.has_nan and abs(rest) - ar.format.max >= half_ulp):
            raise ValueError(
                f"cannot expand {value!r} in {ar.format}: it exceeds the maximum {float(ar.format.max)}"
            )
        components.append(component)
        rest -= exact
    return tuple(components)


def value(x: Expansion) -> Fraction:
    """Return the exact sum of an expansion's scalar components."""
    return sum((Fraction(to_fraction(part) or 0) for part in x), Fraction(0))


@straight_line
def renormalize(ar: Arithmetic, x: Expansion) -> Expansion:
    """Return the same sum, normalised: each component is its sum with the next one, rounded.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : expansion
        Finite components in any order of magnitude.

    Returns
    -------
    expansion
        As many components, with exactly the same sum.

    Notes
    -----
    Sweeps of 2Sum from the last component up, each one component shorter than the one before, and then
    n - 2 sweeps down, for what cancelled. For n <= 2 that is 2Sum itself. For larger n that the result is
    normalised is measured, not proved: no exception is known for n = 3, 4, 5. The sum is exact regardless.

    References
    ----------
    VecSum: Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26(6), 2005, Algorithm 4.3.
    """
    parts = list(x)
    for first in range(len(parts) - 1):
        for i in range(len(parts) - 1, first, -1):
            parts[i - 1], parts[i] = two_sum(ar, parts[i - 1], parts[i])
    for _ in range(len(parts) - 2):
        for i in range(len(parts) - 1):
            parts[i], parts[i + 1] = two_sum(ar, parts[i], parts[i + 1])
    return tuple(parts)


@straight_line
def grow(ar: Arithmetic, x: Expansion, a: Value, *, ordered: bool = False) -> Expansion:
    """Add the number ``a`` to an expansion. For two components 10 operations, or 7 if ordered.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : expansion
        Of n components, normalised.
    a : value
        A number of the format.
    ordered : bool, optional
        If true, the first step is Fast2Sum, as in Collage's Grow, and exact only where ``|x[0]| >= |a|``
        (or x[0] = 0, or the exponents are so ordered). Otherwise the compensation is lost: the error
        reaches 1.004 u in bfloat16. By default the first step is 2Sum, which needs no order.

    Returns
    -------
    expansion
        Of n components. For n = 2 the relative error is at most 2 u**2; for n = 1 it is plain addition.

    References
    ----------
    Collage's Grow: Yu et al., ICML 2024. With 2Sum and n = 2 it is DWPlusFP: Joldes, Muller, Popescu,
    ACM TOMS 44(2), 2017, Algorithm 4. The first sweep for larger n: Shewchuk, Discrete Comput. Geom. 18,
    1997, Theorem 10, from the other end.
    """
    if len(x) == 1:
        return (ar.add(x[0], a),)
    total, rest = (fast_two_sum if ordered else two_sum)(ar, x[0], a)
    if len(x) == 2:
        return fast_two_sum(ar, total, ar.add(x[1], rest))
    parts = [total]
    for component in x[1:-1]:
        total, rest = two_sum(ar, component, rest)
        parts.append(total)
    return renormalize(ar, (*parts, ar.add(x[-1], rest)))


@straight_line
def add(ar: Arithmetic, x: Expansion, y: Expansion) -> Expansion:
    """Add two expansions.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x, y : expansion
        Of n components each, normalised.

    Returns
    -------
    expansion
        Of n components. For n = 2 the relative error is at most 3 u**2 / (1 - 4 u), in 20 operations.
        For larger n the components of y are added one by one, largest first.

    References
    ----------
    AccurateDWPlusDW: Joldes, Muller, Popescu 2017, Algorithm 6, Theorem 3.1; Muller, Rideau, ACM TOMS
    48(1), 2022.
    """
    if len(x) != len(y):
        raise ValueError(f"expansions of {len(x)} and {len(y)} components cannot be added")
    if len(x) == 2:
        s, e = two_sum(ar, x[0], y[0])
        t, f = two_sum(ar, x[1], y[1])
        s, e = fast_two_sum(ar, s, ar.add(e, t))
        return fast_two_sum(ar, s, ar.add(f, e))
    for component in y:
        x = grow(ar, x, component)
    return x


@straight_line
def scale(ar: Arithmetic, x: Expansion, a: Value) -> Expansion:
    """Multiply an expansion by the number ``a``.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x : expansion
        Of n components, normalised.
    a : value
        A number of the format.

    Returns
    -------
    expansion
        Of n components. For n = 2 the relative error is at most 2 u**2, in 6 operations.

    References
    ----------
    Collage's Scaling: Yu et al., ICML 2024, which is DWTimesFP3: Joldes, Muller, Popescu 2017,
    Algorithm 9, Theorem 4.3.
    """
    if len(x) == 1:
        return (ar.mul(x[0], a),)
    if len(x) == 2:
        p, e = two_prod_fma(ar, x[0], a)
        return fast_two_sum(ar, p, ar.fma(x[1], a, e))
    return mul(ar, x, (a, *(ar.mul(part, 0.0) for part in x[1:])))


@straight_line
def mul(ar: Arithmetic, x: Expansion, y: Expansion) -> Expansion:
    """Multiply two expansions.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : expansion
        Of n components each, normalised.

    Returns
    -------
    expansion
        Of n components. For n = 2 the relative error is below 5 u**2, in 8 operations, the product of the
        two second components left out. For larger n the products ``x[i] y[j]`` with i + j < n are summed
        with their errors, but for the errors of the last diagonal, largest first.

    References
    ----------
    Collage's Mul: Yu et al., ICML 2024, which is DWTimesDW2 with its operands exchanged: Joldes, Muller,
    Popescu 2017, Algorithm 11; bound of Muller, Rideau, ACM TOMS 48(1), 2022, Theorem 2.7.
    """
    n = len(x)
    if n != len(y):
        raise ValueError(f"expansions of {n} and {len(y)} components cannot be multiplied")
    if n == 1:
        return (ar.mul(x[0], y[0]),)
    p, e = two_prod_fma(ar, x[0], y[0])
    if n == 2:
        cross = ar.fma(x[0], y[1], ar.mul(x[1], y[0]))
        return fast_two_sum(ar, p, ar.add(e, cross))
    total: Expansion = (p, e, *(ar.mul(p, 0.0) for _ in range(n - 2)))
    for diagonal in range(1, n):
        for i in range(diagonal + 1):
            p, e = two_prod_fma(ar, x[i], y[diagonal - i])
            total = grow(ar, total, p)
            if diagonal < n - 1:
                total = grow(ar, total, e)
    return renormalize(ar, total)
