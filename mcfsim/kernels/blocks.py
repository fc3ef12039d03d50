"""Blocks of numbers that stay in cache: the loop over them, and the kernels that round them to a format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.formats import Format
from mcfsim.formats.grids import Grid
from mcfsim.formats.posit import Posit
from mcfsim.kernels.carriers import FLOAT32, UnsupportedFormatError, carrier_of, holds, is_filled
from mcfsim.kernels.element.calls import Calls, foreseen
from mcfsim.kernels.element.element_rounding import is_kept, round_element
from mcfsim.kernels.element.floats import SHORT
from mcfsim.kernels.element.forms import as_calls
from mcfsim.kernels.element.machine import BITS_OF, DTYPES, F32, F64, I32, I64, recorded
from mcfsim.kernels.operation_plan import SELECTING
from mcfsim.random import Words
from mcfsim.rounding import Rounding, Underflow
from mcfsim.storage.buffers import BLOCK, LARGE_BLOCK, scratch

# -- the loop over blocks ---------------------------------------------------------------------------------
Array = NDArray[Any]


def for_each_block(
    function: Callable[..., object],
    operands: Sequence[Array],
    dtype: np.dtype[Any],
    outputs: int,
    *,
    results: np.dtype[Any] | None = None,
    out: Array | None = None,
    threads: int = 1,
    ordered: bool = False,
    block: int = BLOCK,
) -> list[Array]:
    """Apply an elementwise function to broadcast operands block by block.

    Parameters
    ----------
    function : callable
        Takes the index of the block's first element, then one-dimensional contiguous blocks: one of `dtype`
        per operand, to which it must not write, and one per output, which it fills.
    operands : sequence of array
        Any layout, byte order and (numeric) dtype; `dtype` must hold each element exactly.
    dtype : dtype
        The dtype of the operands' blocks.
    outputs : int
        Number of results.
    results : dtype, optional
        The dtype of the results, if it differs.
    out : array, optional
        Receives the only result; of its dtype and of the broadcast shape. If it is an operand, the function
        finds both in the same memory.
    threads : int, optional
        Blocks are shared among this many threads; NumPy frees the interpreter lock inside its loops.
    ordered : bool, optional
        Whether indices count the elements in row-major order, whatever the layout of the operands;
        otherwise they count in the fastest order.
    block : int, optional
        Elements per block, if one thread does the work.

    Returns
    -------
    list of array
        The results, of the broadcast shape.
    """
    if out is None and is_one_block(operands, dtype, block):
        made = [np.empty(operands[0].shape, results or dtype) for _ in range(outputs)]
        check_processor()
        with np.errstate(all="ignore"):
            function(0, *[array.reshape(-1) for array in (*operands, *made)])
        return made
    size = block if threads == 1 else LARGE_BLOCK
    given = [out] if out is not None else [None] * outputs
    iterator = np.nditer(  # type: ignore[call-overload]  # its stub knows no "contig"
        [*operands, *given],
        flags=["external_loop", "buffered", "ranged", "zerosize_ok", "delay_bufalloc"],
        op_flags=[["readonly", "contig", "aligned"]] * len(operands)
        + [["writeonly", "allocate", "no_subtype", "contig", "aligned"]] * outputs,
        op_dtypes=[dtype] * len(operands) + [results or dtype] * outputs,
        casting="unsafe",  # the callers make sure that every element fits
        order="C" if ordered else "K",
        buffersize=size,
    )
    inputs = len(operands)

    def run(part: np.nditer, start: int) -> None:
        check_processor()  # a setting of each thread
        with np.errstate(all="ignore"):
            for arrays in part:
                function(start, *arrays)
                start += arrays[0].size

    if threads > 1 and iterator.itersize > size:
        bounds = np.linspace(0, -(-iterator.itersize // size), threads + 1).astype(int) * size
        parts = []
        for start, stop in pairwise(np.minimum(bounds, iterator.itersize).tolist()):
            part = iterator.copy()
            part.iterrange = (start, stop)
            part.reset()
            parts.append((part, start))
        on_threads(lambda both: run(*both), parts, threads)
    elif iterator.itersize:
        iterator.reset()
        run(iterator, 0)
    return list(iterator.operands[inputs:])


def on_threads(function: Callable[[Any], Any], parts: Iterable[Any], threads: int) -> list[Any]:
    """Return a function's results for parts that threads share; raise the error of the first that fails."""
    if threads == 1:
        return list(map(function, parts))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, parts))


def is_one_block(operands: Sequence[Array], dtype: np.dtype[Any], block: int) -> bool:
    """Return whether the operands are already blocks, so that no loop is needed."""
    first = operands[0]
    if not 0 < first.size <= block:
        return False
    for array in operands:
        flags = array.flags
        if array.dtype != dtype or array.shape != first.shape or not (flags.c_contiguous and flags.aligned):
            return False
    return True


# -- rounding ---------------------------------------------------------------------------------------------
#: Bytes of an array processed at a time: intermediate results fit into the L2 cache together with it.
_AT_ONCE = 1 << 18
#: Up to this many elements, a test whether arrays share memory costs more than it saves.
_FEW = 1 << 11


class RoundingKernel:
    """Rounding of blocks from one carrier type to a format, once and exactly.

    Parameters
    ----------
    fmt : Format
        The target.
    rounding : Rounding
        Mode and policies. Here ``flush_inputs`` is ``flush_before``: the rounded number is the operand.
    carrier : dtype
        ``float32`` or ``float64``; every value of the format must be a number of the carrier.

    Raises
    ------
    UnsupportedFormatError
        If the carrier does not hold the format.
    """

    def __init__(self, fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> None:
        if not holds(carrier, fmt):
            raise UnsupportedFormatError(f"{fmt} has values that {carrier} cannot hold")
        self.fmt, self.rounding, self.carrier = fmt, rounding, carrier
        #: Whether every number of the carrier is a value of the format, so that rounding changes nothing.
        self.exact = is_filled(carrier, fmt) and rounding.underflow is Underflow.GRADUAL
        self._type = F32 if carrier == FLOAT32 else F64
        self._word = I32 if rounding.random_bits <= SHORT else I64
        self._draw_bits = rounding.drawn_bits
        # In stochastic rounding nearly all blocks have a few subnormal numbers, which need extra calls.
        self._at_once = _AT_ONCE // carrier.itemsize * (2 if rounding.stochastic else 1)

    def __reduce__(self) -> tuple[Callable[..., RoundingKernel], tuple[Any, ...]]:
        return RoundingKernel, (self.fmt, self.rounding, self.carrier)

    def __call__(self, x: Array, out: Array, words: Words | None = None) -> None:
        """Round the one-dimensional contiguous ``x`` into ``out``, which may be ``x`` itself.

        Stochastic rounding takes one random word per element.
        """
        if self.exact:
            if out is not x:
                np.copyto(out, x)
            return
        given = [x]
        if self._draw_bits:
            if words is None or words.shape != x.shape:
                raise ValueError("stochastic rounding needs a random word for each element")
            given.append(self._draws(words, self._draw_bits))
        size = self._at_once
        if x.size <= _FEW:
            self._in_place(given, [out])
            return
        calls = self._in_place if np.may_share_memory(x, out) else self._calls
        if x.size <= size:
            calls(given, [out])
            return
        for start in range(0, x.size, size):
            part = slice(start, start + size)
            calls([array[part] for array in given], [out[part]])

    def round_block(self, start: int, x: Array, out: Array) -> None:
        """Round a block without random words; where it begins does not matter."""
        self(x, out)

    def keeps(self, x: Array) -> bool:
        """Return whether a block holds only NaN and values of the format, ignoring the sign of zero."""
        if self.exact:
            return True
        look, kept_in = self._kept
        size = self._at_once
        for start in range(0, x.size, size):
            part = x[start : start + size]
            if look is not None and look(part.view(DTYPES[BITS_OF[self._type]])):
                continue
            kept = scratch("kept", part.size, np.bool_)
            kept_in([part], [kept])
            if not (kept.all() or (kept | np.isnan(part)).all()):
                return False
        return True

    @cached_property
    def _calls(self) -> Calls:
        return self._written(apart=True)

    @cached_property
    def _in_place(self) -> Calls:
        return self._written(apart=False)

    def _written(self, *, apart: bool) -> Calls:
        words = {"word": self._word} if self._draw_bits else {}
        line, results = recorded(
            lambda x, *word: round_element(x, self.fmt, self.rounding, *word), x=self._type, **words
        )
        return as_calls(results, [value for value in line.values if value.verb == "input"], apart=apart)

    @cached_property
    def _kept(self) -> tuple[Callable[[Array], bool | None] | None, Calls]:
        """Tests whether numbers are values: of all codes together, if that is possible, and of each."""
        line, results = recorded(lambda x: is_kept(x, self.fmt), x=self._type)
        look = foreseen(results[0])
        of_codes = look is not None and look[1].verb == "bits"
        return look[0] if look is not None and of_codes else None, as_calls(results, line.values[:1])

    def _draws(self, words: Words, bits: int) -> Array:
        """Return the highest bits of random words, as integers."""
        size = 8 * words.dtype.itemsize
        if size < bits:
            raise ValueError(f"words of {size} bits are too short for {bits} random bits")
        highest = words >> words.dtype.type(size - bits) if size > bits else words
        draws = scratch("draws", words.size, DTYPES[self._word])
        np.copyto(draws, highest, casting="unsafe")
        return draws


# -- kernels, made once -----------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def get_kernel(fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> RoundingKernel:
    """Return the kernel that rounds numbers of a carrier to a format, made once.

    Raises
    ------
    UnsupportedFormatError
        If the carrier does not hold the format, or the format does not support the underflow policy.
    """
    if isinstance(fmt, Posit | Grid) and rounding.underflow is not Underflow.GRADUAL:
        why = "does not underflow" if isinstance(fmt, Posit) else "has no subnormal numbers to flush"
        raise UnsupportedFormatError(f"{fmt} {why}: underflow must be 'gradual', not {rounding.underflow!s}")
    return RoundingKernel(fmt, rounding, carrier)


@lru_cache(maxsize=256)
def rounds(operation: str, fmt: Format) -> bool:
    """Return whether an operation on values rounds; sign operations do only if the format lacks a result."""
    if operation in SELECTING:
        return False
    if operation in ("neg", "abs"):
        return fmt.lowest != -fmt.max and (fmt.signed or operation == "neg")
    if operation == "sign":
        carrier = carrier_of(fmt)
        units = np.array([1.0, -1.0 if fmt.signed else 1.0], carrier)
        return not get_kernel(fmt, Rounding(), carrier).keeps(units)
    return True
