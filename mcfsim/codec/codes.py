"""Codes of values, and values of codes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks.arguments import as_codes, real_array
from mcfsim.convert import round_to
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.blocks import for_each_block
from mcfsim.kernels.carriers import FLOAT64, carrier_of
from mcfsim.kernels.codes_by_kind import code_dtype, codes_by_kind
from mcfsim.storage.buffers import BLOCK

Block = NDArray[Any]

#: Formats of at most so many bits are decoded by a table of all codes.
_TABLE_BITS = 16


def encode(x: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the codes of values of a format.

    A floating-point code is sign, exponent field and fraction, from the highest bit down; that of a grid is
    the integer in two's complement; that of a posit follows the posit standard.

    Parameters
    ----------
    x : array_like
        Values of the format, in a NumPy or ml_dtypes float of at most 64 bits, or integers; any shape, layout
        and byte order. Every NaN gets the same code, the positive quiet NaN where there is a choice. Negative
        zero gets the code of zero in a format with only one.
    fmt : Format or str
        The format.

    Returns
    -------
    array of unsigned integers
        Of the shape of x, in `code_dtype`.

    Raises
    ------
    TypeError
        If x does not hold real numbers.
    ValueError
        If an element is no value of the format; an infinity or NaN is none where there is no code for it.
    UnsupportedFormatError
        If float64 cannot hold the format.
    """
    fmt = get_format(fmt)
    dtype, carrier = code_dtype(fmt), carrier_of(fmt)
    given = real_numbers(x)
    source = carrier if np.can_cast(given.dtype, carrier) else FLOAT64
    codes = codes_by_kind(fmt)

    def on_block(start: int, block: Block, out: Block) -> None:
        wrong = round_to(block, fmt) != block
        if wrong.any():
            nan = np.isnan(block)
            if (wrong > nan).any():
                refuse(given, start + int(np.argmax(wrong > nan)), f"is no value of {fmt}; round it first")
            if not fmt.has_nan:
                refuse(given, start + int(np.argmax(nan)), f"has no code: {fmt} has no code for NaN")
        out[...] = codes.encode(block)

    return for_each_block(on_block, [given], source, 1, results=dtype, ordered=True)[0]


def decode(codes: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the values of codes, in the format's carrier dtype.

    Parameters
    ----------
    codes : array_like of integers
        Codes of the format, of any integer dtype, shape, layout and byte order.
    fmt : Format or str
        The format.

    Returns
    -------
    array of float32 or float64
        Of the shape of the codes; exact. A code of a NaN gives NaN.

    Raises
    ------
    TypeError
        If the codes are no integers.
    ValueError
        If a code is negative or has too many bits, or stands for nothing: beyond the largest number of a
        format whose exponent range does not fill its field, or beyond an end of a grid.
    UnsupportedFormatError
        If float64 cannot hold the format.
    """
    fmt = get_format(fmt)
    carrier = carrier_of(fmt)
    given = as_codes(codes)
    _check_range(given, fmt)
    if fmt in (FORMATS["float32"], FORMATS["float64"]):  # the codes are the carrier's own
        return given.astype(code_dtype(fmt)).view(carrier)

    def on_block(start: int, block: Block, out: Block) -> None:
        _check_assigned(given, start, block, fmt)
        out[...] = values_of(block, fmt)

    source = np.dtype(np.uint64) if fmt.bits > _TABLE_BITS else code_dtype(fmt)
    return for_each_block(on_block, [given], source, 1, results=carrier, ordered=True)[0]


def values_of(codes: Block, fmt: Format) -> Block:
    """Return the values of codes, of which each stands for one; unchecked."""
    return codes_by_kind(fmt).decode(codes) if fmt.bits > _TABLE_BITS else _table(fmt).take(codes)


def check_codes(codes: Block, fmt: Format) -> None:
    """Raise ValueError, as `decode` does, unless all integers of a vector are codes that stand for values."""
    if fmt.bits < 8 * codes.dtype.itemsize:
        _check_range(codes, fmt)
    for start in range(0, codes.size, BLOCK):
        _check_assigned(codes, start, codes[start : start + BLOCK], fmt)


def _check_range(given: Block, fmt: Format) -> None:
    if given.size and not 0 <= int(given.min()) <= int(given.max()) < 2**fmt.bits:
        wrong = (given < 0) | (given > 2**fmt.bits - 1)
        refuse(given, int(np.argmax(wrong)), f"is no code: codes of {fmt} lie in [0, 2**{fmt.bits})")


def _check_assigned(given: Block, start: int, block: Block, fmt: Format) -> None:
    kind = codes_by_kind(fmt)
    if kind.gaps and (unassigned := kind.unassigned(block)).any():
        refuse(given, start + int(np.argmax(unassigned)), f"stands for no value of {fmt}")


def all_values(fmt: Format | str) -> NDArray[Any]:
    """Return every value but NaN in increasing order, -0 before +0 and infinities included.

    Raises
    ------
    ValueError
        If codes have more than 24 bits.
    """
    fmt = get_format(fmt)
    if fmt.bits > 24:
        raise ValueError(f"{fmt} has 2**{fmt.bits} codes; listing is for at most 2**24")
    codes = codes_by_kind(fmt)
    values = decode(codes.at(np.arange(codes.first, codes.last + 1)), fmt)
    return np.insert(values, -codes.first, -0.0) if fmt.has_negative_zero else values


def real_numbers(x: ArrayLike) -> NDArray[Any]:
    """Return an array of real numbers that binary64 holds."""
    array = real_array(x)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return np.asarray(round_to(array, "float64", "down"))  # refuses those that binary64 does not hold
    return array


def refuse(array: Block, place: int, what: str) -> NoReturn:
    """Raise an error that names the element at a place in row-major order."""
    index = tuple(int(i) for i in np.unravel_index(place, array.shape))
    raise ValueError(f"element {index} = {array[index]} {what}")


@lru_cache(maxsize=64)
def _table(fmt: Format) -> Block:
    """Return the values of all codes; of those that stand for nothing, zero."""
    kind, codes = codes_by_kind(fmt), np.arange(1 << fmt.bits, dtype=np.uint64)
    table = np.zeros(codes.size, dtype=carrier_of(fmt))
    assigned = ~kind.unassigned(codes) if kind.gaps else np.ones(codes.size, dtype=np.bool_)
    table[assigned] = kind.decode(codes[assigned])
    table.flags.writeable = False
    return table
