"""Double-word arithmetic: a number as the unevaluated sum of two words, about twice as precise as one.

A double word is a tuple ``(high, low)`` with ``high = RN(high + low)``. Every algorithm is a straight line of
operations of the arithmetic that it takes first, runs on any of them, and returns a double word where its
operands are double words. Its docstring counts the operations, changes of sign left out, and bounds the
relative error in units of u**2, u = 2**-p, for floating point of precision p that rounds to nearest even,
without overflow and without underflow of products and quotients: sums may be subnormal. In other modes, and
of posits and grids, nothing is claimed.

NaN or an infinity as an operand or high word, a division by zero and the square root of a negative number
make both words NaN; where a step overflows to infinity, the low word is not finite. A result that is zero may
have either sign.
"""

from mcfsim.multiword.double_word.add import accurate_dw_plus_dw, add222, dw_plus_fp, sloppy_dw_plus_dw
from mcfsim.multiword.double_word.div import (
    dw_div_dw1,
    dw_div_dw2,
    dw_div_dw2_fma,
    dw_div_dw3,
    dw_div_fp1,
    dw_div_fp2,
    dw_div_fp3,
)
from mcfsim.multiword.double_word.mul import (
    dw_times_dw1,
    dw_times_dw2,
    dw_times_dw3,
    dw_times_fp1,
    dw_times_fp2,
    dw_times_fp3,
)
from mcfsim.multiword.double_word.sqrt import sqrt_dw
from mcfsim.multiword.double_word.words import DoubleWord

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
