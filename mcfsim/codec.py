"""Conversion between values and codes of a format; neighbours and ulps; views as native dtypes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks import as_array, as_codes, is_tensor, real_array, refuse
from mcfsim.compile.choice import loops
from mcfsim.compile.loops import BoundLoop
from mcfsim.compile.program import Program
from mcfsim.compile.tracing import trace
from mcfsim.convert import round_to
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.blocks import for_each_block
from mcfsim.kernels.carriers import FLOAT64, carrier_of, code_dtype, native_dtype
from mcfsim.kernels.codes_by_kind import FloatCodes, codes_by_kind
from mcfsim.kernels.element.codes import has_codes
from mcfsim.kernels.real_numbers import same_integers
from mcfsim.storage.buffers import BLOCK

Block = NDArray[Any]

#: Formats of at most this many bits are decoded by a table of all codes.
_TABLE_BITS = 16


def encode(x: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the codes of values of a format.

    A floating-point code is sign, exponent field and fraction, from the highest bit down. A grid code is the
    integer in two's complement. A posit code follows the posit standard.

    Parameters
    ----------
    x : array_like
        Values of the format, in a NumPy or ml_dtypes float of at most 64 bits, or integers; any shape, layout
        and byte order. Every NaN gets the same code, the positive quiet NaN where there is a choice. Negative
        zero gets the code of zero if the format has only one zero.
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
        If an element is no value of the format, or is an infinity or NaN that has no code.
    UnsupportedFormatError
        If float64 cannot hold the format.
    """
    fmt = get_format(fmt)
    dtype, carrier = code_dtype(fmt), carrier_of(fmt)
    given = real_numbers(x)
    source = carrier if np.can_cast(given.dtype, carrier) else FLOAT64
    codes = codes_by_kind(fmt)
    loop = _loop(fmt, given.size, "results") if source == carrier else None

    def on_block(start: int, block: Block, out: Block) -> None:
        if loop is not None and loop([block], [out]):
            return
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
        If a code is negative, has too many bits, or stands for no value: beyond the largest number of a
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

    loop = _loop(fmt, given.size, "operands")

    def on_block(start: int, block: Block, out: Block) -> None:
        if loop is not None and loop([block], [out]):
            return
        _check_assigned(given, start, block, fmt)
        out[...] = values_of(block, fmt)

    source = np.dtype(np.uint64) if fmt.bits > _TABLE_BITS else code_dtype(fmt)
    return for_each_block(on_block, [given], source, 1, results=carrier, ordered=True)[0]


def _loop(fmt: Format, elements: int, packed: str) -> BoundLoop | None:
    """Return a loop that encodes (`packed` is "results") or decodes, or None if no loop pays."""
    if not has_codes(fmt) or elements <= BLOCK:
        return None
    return loops(checked=True, packed=packed).bound_loop(lambda: _as_it_is(fmt), elements, None)


@lru_cache(maxsize=64)
def _as_it_is(fmt: Format) -> Program:
    """Return the program that returns its operand."""
    return trace(lambda ar, x: x, fmt, operands=("x",), lines=False)


def values_of(codes: Block, fmt: Format) -> Block:
    """Return the values of codes, unchecked: each must stand for a value."""
    return codes_by_kind(fmt).decode(codes) if fmt.bits > _TABLE_BITS else _table(fmt).take(codes)


def check_codes(codes: Block, fmt: Format) -> None:
    """Raise ValueError, as `decode` does, unless all integers in a vector are codes of values."""
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
    """Return all values except NaN in increasing order, with infinities, and -0 before +0.

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
    """Return real numbers as an array; raise ValueError if binary64 does not hold them."""
    array = real_array(x)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        given, array = array, array.astype(np.float64)
        same = same_integers(given, array)
        if not same.all():
            refuse(given, int(np.argmin(same)), "is an integer that binary64 does not hold; round it first")
    return array


@lru_cache(maxsize=64)
def _table(fmt: Format) -> Block:
    """Return the values of all codes, with zero for codes that stand for no value."""
    kind, codes = codes_by_kind(fmt), np.arange(1 << fmt.bits, dtype=np.uint64)
    values = kind.decode(codes)
    if kind.gaps:
        values[kind.unassigned(codes)] = 0.0
    table = values.astype(carrier_of(fmt))
    table.flags.writeable = False
    return table


# -- neighbours and ulp -----------------------------------------------------------------------------------
def next_up(x: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the least value of the format above each number, which need not be a value itself.

    Parameters
    ----------
    x : array_like
        Real numbers, as for `encode`.
    fmt : Format or str
        The format.

    Returns
    -------
    array of float32 or float64
        Of the shape of x, in the format's carrier. The result above the largest finite number is infinity,
        or that number itself in a format without infinity. A zero has the sign of x if the format has both
        zeros. NaN gives NaN, and so does an infinity that the format lacks.

    Raises
    ------
    TypeError
        If x does not hold real numbers.
    UnsupportedFormatError
        If float64 cannot hold the format.
    """
    return _neighbours(x, fmt, 1)


def next_down(x: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the greatest value of the format below each number; see `next_up`.

    The result below the least finite number is that number itself if the format is unsigned or has no
    infinity.
    """
    return _neighbours(x, fmt, -1)


def ulp(x: ArrayLike, fmt: Format | str) -> NDArray[np.float64]:
    """Return the unit in the last place, ``2**(max(e, emin) - p + 1)`` where ``2**e <= |x| < 2**(e + 1)``.

    For exponents above emax it is that at emax. NaN and infinities give NaN. The result is binary64. For
    grids and posits it is ``b - a``, where a and b are consecutive values with ``a <= |x| < b``; beyond the
    largest value, it is the last such distance.
    """
    fmt = get_format(fmt)
    carrier_of(fmt)
    by_exponent = isinstance(codes_by_kind(fmt), FloatCodes)

    def on_block(start: int, block: Block, out: Block) -> None:
        magnitude = np.abs(block)
        finite = np.isfinite(magnitude)
        if by_exponent:
            exponent = np.maximum(magnitude.view(np.int64) >> 52, 1) - 1023
            exponent = np.clip(exponent, fmt.emin, fmt.emax) - fmt.precision + 1
            step = np.ldexp(1.0, exponent)
        else:
            above = next_up(np.where(finite, magnitude, 0.0), fmt).astype(np.float64)
            step = above - next_down(above, fmt)
        out[...] = np.where(finite, step, np.nan)

    return for_each_block(on_block, [real_numbers(x)], FLOAT64, 1)[0]


def _neighbours(x: ArrayLike, fmt: Format | str, step: int) -> NDArray[Any]:
    fmt = get_format(fmt)
    carrier = carrier_of(fmt)
    codes = codes_by_kind(fmt)

    def on_block(start: int, block: Block, out: Block) -> None:
        # A value next to the number, above or below; for zero, if the format lacks it, its smallest number.
        given = block if fmt.zero else np.where(block == 0, float(fmt.smallest_normal), block)
        nearest = round_to(given, fmt, overflow="saturate")
        nan = np.isnan(nearest)
        np.copyto(nearest, float(fmt.max), where=nan)
        reached = nearest <= block if step > 0 else nearest >= block
        places = codes.places(codes.encode(nearest)) + step * reached
        values = codes.decode(codes.at(np.clip(places, codes.first, codes.last)))
        if fmt.has_negative_zero:
            np.copyto(values, np.copysign(0.0, block), where=values == 0)
        np.copyto(values, np.nan, where=nan)
        out[...] = values

    return for_each_block(on_block, [real_numbers(x)], FLOAT64, 1, results=carrier)[0]


# -- native dtypes of NumPy and ml_dtypes, as views -------------------------------------------------------
def codes_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return the codes of a NumPy or ml_dtypes floating array: a view as unsigned integers.

    Parameters
    ----------
    array : array
        Of a dtype with a format in `mcfsim.FORMATS`; any shape and strides.

    Returns
    -------
    array of unsigned integers
        A view, read-only if the array is; a copy if the byte order is not the machine's. NaN keeps its
        payload.

    Raises
    ------
    TypeError
        If it is no array (or NumPy scalar) of such a dtype.
    """
    if not isinstance(array, np.ndarray | np.generic):
        raise TypeError(f"an array of a floating dtype has codes, not {type(array).__name__}")
    given = as_array(array, "array")
    if given.dtype.name not in FORMATS:
        raise TypeError(f"an array of dtype {given.dtype} has no codes of a known format")
    codes = np.dtype(f"u{given.dtype.itemsize}")
    if given.dtype.isnative or codes.itemsize == 1:
        return given.view(codes)
    return given.view(codes.newbyteorder(given.dtype.byteorder)).astype(codes)


def as_dtype(codes: NDArray[Any], fmt: Format | str) -> NDArray[Any]:
    """Return codes as an array of the NumPy or ml_dtypes dtype of the format: a view of the same memory.

    Parameters
    ----------
    codes : array of unsigned integers
        In `code_dtype` and the machine's byte order; any shape and strides. Codes of 4 and 6 bits take a byte
        each, as in ml_dtypes; `mcfsim.packing` packs them.
    fmt : Format or str
        The format.

    Returns
    -------
    array
        A view, read-only if the codes are.

    Raises
    ------
    TypeError
        If the codes are no array of `code_dtype`.
    ValueError
        If a code has too many bits.
    UnsupportedFormatError
        If neither library has a dtype with these codes.
    """
    fmt = get_format(fmt)
    dtype = native_dtype(fmt)
    if not isinstance(codes, np.ndarray) or codes.dtype != code_dtype(fmt):
        kind = getattr(codes, "dtype", type(codes).__name__)
        raise TypeError(f"codes of {fmt} are an array of {code_dtype(fmt)}, not {kind}")
    codes = as_array(codes, "codes")
    if fmt.bits < 8:
        _check_range(codes, fmt)
    return codes.view(dtype)


def on_host(x: Any) -> Any:
    """Return a PyTorch tensor of any device as an array in host memory; return anything else as it is.

    A tensor in host memory is not copied. bfloat16 and the float8 dtypes become those of ml_dtypes.

    Raises
    ------
    TypeError
        If the tensor is not dense and real, or if gradients would be lost: it requires grad, and
        ``torch.no_grad()`` is not on.
    """
    if not is_tensor(x):
        return x
    from mcfsim.kernels import torch_tensors

    return torch_tensors.as_array(torch_tensors.dense(x, x.device).cpu())
