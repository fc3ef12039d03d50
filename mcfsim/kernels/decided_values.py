"""Elementary functions of long formats by NumPy's, where these are accurate enough to decide the rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.kernels.elementary import MOST_BITS, odd_values

Array = NDArray[Any]

#: NumPy's functions that are asked: all its ways to compute them state errors of at most 4 units in the last
#: place, for every argument. Those of sines may grow with it.
_ASKED: Mapping[str, Callable[[Array], Array]] = {"exp": np.exp, "log": np.log}
#: Leading bits of a significand of binary64, and the error in its units that is reckoned with.
_BITS, _ERROR = 53, 1 << 9
#: Binary logarithm of magnitudes between which results are taken: far from the ends of binary64.
_REACH = 1000


def decided_values(name: str, x: Array, fmt: Format, needed: int) -> NDArray[np.float64]:
    """Return binary64 numbers that any rounding by `needed` bits rounds as values of an elementary function.

    NumPy's result is returned where all numbers within 512 units in its last place agree in the leading bits,
    and none of them has these bits alone. Else it is `odd_values`, which is right in all bits.

    Parameters
    ----------
    name : str
        The function.
    x : array of float32 or float64
        A block of values of the format.
    fmt : Format
    needed : int
        Bits of a significand that decide: the precision of the result and guard bits.
    """
    left = _BITS - needed
    if name not in _ASKED or fmt.bits <= MOST_BITS or 1 << left <= 4 * _ERROR:
        return odd_values(name, x, fmt)
    with np.errstate(all="ignore"):
        y: NDArray[np.float64] = _ASKED[name](x.astype(np.float64))
        magnitude = np.abs(y)
    rest = y.view(np.int64) & ((1 << left) - 1)
    sure = (rest > _ERROR) & (rest < (1 << left) - _ERROR)
    sure &= (magnitude > 2.0**-_REACH) & (magnitude < 2.0**_REACH)
    unsure = ~sure
    if unsure.any():
        y[unsure] = odd_values(name, x[unsure], fmt)
    return y
