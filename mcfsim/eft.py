"""Error-free transformations: a rounded result together with its exact error.

Each function takes an arithmetic first and runs in any arithmetic. Unless a docstring says otherwise, "exact"
assumes a binary floating-point format with sign and zero, rounding to nearest, gradual underflow and no
overflow. The error of a sum of posits, for example, need not be a posit. In the formulas u = 2**-p is the
unit roundoff and p the precision of the arithmetic's format.
"""

from __future__ import annotations

from mcfsim.checks import check_int
from mcfsim.protocol import Arithmetic, Value, straight_line


@straight_line
def two_sum(ar: Arithmetic, a: Value, b: Value) -> tuple[Value, Value]:
    """Return ``s = RN(a + b)`` and ``e = a + b - s``, for operands in any order. 6 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest with any tie rule. In a directed mode e is within 2 u**2 |a + b| of the error.
    a, b : value
        Finite. If a is infinite or NaN, or s overflows, e is NaN. If ``|a|`` is the largest finite number, an
        intermediate result can overflow although s is finite.

    Returns
    -------
    s, e : value
        ``s + e == a + b`` exactly. e is +0 or -0 where s is exact.

    References
    ----------
    Knuth, The Art of Computer Programming 2, 4.2.2, Theorem B; Moller, BIT 5, 1965.
    Boldo, Graillat, Muller, ACM TOMS 44(1), 2017, on overflow and directed modes.
    """
    s = ar.add(a, b)
    a1 = ar.sub(s, b)
    b1 = ar.sub(s, a1)
    return s, ar.add(ar.sub(a, a1), ar.sub(b, b1))


@straight_line
def fast_two_sum(ar: Arithmetic, a: Value, b: Value) -> tuple[Value, Value]:
    """Return ``s = RN(a + b)`` and ``e = a + b - s`` where ``|a| >= |b|``. 3 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest with any tie rule.
    a, b : value
        Finite, with a = 0, or ``|a| >= |b|``, or an exponent of a that is at least that of b, or, the weakest
        condition, with a an integer multiple of ulp(b). Otherwise e may be wrong by nearly u |a + b|, which
        makes it useless. Nothing is checked.

    Returns
    -------
    s, e : value
        ``s + e == a + b`` exactly under one of the conditions above. If s is finite, nothing overflows.

    References
    ----------
    Dekker, Numer. Math. 18, 1971. Jeannerod, Zimmermann, FastTwoSum revisited, ARITH 2025, Theorem 1.
    """
    s = ar.add(a, b)
    z = ar.sub(s, a)
    return s, ar.sub(b, z)


@straight_line
def split(ar: Arithmetic, x: Value, *, bits: int | None = None) -> tuple[Value, Value]:
    """Split ``x`` into a high part of p - s bits and a low part of s - 1 bits. 4 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest; it must have a format.
    x : value
        Finite and, as ``(2**s + 1) x`` is formed, below about ``max / 2**s``; beyond it the parts are NaN.
    bits : int, optional
        The number s of low bits that ``high`` lacks: 1 to p - 1, by default ceil(p / 2), as `two_prod` needs.

    Returns
    -------
    high, low : value
        ``high + low == x`` exactly. With ties to even, ``high`` is x rounded to nearest even to p - s bits.
        If s is 1, ``low`` still has one bit.

    Raises
    ------
    TypeError
        If `bits` is no int.
    ValueError
        If the arithmetic rounds into no format, or `bits` is out of range.

    References
    ----------
    Veltkamp 1968; Dekker, Numer. Math. 18, 1971.
    """
    if ar.format is None:
        raise ValueError("split needs an arithmetic with a format: exact numbers have no halves")
    p = ar.format.precision
    if bits is None:
        bits = -(-p // 2)
    check_int("bits", bits)
    if not 1 <= bits < p:
        raise ValueError(f"bits = {bits} must lie between 1 and {p - 1} to split numbers of {p} bits")
    g = ar.mul(x, 2.0**bits + 1.0)
    high = ar.add(g, ar.sub(x, g))
    return high, ar.sub(x, high)


@straight_line
def two_prod(ar: Arithmetic, a: Value, b: Value, *, bits: int | None = None) -> tuple[Value, Value]:
    """Return ``p = RN(a b)`` and ``e = a b - p`` without a fused multiply-add. 17 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest, ties to even; precision at least 3.
    a, b : value
        Within the range of `split`. The product ``a b`` is zero, or its magnitude is at most half the
        format's maximum and at least ``2**(emin + precision)``; below it the error may be no value of the
        format, and e is then only near it.
    bits : int, optional
        Where `split` cuts the operands. For an odd precision the smaller half is wrong: with 5 bits, one pair
        of float16 significands in seven has an inexact e.

    Returns
    -------
    p, e : value
        ``p + e == a b`` exactly under the conditions above, with the default `bits`.

    Raises
    ------
    TypeError, ValueError
        As `split` does.

    References
    ----------
    Dekker, Numer. Math. 18, 1971; with s = ceil(p / 2), as an odd p needs: Boldo, IJCAR 2006.
    """
    p = ar.mul(a, b)
    a_high, a_low = split(ar, a, bits=bits)
    b_high, b_low = split(ar, b, bits=bits)
    t = ar.sub(ar.mul(a_high, b_high), p)
    t = ar.add(t, ar.mul(a_high, b_low))
    t = ar.add(t, ar.mul(a_low, b_high))
    return p, ar.add(t, ar.mul(a_low, b_low))


@straight_line
def two_prod_fma(ar: Arithmetic, a: Value, b: Value) -> tuple[Value, Value]:
    """Return ``p = RN(a b)`` and ``e = RN(a b - p)`` by a fused multiply-add. 2 operations.

    Parameters
    ----------
    ar : Arithmetic
        Any faithful rounding, if its fma rounds once.
    a, b : value
        Finite. Where p overflows, e is the opposite infinity; if an operand is infinite or NaN, e is NaN.

    Returns
    -------
    p, e : value
        ``p + e == a b`` exactly if and only if ``a b`` is a multiple of the smallest subnormal number;
        otherwise e is the rounded error.

    References
    ----------
    Boldo, Daumas, ARITH 2003, on when the error is representable.
    """
    p = ar.mul(a, b)
    return p, ar.fma(a, b, ar.neg(p))


@straight_line
def err_fma(ar: Arithmetic, a: Value, b: Value, c: Value) -> tuple[Value, Value, Value]:
    """Return ``r = RN(a b + c)`` and its error ``a b + c - r`` as a double word. 20 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add; precision at least 3.
    a, b, c : value
        Finite, with ``a b`` a multiple of the smallest subnormal number; otherwise the error of ``a b`` need
        not be a value of the format. Where an intermediate result overflows, results are NaN or infinite.

    Returns
    -------
    r, e, f : value
        ``r + e + f == a b + c`` exactly, and e is the error rounded to nearest. One number does not suffice.

    References
    ----------
    Boldo, Muller, Exact and approximated error of the FMA, IEEE Trans. Comput. 60(2), 2011.
    """
    r = ar.fma(a, b, c)
    high, low = two_prod_fma(ar, a, b)
    middle, last = two_sum(ar, c, low)
    first, rest = two_sum(ar, high, middle)
    e, f = fast_two_sum(ar, ar.add(ar.sub(first, r), rest), last)
    return r, e, f
