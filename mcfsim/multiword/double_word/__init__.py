"""Double-word arithmetic: a number is the unevaluated sum of two words, with about twice their precision.

A double word is a tuple ``(high, low)`` with ``high = RN(high + low)``. Every algorithm is a straight line of
operations. It takes the arithmetic first, runs on any arithmetic, and returns a double word if its operands
are double words. Its docstring counts the operations, without changes of sign, and bounds the relative error
in units of u**2, u = 2**-p. The bound is for floating point of precision p that rounds to nearest even,
without overflow and without underflow of products and quotients; sums may be subnormal. Nothing is claimed
for other rounding modes, posits and grids.

Both words are NaN if an operand or high word is NaN or infinite, after a division by zero, and for the square
root of a negative number. If a step overflows to infinity, the low word is not finite. A zero result may have
either sign.
"""

from mcfsim.multiword.double_word.add import (
    DoubleWord,
    accurate_dw_plus_dw,
    add222,
    dw_plus_fp,
    sloppy_dw_plus_dw,
)
from mcfsim.multiword.double_word.div import (
    dw_div_dw1,
    dw_div_dw2,
    dw_div_dw2_fma,
    dw_div_dw3,
    dw_div_fp1,
    dw_div_fp2,
    dw_div_fp3,
    sqrt_dw,
)
from mcfsim.multiword.double_word.mul import (
    dw_times_dw1,
    dw_times_dw2,
    dw_times_dw3,
    dw_times_fp1,
    dw_times_fp2,
    dw_times_fp3,
)

__all__ = [
    "DoubleWord",
    "accurate_dw_plus_dw",
    "add222",
    "dw_div_dw1",
    "dw_div_dw2",
    "dw_div_dw2_fma",
    "dw_div_dw3",
    "dw_div_fp1",
    "dw_div_fp2",
    "dw_div_fp3",
    "dw_plus_fp",
    "dw_times_dw1",
    "dw_times_dw2",
    "dw_times_dw3",
    "dw_times_fp1",
    "dw_times_fp2",
    "dw_times_fp3",
    "sloppy_dw_plus_dw",
    "sqrt_dw",
]
