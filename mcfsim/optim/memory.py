"""How an optimizer's vectors lie in memory: as carrier numbers, or packed, as codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.codec.codes import values_of
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.codes_by_kind import FloatCodes, code_dtype, codes_by_kind
from mcfsim.kernels.element.codes import MOST_BITS
from mcfsim.optim.state import State

Array = NDArray[Any]
#: Those of a `State`'s vectors, in its order.
Formats = tuple[Format | None, ...]


def packed_dtype(fmt: Format) -> np.dtype[Any]:
    """Return the dtype of a packed vector: of codes that have 16 bits or less, one of them for NaN.

    Other formats lie in their carriers.
    """
    short = fmt.bits <= MOST_BITS and fmt.has_nan
    return code_dtype(fmt) if short else carrier_of(fmt)


def form(fmt: Format | None, *, packed: bool) -> np.dtype[Any]:
    """Return the dtype of a vector of a format, packed or not, or of one of exact numbers."""
    if fmt is None:
        return np.dtype(object)
    return packed_dtype(fmt) if packed else carrier_of(fmt)


def is_packed(x: Array) -> bool:
    """Return whether a vector holds codes."""
    return x.dtype.kind == "u"


def read(x: Array, fmt: Format | None) -> Array:
    """Return the carrier numbers of a vector, as it is if it holds them."""
    if not is_packed(x):
        return x
    assert fmt is not None
    carrier, codes = carrier_of(fmt), codes_by_kind(fmt)
    cut = codes.cut(carrier) if isinstance(codes, FloatCodes) else 0
    if not cut:
        return values_of(x, fmt)
    numbers: Array = x.astype(f"u{carrier.itemsize}")
    numbers <<= numbers.dtype.type(cut)
    return numbers.view(carrier)


def write(x: Array, values: Array, fmt: Format | None) -> None:
    """Put values of a format in a vector; if they are codes, it holds codes, too."""
    if is_packed(x) and not is_packed(values):
        assert fmt is not None
        values = codes_by_kind(fmt).encode(np.ascontiguousarray(values))
    x[...] = values


def read_block(state: State, formats: Formats, block: slice) -> State:
    """Return the carrier numbers of a block of all vectors."""
    pairs = zip(state, formats, strict=True)
    return State(*(tuple(read(x[block], fmt) for x in vectors) for vectors, fmt in pairs))


def write_block(state: State, new: State, formats: Formats, block: slice) -> None:
    """Put new values in a block of all vectors."""
    for vectors, values, fmt in zip(state, new, formats, strict=True):
        for x, made in zip(vectors, values, strict=True):
            write(x[block], made, fmt)
