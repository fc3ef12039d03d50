"""The double-word algorithms step by step in exact rationals, with unbounded exponents.

An independent text: where an algorithm computes the error of a sum or a product, here it is the error.
"""

import math
from fractions import Fraction

from tests.shared.rationals import floor_log2


class Steps:
    """Rounding to nearest even to p bits, any exponent, and the algorithms; ``o`` rounds, as in papers."""

    def __init__(o, precision):
        o.precision = precision

    def __call__(o, x):
        if x == 0:
            return Fraction(0)
        quantum = Fraction(2) ** (floor_log2(x) - o.precision + 1)
        return round(x / quantum) * quantum

    def sqrt(o, x):
        """Round a root: no root of a p-bit number is a tie, so a few more bits and a sticky one decide."""
        scale = 2 * o.precision + 4 - floor_log2(x) // 2
        square = x * Fraction(4) ** scale
        floor = math.isqrt(int(square))
        return o((floor + Fraction(floor**2 != square, 2)) / Fraction(2) ** scale)

    def pair(o, exact):
        """Return what is rounded, and the error."""
        high = o(exact)
        return high, exact - high

    def close(o, exact, low):
        """Round a number, and add to it its error and something low."""
        high, error = o.pair(exact)
        return o.pair(high + o(error + low))

    def dw_plus_fp(o, x, y):
        return o.close(x[0] + y, x[1])

    def sloppy_dw_plus_dw(o, x, y):
        return o.close(x[0] + y[0], o(x[1] + y[1]))

    def accurate_dw_plus_dw(o, x, y):
        s, e = o.pair(x[0] + y[0])
        t, f = o.pair(x[1] + y[1])
        v, w = o.pair(s + o(e + t))
        return o.pair(v + o(f + w))

    def add222(o, x, y):
        s, e = o.pair(x[0] + y[0])
        t, f = o.pair(x[1] + y[1])
        s, t = o.pair(s + t)
        return o.pair(s + o(o(e + f) + t))

    def dw_times_fp1(o, x, y):
        c, d = o.pair(x[0] * y)
        t, e = o.pair(c + o(x[1] * y))
        return o.pair(t + o(e + d))

    def dw_times_fp2(o, x, y):
        return o.close(x[0] * y, o(x[1] * y))

    def dw_times_fp3(o, x, y):
        return o.close(x[0] * y, x[1] * y)

    def dw_times_dw1(o, x, y):
        return o.close(x[0] * y[0], o(o(x[0] * y[1]) + o(x[1] * y[0])))

    def dw_times_dw2(o, x, y):
        return o.close(x[0] * y[0], o(x[1] * y[0] + o(x[0] * y[1])))

    def dw_times_dw3(o, x, y):
        return o.close(x[0] * y[0], o(x[1] * y[0] + o(x[0] * y[1] + o(x[1] * y[1]))))

    def dw_div_fp1(o, x, y):
        t = o(x[0] / y)
        g, h = o.pair(t * y)
        d, e = o.pair(x[0] - g)
        return o.pair(t + o(o(d + o(e + o(x[1] - h))) / y))

    def dw_div_fp2(o, x, y):
        t = o(x[0] / y)
        g, h = o.pair(t * y)
        return o.pair(t + o(o(x[0] - g + o(x[1] - h)) / y))

    def dw_div_fp3(o, x, y):
        t = o(x[0] / y)
        return o.pair(t + o(o(x[0] - t * y + x[1]) / y))

    def dw_div_dw1(o, x, y):
        t = o(x[0] / y[0])
        r, e = o.dw_times_fp1(y, t)
        d, v = o.pair(x[0] - r)
        return o.pair(t + o(o(d + o(o(v - e) + x[1])) / y[0]))

    def dw_div_dw2(o, x, y, times=None):
        t = o(x[0] / y[0])
        r, e = (times or o.dw_times_fp1)(y, t)
        return o.pair(t + o(o(x[0] - r + o(x[1] - e)) / y[0]))

    def dw_div_dw2_fma(o, x, y):
        return o.dw_div_dw2(x, y, o.dw_times_fp3)

    def dw_div_dw3(o, x, y):
        t = o(1 / y[0])
        e = o.pair(1 - y[0] * t - o(y[1] * t))
        return o.dw_times_dw3(x, o.dw_plus_fp(o.dw_times_fp3(e, t), t))

    def sqrt_dw(o, x):
        s = o.sqrt(x[0])
        return o.pair(s + o(o(x[0] - s * s + x[1]) / (2 * s)))
