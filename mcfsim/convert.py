"""Conversion of real numbers of any kind to a format, with one rounding."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import as_array, check_processor, check_threads, is_masked, is_real, is_tensor, real_array
from mcfsim.compile.choice import check_compiled, loops
from mcfsim.compile.device_rounding import round_there, rounding_program
from mcfsim.formats import Format, get_format
from mcfsim.kernels.blocks import RoundingKernel, for_each_block, get_kernel
from mcfsim.kernels.carriers import (
    FLOAT32,
    FLOAT64,
    UnsupportedFormatError,
    carrier_of,
    code_dtype,
    holds,
    native_dtype,
)
from mcfsim.kernels.codes_by_kind import codes_by_kind
from mcfsim.kernels.element.codes import has_codes
from mcfsim.kernels.operation_plan import integers_as_binary64
from mcfsim.kernels.real_numbers import round_real, to_fraction
from mcfsim.random import RandomWords, Words
from mcfsim.rounding import Overflow, Rounding, Underflow, get_rounding
from mcfsim.storage.buffers import BLOCK, LARGE_BLOCK, overlaps_itself, scratch

if TYPE_CHECKING:
    import torch


def round_to(
    x: Any,
    fmt: Format | str,
    rounding: Rounding | str = "nearest_even",
    overflow: Overflow | str = "ieee",
    underflow: Underflow | str = "gradual",
    *,
    random: RandomWords | NDArray[np.unsignedinteger[Any]] | None = None,
    out: NDArray[Any] | None = None,
    threads: int = 1,
    compiled: bool | None = None,
) -> Any:
    """Round real numbers to a format, each once and bit-exactly.

    Parameters
    ----------
    x : array_like, tensor or real number
        An array of a NumPy or ml_dtypes floating dtype of at most 64 bits, or of an integer dtype; any
        shape, layout and byte order. Or a dense PyTorch tensor of such a dtype, on any device. Or one number:
        float, int of any size, Fraction, Decimal or mpf.
    fmt : Format or str
        The format.
    rounding : str or Rounding, optional
        A name of `Mode`.
    overflow : {"ieee", "saturate", "nearest_boundary"}, optional
        See `Overflow`.
    underflow : {"gradual", "flush_inputs", "flush_before", "flush_after"}, optional
        See `Underflow`; ``flush_inputs`` treats `x` as an operand.
    random : RandomWords or array of uint32 or uint16, optional
        Random words; stochastic rounding needs them, the other modes ignore them. A stream gives each element
        the word of its index in row-major order, of 16 bits if these suffice. An array has one word for each
        element; only the CPU takes it.
    out : array or tensor, optional
        Receives the result; must have its dtype, shape and device. It may be `x` itself, or overlap it. Or an
        array or CPU tensor for codes (see `mcfsim.codec.encode`), of unsigned integers of the format's width
        or of its dtype in NumPy, ml_dtypes or PyTorch: numbers are read and codes written in one pass.
    threads : int, optional
        Threads that share the blocks of a large array, or of a CPU tensor.
    compiled : bool, optional
        Whether a loop compiled by LLVM rounds arrays of floats and CPU tensors of floats, with the same
        bits. None: if llvmlite is installed and compiling pays. Stochastic rounding by an array of words is
        never compiled.

    Returns
    -------
    array, tensor or float
        The values. A float32 array gives float32, or float64 if float32 does not hold the format. A float64
        array gives float64. An array of a shorter float or of integers gives the format's carrier (float32
        if it holds the format). A tensor is rounded on its device and gives a tensor there, of these dtypes.
        A number gives a float. If `out` is given, it is returned.

    Notes
    -----
    NaN stays NaN with its sign. Infinity stays infinite, or becomes NaN in a format without infinities. In
    every format with a negative zero, zero keeps its sign, and so does a nonzero number that rounds to zero.

    Raises
    ------
    TypeError
        If `x` is no real number or array of real numbers, is a masked array, or is a tensor that is not dense
        or requires grad; if `out` is no array, or no tensor although `x` is one; if `threads` is no int or
        `compiled` no bool; or if a device other than the CPU is given random words as an array.
    ImportError
        If a loop must be compiled, but llvmlite is not installed.
    ValueError
        If a name is unknown, `out` does not fit or is read-only, or `threads` is less than 1; or if a NaN
        would have to be encoded in a format that has no code for it: `out` is then partly written.
    UnsupportedFormatError
        If float64 cannot hold the format, or an integer cannot be rounded once.
    ProcessorError
        If the processor is set to treat subnormal numbers as zeros, or not to round to nearest.

    Examples
    --------
    >>> round_to(1 + 2**-8 + 2**-40, "bfloat16")
    1.0078125
    >>> round_to([0.1, 464.0, 465.0], "float8_e4m3fn", overflow="saturate")
    array([1.015625e-01, 4.480000e+02, 4.480000e+02])
    """
    try:
        fmt, rounding = _looked_up(fmt, rounding, overflow, underflow)
    except TypeError:  # perhaps they have no hash
        fmt, rounding = _looked_up.__wrapped__(fmt, rounding, overflow, underflow)
    check_processor()
    check_threads(threads)
    if compiled is not None:
        check_compiled(compiled)
    if is_tensor(x):
        from mcfsim.kernels.torch_tensors import uncompiled

        return uncompiled(_round_tensor, x, fmt, rounding, random, out, threads=threads, compiled=compiled)
    number = _as_number(x)
    if number is not None:
        if out is not None:
            raise ValueError("out is for arrays, and x is one number")
        return round_real(number, fmt, rounding, word_source(random, rounding, ())(0, 1))
    array = real_array(x)
    draw = word_source(random, rounding, array.shape)
    target, kernel = _kernel_for(array.dtype, fmt, rounding)
    encodes = out is not None and _takes_codes(out, fmt, target)
    results = code_dtype(fmt) if encodes else target
    if out is not None:
        _check_out(out, out.dtype if encodes else target, array.shape)
        if out is not x and np.may_share_memory(out, array):
            array = array.copy()  # another view of this memory would be overwritten before it is read
    if array.dtype.kind in "iu":
        result = _round_integers(array, fmt, rounding, target, draw)
        if out is None:
            return result
        if encodes:
            _encode(result, fmt, out.view(results))
        else:
            np.copyto(out, result)
        return out

    def drawing(start: int, block: NDArray[Any], rounded: NDArray[Any]) -> None:
        kernel(block, rounded, draw(start, block.size))

    def encoding(start: int, block: NDArray[Any], codes: NDArray[Any]) -> None:
        rounded = scratch("rounded", block.size, target)
        drawing(start, block, rounded)
        _encode(rounded, fmt, codes)

    on_block: Callable[[int, NDArray[Any], NDArray[Any]], None] = (
        encoding if encodes else drawing if rounding.stochastic else kernel.round_block
    )
    block_size = BLOCK
    inside = not rounding.stochastic or isinstance(random, RandomWords)
    inside &= not encodes or has_codes(fmt)
    if inside and (compiled or (compiled is None and array.size > BLOCK)):
        words = {0: random} if isinstance(random, RandomWords) else {}
        options = {"packed": True} if encodes else {"wide": target == FLOAT64}
        loop = loops(**options).bound_loop(
            lambda: rounding_program(target, fmt, rounding), array.size, compiled, words=lambda program: words
        )
        if loop is not None:

            def on_block(start: int, block: NDArray[Any], rounded: NDArray[Any]) -> None:
                loop([block], [rounded], start)

    if rounding.stochastic:  # words want large blocks; some kernels have many intermediates
        block_size = LARGE_BLOCK if target == FLOAT32 and type(fmt) is Format else BLOCK // 4
    (result,) = for_each_block(
        on_block,
        [array],
        target,
        1,
        results=results,
        out=None if out is None else out.view(results),
        threads=threads,
        ordered=rounding.stochastic,
        block=block_size,
    )
    return result if out is None else out


def _round_tensor(
    x: torch.Tensor, fmt: Format, rounding: Rounding, random: Any, out: Any, **options: Any
) -> torch.Tensor:
    """Round a tensor on its device; a CPU tensor is rounded as an array."""
    from mcfsim.kernels.torch_tensors import as_array, dense, torch

    x = dense(x, x.device)
    if out is not None and not is_tensor(out):
        raise TypeError(f"out must be a tensor, as x is, not {type(out).__name__}")
    if out is not None and out.is_neg():
        raise ValueError("out is a view that PyTorch negates when it is read; numbers are not written to it")
    if x.device.type != "cpu":
        return _round_on_device(x, fmt, rounding, random, out)
    words, target = (as_array(y) if is_tensor(y) else y for y in (random, out))
    result = round_to(as_array(x), fmt, rounding, random=words, out=target, **options)
    return torch.from_numpy(result) if out is None else out


def _round_on_device(x: torch.Tensor, fmt: Format, rounding: Rounding, random: Any, out: Any) -> torch.Tensor:
    import torch

    from mcfsim.compile.torch_kernels import serve

    if rounding.stochastic and not isinstance(random, RandomWords):
        raise TypeError(f"random words on device {str(x.device)!r} are drawn there: random=RandomWords(seed)")
    short = x.dtype.itemsize <= 2
    target = _target(np.dtype(np.float16 if short else str(x.dtype).removeprefix("torch.")), fmt)
    dtype = getattr(torch, str(target))
    if out is not None and (out.dtype, out.shape, out.device) != (dtype, x.shape, x.device):
        raise ValueError(
            f"out must be {dtype} of shape {tuple(x.shape)} on {x.device}, not {out.dtype} of shape "
            f"{tuple(out.shape)} on {out.device}"
        )
    words = random if rounding.stochastic else None
    rounded = round_there(x, fmt, rounding, words, 0, None if serve(x.device, None) else False).to(dtype)
    return rounded if out is None else out.copy_(rounded)


def word_source(
    random: RandomWords | NDArray[np.unsignedinteger[Any]] | None, rounding: Rounding, shape: tuple[int, ...]
) -> Callable[[int, int], Words | None]:
    """Return a function from a range of elements to their random words, or to None if none are needed.

    Raises
    ------
    ValueError
        If stochastic rounding is given no words, or words that are too short or of another shape than the
        elements.
    TypeError
        If the words are neither uint32 nor uint16.
    """
    if not rounding.stochastic:
        return lambda start, count: None
    if isinstance(random, RandomWords):
        return lambda start, count: random.draws(start, count, rounding.random_bits)
    flat = given_words(random, rounding, shape).reshape(-1)
    return lambda start, count: flat[start : start + count]


def given_words(
    random: NDArray[np.unsignedinteger[Any]] | None, rounding: Rounding, shape: tuple[int, ...]
) -> Words:
    """Return words that were given for elements of a shape, or raise; see `word_source`."""
    if random is None:
        raise ValueError("stochastic rounding needs random=RandomWords(seed) or one uint32 word per element")
    words: Words = as_array(random, "random")
    if words.dtype not in (np.uint32, np.uint16):
        raise TypeError(f"random words must be uint32 or uint16, not {words.dtype}")
    if rounding.random_bits > 8 * words.dtype.itemsize:
        raise ValueError(f"{rounding.random_bits} random bits need words of 32 bits, not {words.dtype}")
    if words.shape != shape:
        raise ValueError(f"random words of shape {words.shape} do not fit elements of shape {shape}")
    return words


def _as_number(x: Any) -> Any:
    """Return x if it is one real number, and None if it is an array."""
    if type(x) is float:
        return x
    if isinstance(x, np.generic):
        return float(x) if is_real(x.dtype) and x.dtype.kind in "fV" else x
    if isinstance(x, np.ndarray | list | tuple) or hasattr(x, "__array__"):
        return None
    to_fraction(x)
    return x


def _takes_codes(out: Any, fmt: Format, target: np.dtype[Any]) -> bool:
    """Return whether an array is for codes, and not for numbers of the carrier."""
    if not isinstance(out, np.ndarray) or out.dtype == target:
        return False
    if out.dtype == code_dtype(fmt):
        return True
    try:
        return bool(out.dtype == native_dtype(fmt))
    except UnsupportedFormatError:
        return False


def _encode(x: NDArray[Any], fmt: Format, codes: NDArray[Any]) -> None:
    """Write the codes of values."""
    if not fmt.has_nan and np.isnan(x).any():
        raise ValueError(f"{fmt} has no code for NaN")
    codes[...] = codes_by_kind(fmt).encode(x.reshape(-1)).reshape(x.shape)


def _check_out(out: Any, target: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if not isinstance(out, np.ndarray) or is_masked(out):
        raise TypeError(f"out must be an array without a mask, not {type(out).__name__}")
    if out.dtype != target or out.shape != shape:
        raise ValueError(f"out must be {target} of shape {shape}, not {out.dtype} of shape {out.shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    if overlaps_itself(out.shape, out.strides, out.itemsize):
        raise ValueError("out is spread over memory that several of its elements share")


@lru_cache(maxsize=256)
def _looked_up(fmt: Any, rounding: Any, overflow: Any, underflow: Any) -> tuple[Format, Rounding]:
    return get_format(fmt), get_rounding(rounding, overflow, underflow)


@lru_cache(maxsize=256)
def _kernel_for(
    source: np.dtype[Any], fmt: Format, rounding: Rounding
) -> tuple[np.dtype[Any], RoundingKernel]:
    """Return the dtype of the result, and the kernel that rounds blocks of that dtype."""
    target = _target(source, fmt)
    return target, get_kernel(fmt, rounding, target)


def _target(source: np.dtype[Any], fmt: Format) -> np.dtype[Any]:
    """Return the dtype of the result for numbers of a given dtype."""
    if source.kind == "f" and source.itemsize == 8:
        return FLOAT64
    if source.kind == "f" and source.itemsize == 4 and not holds(FLOAT32, fmt):
        return FLOAT64  # float32 need not hold their roundings
    return carrier_of(fmt)


def _round_integers(
    array: NDArray[Any],
    fmt: Format,
    rounding: Rounding,
    target: np.dtype[Any],
    draw: Callable[[int, int], Words | None],
) -> NDArray[Any]:
    """Round integers of up to 64 bits, by rounding to odd in binary64 first."""
    from mcfsim.kernels import native

    kernel = get_kernel(fmt, rounding, FLOAT64)

    def on_block(start: int, high: NDArray[Any], low: NDArray[Any], rounded: NDArray[Any]) -> None:
        y, residual = native.add(high, low)
        if fmt.precision + rounding.guard_bits <= 53:
            y = native.make_odd(y, residual)
        elif residual.any() and not integers_as_binary64(fmt, rounding):
            raise UnsupportedFormatError(f"integers beyond 2**53 cannot be rounded {rounding.mode} to {fmt}")
        kernel(y, rounded, draw(start, y.size))

    # Binary64 holds two halves of 32 bits exactly, also the shifted upper one.
    wide = array.astype(f"{array.dtype.kind}8")
    high, low = (wide >> 32).astype(np.float64) * 2.0**32, (wide & 0xFFFFFFFF).astype(np.float64)
    (result,) = for_each_block(on_block, [high, low], FLOAT64, 1, ordered=rounding.stochastic)
    return result.astype(target, copy=False)
