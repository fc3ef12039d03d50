"""Multi-component floats: each number is the unevaluated sum of n values of one format.

Each component of an expansion is the remainder after the ones before it, rounded:
``x[0] = RN(x[0] + x[1])`` and so on. So two components of precision p hold about 2 p bits and three about
3 p, as far as the smallest subnormal number allows. Every function takes the arithmetic first. Expansions
are tuples, most significant component first; two components form a double word. Bounds are relative errors,
with u = 2**-p, for rounding to nearest even without overflow, and without underflow of products and
quotients. They require rounding errors to be values of the format. So arithmetic on two or more components
runs in binary floating point with sign and zero, or exactly; others raise `UnsupportedFormatError`.
"""

from __future__ import annotations

from fractions import Fraction

from mcfsim.checks import check_processor
from mcfsim.eft import fast_two_sum, two_prod_fma, two_sum
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.multiword import double_word
from mcfsim.multiword.components import check_components
from mcfsim.multiword.components import expand as expand
from mcfsim.protocol import Arithmetic, Value, straight_line

Expansion = tuple[Value, ...]


def value(x: Expansion) -> Fraction:
    """Return the exact sum of an expansion's scalar components; ValueError if one is infinite or NaN."""
    check_processor()
    total = Fraction(0)
    for place, part in enumerate(x):
        exact = to_fraction(part)
        if exact is None:
            raise ValueError(f"component {place} is {part}, no finite number")
        total += exact
    return total


@straight_line
def renormalize(ar: Arithmetic, x: Expansion) -> Expansion:
    """Return the same sum as a normalised expansion y: ``y[i] = RN(y[i] + y[i + 1])`` for every i.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : expansion
        Finite components in any order of magnitude.

    Returns
    -------
    expansion
        The same number n of components, with exactly the same sum.

    Notes
    -----
    Sweeps of 2Sum run from the last component up, each one component shorter than the one before. Then n - 2
    sweeps run down, to repair cancellation. For n <= 2 this is 2Sum itself. For larger n normalisation is
    measured, not proved: no exception is known for n = 3, 4, 5. The sum is always exact.

    References
    ----------
    VecSum: Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26(6), 2005, Algorithm 4.3.
    """
    _check(ar, "renormalized", x)
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
    """Add the number ``a`` to an expansion. Two components take 10 operations, or 7 if ordered.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : expansion
        Of n components, normalised.
    a : value
        A number of the format.
    ordered : bool, optional
        Whether the first step is Fast2Sum, as in Collage's Grow, instead of 2Sum. This is correct only where
        ``|x[0]| >= |a|``; elsewhere the compensation is lost, see `dw_plus_fp`.

    Returns
    -------
    expansion
        Of n components. For n = 2 the relative error is at most 2 u**2; for n = 1 this is plain addition.

    References
    ----------
    For n = 2 see `dw_plus_fp`. For larger n the first sweep is Shewchuk, Discrete Comput. Geom. 18, 1997,
    Theorem 10, run from the other end.
    """
    _check(ar, "grown", x)
    if len(x) == 1:
        return (ar.add(x[0], a),)
    if len(x) == 2:
        return double_word.dw_plus_fp(ar, x, a, ordered=ordered)
    total, rest = (fast_two_sum if ordered else two_sum)(ar, x[0], a)
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
        Of n components. For n = 2 the relative error is at most 3 u**2 / (1 - 4 u), in 20 operations: see
        `accurate_dw_plus_dw`. For larger n the components of y are added one by one, largest first.

    Raises
    ------
    ValueError
        If x and y differ in length.
    """
    _check(ar, "added", x, y)
    if len(x) == 2:
        return double_word.accurate_dw_plus_dw(ar, x, y)
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
        Of n components. For n = 2 `dw_times_fp3` has a relative error of at most 2 u**2, in 6 operations.
    """
    _check(ar, "scaled", x)
    if len(x) == 1:
        return (ar.mul(x[0], a),)
    if len(x) == 2:
        return double_word.dw_times_fp3(ar, x, a)
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
        Of n components. For n = 2 the relative error is below 5 u**2, in 8 operations. This is Collage's Mul:
        `dw_times_dw2` with its factors exchanged, without the product of the second components. For larger n
        the products ``x[i] y[j]`` with i + j < n are summed, largest first, with their errors except those of
        the last diagonal.

    Raises
    ------
    ValueError
        If x and y differ in length.
    """
    _check(ar, "multiplied", x, y)
    n = len(x)
    if n == 1:
        return (ar.mul(x[0], y[0]),)
    if n == 2:
        return double_word.dw_times_dw2(ar, y, x)
    p, e = two_prod_fma(ar, x[0], y[0])
    total: Expansion = (p, e, *(ar.mul(p, 0.0) for _ in range(n - 2)))
    for diagonal in range(1, n):
        for i in range(diagonal + 1):
            p, e = two_prod_fma(ar, x[i], y[diagonal - i])
            total = grow(ar, total, p)
            if diagonal < n - 1:
                total = grow(ar, total, e)
    return renormalize(ar, total)


@straight_line
def div(ar: Arithmetic, x: Expansion, y: Expansion) -> Expansion:
    """Divide one expansion by another.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and, for n = 2, has a fused multiply-add.
    x, y : expansion
        Of n components each, n = 1 or 2, normalised. With two components y = 0 gives NaN.

    Returns
    -------
    expansion
        Of n components. For n = 2 `dw_div_dw2` is off by at most 15 u**2 + 56 u**3, in 18 operations.

    Raises
    ------
    ValueError
        If x and y differ in length, or have more than two components.
    """
    _check(ar, "divided", x, y, short=True)
    return double_word.dw_div_dw2(ar, x, y) if len(x) == 2 else (ar.div(x[0], y[0]),)


@straight_line
def sqrt(ar: Arithmetic, x: Expansion) -> Expansion:
    """Return the square root of an expansion.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and, for n = 2, has a fused multiply-add.
    x : expansion
        Of n components, n = 1 or 2, normalised. With two components x = 0 gives NaN.

    Returns
    -------
    expansion
        Of n components. For n = 2 `sqrt_dw` is off by at most 25/8 u**2, in 8 operations.

    Raises
    ------
    ValueError
        If x has more than two components.
    """
    _check(ar, "put under a square root", x, short=True)
    return double_word.sqrt_dw(ar, x) if len(x) == 2 else (ar.sqrt(x[0]),)


def _check(ar: Arithmetic, done: str, x: Expansion, *others: Expansion, short: bool = False) -> None:
    """Refuse expansions that differ in length, are too long, or whose format allows only one component."""
    for given in (x, *others):
        if not isinstance(given, tuple | list):
            raise TypeError(f"an expansion is a tuple of components, not a {type(given).__name__}")
        if not given:
            raise ValueError(f"an expansion without components cannot be {done}")
    n = len(x)
    for y in others:
        if n != len(y):
            raise ValueError(f"expansions of {n} and {len(y)} components cannot be {done}")
    if short and n not in (1, 2):
        raise ValueError(f"an expansion of {n} components cannot be {done}; allowed: 1 or 2")
    if n > 1:
        check_components(ar.format)
