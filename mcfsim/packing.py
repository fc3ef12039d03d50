"""Packing of codes of 1 to 64 bits into bytes without gaps, and unpacking."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks import as_array, as_codes, check_int, refuse

#: Codes per block: a multiple of 8, so that each block begins at a byte boundary.
BLOCK = 1 << 14


def packed_size(count: int, bits: int) -> int:
    """Return the number of bytes that `count` packed codes of `bits` bits take.

    Raises
    ------
    TypeError
        If an argument is no int.
    ValueError
        If `count` is negative or `bits` is out of range.
    """
    _dtype(bits)
    check_int("count", count, 0)
    return -(-count * bits // 8)


def pack(codes: ArrayLike, bits: int) -> NDArray[np.uint8]:
    """Pack the low bits of codes into bytes.

    The codes form one bit stream in row-major order, whatever their layout in memory. Code i takes bits
    ``i * bits`` to ``(i + 1) * bits - 1`` of the stream, its lowest bit first. Bit k of the stream is bit
    ``k % 8`` of byte ``k // 8``, where bit 0 is the lowest. Codes of 4 bits fill the low half of a byte
    first; codes of 16 bits are little-endian. The last byte is padded with zeros.

    Parameters
    ----------
    codes : array_like of integers
        Any shape, layout and byte order, each in ``[0, 2**bits)``.
    bits : int
        Bits of a code, 1 to 64.

    Returns
    -------
    array of uint8, shape (packed_size(codes.size, bits),)
        The bytes, the same on every machine. If rows have a multiple of 8 codes, each begins at a byte
        boundary.

    Raises
    ------
    TypeError
        If the codes are no integers.
    ValueError
        If a code is negative or has too many bits, or `bits` is out of range.

    Examples
    --------
    >>> pack([0x1, 0x2, 0x3], 4)
    array([33,  3], dtype=uint8)
    """
    dtype = _dtype(bits)
    given = as_codes(codes)
    flat = given.reshape(-1) if given.flags.c_contiguous else given.flat
    unbounded = np.iinfo(given.dtype).min == 0 and np.iinfo(given.dtype).max < 2**bits
    packed = np.empty(packed_size(given.size, bits), dtype=np.uint8)
    for start, stop in _blocks(given.size):
        block = flat[start:stop]
        if not (unbounded or (block.min() >= 0 and int(block.max()) < 2**bits)):
            wrong = start + int(np.argmax((block < 0) | (block > 2**bits - 1)))
            refuse(given, wrong, f"lies outside [0, 2**{bits})")
        _pack_block(block.astype(dtype), bits, packed[start * bits // 8 : packed_size(stop, bits)])
    return packed


def unpack(packed: NDArray[np.uint8], bits: int, shape: int | Sequence[int]) -> NDArray[Any]:
    """Return the codes that `pack` packed.

    Parameters
    ----------
    packed : array of uint8, shape (packed_size(count, bits),)
        The bytes.
    bits : int
        Bits of a code, 1 to 64.
    shape : int or sequence of int
        Shape of the result, or the number of its elements.

    Returns
    -------
    array of unsigned integers
        The codes, in the shortest dtype that holds them.

    Raises
    ------
    TypeError
        If the bytes are no array of uint8, or the shape is not of integers.
    ValueError
        If there are more or fewer bytes than the shape needs, the padding bits of the last byte are not zero,
        or `bits` or the shape is out of range.

    Examples
    --------
    >>> unpack(pack([5, 63, 1, 2], 6), 6, (2, 2))
    array([[ 5, 63],
           [ 1,  2]], dtype=uint8)
    """
    dtype = _dtype(bits)
    if not isinstance(packed, np.ndarray) or packed.dtype != np.uint8:
        raise TypeError(f"packed codes are an array of uint8, not {getattr(packed, 'dtype', type(packed))}")
    packed = as_array(packed, "packed")
    try:
        lengths = tuple(map(operator.index, shape if isinstance(shape, Sequence) else [shape]))
    except TypeError:
        raise TypeError(f"shape must be an int or a sequence of ints, not {shape!r}") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape {lengths} has a negative length")
    count = math.prod(lengths)
    if packed.shape != (packed_size(count, bits),):
        raise ValueError(
            f"{count} codes of {bits} bits take {packed_size(count, bits)} bytes in one dimension, "
            f"not an array of shape {packed.shape}"
        )
    used = count * bits % 8
    if used and packed[-1] >> used:
        raise ValueError(f"the last byte is {packed[-1]:#04x}: its {8 - used} highest bits must be zero")
    codes = np.empty(count, dtype=dtype)
    for start, stop in _blocks(count):
        part = np.ascontiguousarray(packed[start * bits // 8 : packed_size(stop, bits)])
        _unpack_block(part, bits, codes[start:stop])
    return codes.reshape(lengths)


def _dtype(bits: int) -> np.dtype[Any]:
    """Return the shortest unsigned dtype that holds codes of `bits` bits."""
    check_int("bits", bits, 1, 64)
    return np.min_scalar_type(2**bits - 1)


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))


def _pack_block(codes: NDArray[Any], bits: int, out: NDArray[np.uint8]) -> None:
    """Pack native codes of at most `bits` bits."""
    if bits == 4:
        np.copyto(out, codes[::2])
        high = codes[1::2]
        out[: high.size] |= high << np.uint8(4)
        return
    # One row per code: its bytes, the lowest first.
    rows = codes.astype(codes.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(codes.size, -1)
    if bits % 8 == 0:
        out.reshape(codes.size, -1)[...] = rows[:, : bits // 8]
    else:
        each = np.unpackbits(rows, axis=1, count=bits, bitorder="little")
        np.copyto(out, np.packbits(each, bitorder="little"))


def _unpack_block(packed: NDArray[np.uint8], bits: int, out: NDArray[Any]) -> None:
    """Unpack into native codes."""
    if bits == 4:
        out[::2] = packed & np.uint8(15)
        out[1::2] = packed[: out.size // 2] >> np.uint8(4)
        return
    if bits % 8 == 0:
        each = packed.reshape(out.size, -1)
    else:
        single = np.unpackbits(packed, count=out.size * bits, bitorder="little")
        each = np.packbits(single.reshape(out.size, bits), axis=1, bitorder="little")
    little = np.zeros(out.size, dtype=out.dtype.newbyteorder("<"))
    little.view(np.uint8).reshape(out.size, -1)[:, : each.shape[1]] = each
    np.copyto(out, little)
