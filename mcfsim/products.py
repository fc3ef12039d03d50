"""Dot products and matrix products with a stated accumulator: what is summed exactly, what rounded when."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.backends._kernels import get_kernel
from mcfsim.backends.accumulators import COMFORT, ODD_BITS, add_to_odd, dot_to_odd, tiles
from mcfsim.backends.carriers import FLOAT64, UnsupportedFormatError, carrier_of
from mcfsim.formats import Format, get_format
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding, Underflow, get_rounding

Array = NDArray[Any]
Wide = NDArray[np.float64]


class Order(StrEnum):
    """How the blocks of a sum come together.

    ``sequential``: each block is added to an accumulator as it stands. ``pairwise``: each block is summed by
    itself, and the sums are added two by two, neighbours first, until one is left; an odd one out at the end
    of a level waits, unrounded, for the next.
    """

    SEQUENTIAL = "sequential"
    PAIRWISE = "pairwise"


class Products(StrEnum):
    """Whether a product goes into its block's sum exactly, or rounded to the accumulator's format first."""

    EXACT = "exact"
    ROUNDED = "rounded"


@dataclass(frozen=True)
class Accumulator:
    """How a sum of products is accumulated.

    The products are taken in blocks along the contracted axis. The sum of a block's products and of the
    accumulator as it stands, as if computed exactly, is rounded once into the accumulator's format. With
    ``block=1`` that is a chain of fused multiply-adds, with ``block=None`` a dot product rounded once.

    Parameters
    ----------
    format : Format or str
        What the accumulator holds.
    rounding : Rounding or str, optional
        Mode and policies of all its roundings.
    block : int or None
        Products a block: at least 1, or None for all. The last block may be shorter.
    order : {"sequential", "pairwise"}, optional
        See `Order`.
    lanes : int, optional
        So many sequential accumulators take the blocks in turn; in the end they are added as if ``pairwise``.
    products : {"exact", "rounded"}, optional
        See `Products`. ``rounded`` with ``block=1`` is a separate multiplication and addition.

    Raises
    ------
    TypeError
        If `block` or `lanes` is no int.
    ValueError
        If a name is unknown, a number is out of range, more than one lane is to be added pairwise, or
        operands are to be flushed: their own formats are not stated, nor is which of them are small.
    UnsupportedFormatError
        If the sum cannot be rounded once: precision and guard bits exceed 52, or the format's range 2**+-450.

    Examples
    --------
    >>> Accumulator("bfloat16", block=4).roundings(10)
    3
    """

    format: Format
    rounding: Rounding = field(default_factory=Rounding)
    _: KW_ONLY
    block: int | None
    order: Order = Order.SEQUENTIAL
    lanes: int = 1
    products: Products = Products.EXACT

    def __post_init__(self) -> None:
        fmt, rounding = get_format(self.format), get_rounding(self.rounding)
        object.__setattr__(self, "format", fmt)
        object.__setattr__(self, "rounding", rounding)
        for label in ("block", "lanes"):
            number = getattr(self, label)
            if label == "block" and number is None:
                continue
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"{label} must be an int, not {number!r}")
            if number < 1:
                raise ValueError(f"{label} = {number} must be at least 1")
        for label, kind in (("order", Order), ("products", Products)):
            try:
                object.__setattr__(self, label, kind(getattr(self, label)))
            except ValueError:
                raise ValueError(
                    f"unknown {label} {getattr(self, label)!r}; allowed: {', '.join(kind)}"
                ) from None
        if self.lanes > 1 and self.order is Order.PAIRWISE:
            raise ValueError(f"lanes = {self.lanes} are for sequential accumulators; pairwise has no lanes")
        if rounding.underflow is Underflow.FLUSH_INPUTS:
            raise ValueError("underflow 'flush_inputs' is for operands, whose formats are not stated here")
        carrier_of(fmt)
        if fmt.precision + rounding.guard_bits > ODD_BITS:
            raise UnsupportedFormatError(
                f"sums in {fmt}, rounding {rounding.mode}, cannot be rounded once: its precision and "
                f"{rounding.guard_bits} guard bits exceed {ODD_BITS}"
            )
        if fmt.emax >= COMFORT or fmt.emin - fmt.precision + 1 < -COMFORT:
            raise UnsupportedFormatError(f"{fmt} has numbers beyond 2**+-{COMFORT}, whose sums are not exact")

    def roundings(self, length: int) -> int:
        """Return how many roundings a sum of so many products takes, and so streams of random words.

        Parameters
        ----------
        length : int
            Of the contracted axis.
        """
        products = length if self.products is Products.ROUNDED else 0
        blocks = -(-length // (self.block or max(1, length)))
        parts = blocks if self.order is Order.PAIRWISE else min(blocks, self.lanes)
        return products + max(1, blocks) + max(0, parts - 1)


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    accumulator: Accumulator,
    *,
    c: ArrayLike | None = None,
    out_format: Format | str | None = None,
    out_rounding: Rounding | str = "nearest_even",
    random: RandomWords | None = None,
    threads: int = 1,
) -> Any:
    """Return matrix products, ``a @ b`` or ``c + a @ b``, with a stated accumulator, bit for bit.

    Parameters
    ----------
    a, b : array_like
        Numbers of whatever formats, in arrays of a NumPy or ml_dtypes floating or integer dtype. Shapes go
        together as in `numpy.matmul`: stacks ``(..., m, k)`` and ``(..., k, n)`` broadcast; a vector is a row
        on the left and a column on the right. Each number is one of float32, or one of float64 of a magnitude
        within 2**+-450.
    accumulator : Accumulator
        How products are summed.
    c : array_like, optional
        Broadcasts to the result; of whatever format, too. It joins the exact sum of the first block, which it
        precedes. Without it, that sum has no such term, not even a zero.
    out_format : Format or str, optional
        Rounds the accumulated result once more, into this format.
    out_rounding : Rounding or str, optional
        How, as by `round_to`.
    random : RandomWords, optional
        For stochastic rounding, which needs it. Each rounding of an element of the result takes the next
        stream, in the order in which they are made, products before their sum; of a stream it takes the word
        of its index in row-major order. See `Accumulator.roundings`.
    threads : int, optional
        Threads that share the tiles of a large result.

    Returns
    -------
    array or number
        Values of the accumulator's format, or of the output format, in the format's carrier: float32 where it
        holds the format, else float64.

    Notes
    -----
    A block's sum is one operation on all its terms. It is NaN if a term is, if one is infinity times zero,
    or if infinities of both signs meet; infinite if infinities of one sign are among its terms, and then NaN
    in a format without infinity. An exactly zero sum is -0 if all terms are -0; otherwise it is +0, but in
    the mode ``down`` -0 unless all are +0. Nothing overflows within a block. What overflows at its end does
    so for good: an infinity in the accumulator stays. Of no products, the sum is +0, or `c` rounded.

    This is a model. A unit that cuts off the low bits of the terms it aligns, as those in the reference do,
    rounds less well than once a block.

    Raises
    ------
    TypeError
        If an operand is no array of real numbers, or `accumulator` is none.
    ValueError
        If shapes do not go together, a number is out of range, or random words are missing.

    References
    ----------
    Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ Comput. Sci. 7:e330,
    2021.

    Examples
    --------
    >>> a, b = [[2.0**12, 1.0, 1.0, -(2.0**12)]], np.ones((4, 1))
    >>> [float(matmul(a, b, Accumulator("float16", block=n))[0, 0]) for n in (1, 2, 4)]
    [0.0, 1.0, 2.0]
    """
    left, right = _operand(a, "a"), _operand(b, "b")
    for label, operand in (("a", left), ("b", right)):
        if operand.ndim == 0:
            raise ValueError(f"{label} is a number; matmul takes arrays of at least one dimension")
    row, column = left.ndim == 1, right.ndim == 1
    left = left[np.newaxis, :] if row else left
    right = right[:, np.newaxis] if column else right
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"shapes {np.shape(a)} and {np.shape(b)} do not go together: {left.shape[-1]} columns on the "
            f"left, {right.shape[-2]} rows on the right"
        )
    try:
        stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ValueError(f"stacks of shapes {np.shape(a)} and {np.shape(b)} do not broadcast") from None
    m, n = left.shape[-2], right.shape[-1]
    shape = stack + (() if row else (m,)) + (() if column else (n,))
    given = None if c is None else _added(c, shape).reshape(*stack, m, n)
    unit = _Unit(accumulator, out_format, out_rounding, random)
    return unit.multiply(left, right, given, stack, threads).reshape(shape)[()]


def dot(
    a: ArrayLike,
    b: ArrayLike,
    accumulator: Accumulator,
    *,
    c: ArrayLike | None = None,
    out_format: Format | str | None = None,
    out_rounding: Rounding | str = "nearest_even",
    random: RandomWords | None = None,
    threads: int = 1,
) -> Any:
    """Return dot products along the last axis with a stated accumulator, bit for bit.

    Parameters
    ----------
    a, b : array_like
        Of shapes ``(..., k)`` that broadcast, but for the last axis, where they agree.
    accumulator, c, out_format, out_rounding, random, threads
        See `matmul`.

    Returns
    -------
    array or number
        Of the broadcast shape without its last axis. See `matmul`.

    Raises
    ------
    TypeError, ValueError
        See `matmul`.

    Examples
    --------
    >>> ones = np.ones(600)
    >>> [float(dot(ones, ones, Accumulator("bf16", block=n))) for n in (1, 2, 4, None)]
    [256.0, 512.0, 600.0, 600.0]
    """
    left, right = _operand(a, "a"), _operand(b, "b")
    if not left.ndim or not right.ndim or left.shape[-1] != right.shape[-1]:
        raise ValueError(f"shapes {left.shape} and {right.shape} do not share the length of a last axis")
    try:
        shape = np.broadcast_shapes(left.shape, right.shape)[:-1]
    except ValueError:
        raise ValueError(f"shapes {left.shape} and {right.shape} do not broadcast") from None
    result = matmul(
        left[..., np.newaxis, :],
        right[..., np.newaxis],
        accumulator,
        c=None if c is None else _added(c, shape)[..., np.newaxis, np.newaxis],
        out_format=out_format,
        out_rounding=out_rounding,
        random=random,
        threads=threads,
    )
    return result[..., 0, 0][()]


class _Unit:
    """What multiplies matrices: an accumulator, an output format and the words for both."""

    def __init__(
        self,
        accumulator: Accumulator,
        out_format: Format | str | None,
        out_rounding: Rounding | str,
        random: RandomWords | None,
    ) -> None:
        if not isinstance(accumulator, Accumulator):
            raise TypeError(f"accumulator must be an Accumulator, not {accumulator!r}")
        self.accumulator, self.random = accumulator, random
        self.output = None if out_format is None else get_format(out_format)
        self.out_rounding = get_rounding(out_rounding)
        if self.output is None and self.out_rounding != Rounding():
            raise ValueError(f"out_rounding={str(out_rounding)!r} is for an out_format, and there is none")
        self.stochastic = accumulator.rounding.stochastic or self.out_rounding.stochastic
        if self.stochastic and not isinstance(random, RandomWords):
            raise ValueError("stochastic rounding needs random=RandomWords(seed)")
        self.carrier = carrier_of(self.output or accumulator.format)

    def multiply(self, a: Array, b: Array, c: Array | None, stack: tuple[int, ...], threads: int) -> Array:
        if threads < 1:
            raise ValueError(f"threads = {threads}: at least one is needed")
        # A product of two numbers of float32 has 48 bits.
        narrow = a.dtype == b.dtype == np.float32
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        if b.ndim == 2 and len(stack):  # one matrix more than once: a stack of rows
            a, stack, m = a.reshape(math.prod(stack) * m, k), (), math.prod(stack) * m
        out = np.empty((math.prod(stack), m, n), self.carrier)
        given = None if c is None else c.reshape(out.shape)
        # Every stack has a first axis to index.
        stack = stack or (1,)
        lefts, rights = np.broadcast_to(a, (*stack, m, k)), np.broadcast_to(b, (*stack, k, n))

        def run(tile: tuple[slice, slice, slice]) -> None:
            matrices, rows, columns = tile
            index: tuple[Any, ...] = np.unravel_index(np.arange(matrices.start, matrices.stop), stack)

            def operands(start: int, stop: int) -> tuple[Wide, Wide]:
                places = slice(start, stop)
                left, right = lefts[(*index, rows, places)], rights[(*index, places, columns)]
                return left.astype(np.float64), right.astype(np.float64)

            carried = None if given is None else given[tile].astype(np.float64)
            words = _Words(self.random, (matrices.start * m + rows.start) * n + columns.start)
            with np.errstate(all="ignore"):
                count, height, width = out[tile].shape
                out[tile] = self._tile(operands, (count, height, width), k, carried, words, narrow)

        block = min(k, self.accumulator.block or k)
        parts = tiles((len(out), m, n), block, contiguous=self.stochastic)
        if threads > 1:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(run, parts))  # raises what a thread raised
        else:
            for part in parts:
                run(part)
        return out

    def _tile(
        self,
        operands: Callable[[int, int], tuple[Wide, Wide]],
        shape: tuple[int, int, int],
        length: int,
        carried: Wide | None,
        words: _Words,
        narrow: bool,
    ) -> Wide:
        """Return one tile of the result."""
        accumulator = self.accumulator
        fmt, rounding = accumulator.format, accumulator.rounding
        down = rounding.mode is Mode.DOWN

        def rounded(y: Wide) -> Wide:
            return words.round(y, fmt, rounding)

        def round_products(products: Wide) -> None:
            if rounding.stochastic:  # a stream for each place
                for each in products:
                    each[...] = rounded(each)
            else:
                products[...] = rounded(products)

        def block_sum(number: int, carried: Wide | None) -> Wide:
            places = number * block, min((number + 1) * block, length)
            return rounded(
                dot_to_odd(
                    *(operands, places, shape, carried),
                    narrow=narrow,
                    down=down,
                    round_products=round_products if accumulator.products is Products.ROUNDED else None,
                )
            )

        block = accumulator.block or max(1, length)
        blocks = -(-length // block)
        parts: Iterable[Wide]
        if not blocks:
            parts = [rounded(np.zeros(shape) if carried is None else carried)]
        elif accumulator.order is Order.PAIRWISE:
            parts = (block_sum(number, None if number else carried) for number in range(blocks))
        else:
            lanes: list[Wide | None] = [carried] + [None] * (min(accumulator.lanes, blocks) - 1)
            for number in range(blocks):
                lane = number % len(lanes)
                lanes[lane] = block_sum(number, lanes[lane])
            parts = [total for total in lanes if total is not None]
        result = _add_pairwise(parts, lambda x, y: rounded(add_to_odd(x, y, down=down)))
        return result if self.output is None else words.round(result, self.output, self.out_rounding)


class _Words:
    """Roundings of one tile, each with the words of the next stream, from one element of the result on."""

    def __init__(self, random: RandomWords | None, start: int) -> None:
        self.random, self.start = random, start

    def round(self, y: Wide, fmt: Format, rounding: Rounding) -> Wide:
        """Return an array rounded into a format."""
        flat = np.ascontiguousarray(y).reshape(-1)
        rounded = np.empty_like(flat)
        draws = None
        if rounding.stochastic and self.random is not None:
            draws = self.random.draws(self.start, flat.size, rounding.random_bits)
            self.random = replace(self.random, stream=self.random.stream + 1)
        get_kernel(fmt, rounding, FLOAT64)(flat, rounded, draws)
        return rounded.reshape(y.shape)


def _add_pairwise(parts: Iterable[Wide], add: Callable[[Wide, Wide], Wide]) -> Wide:
    """Return the sum of parts as a balanced tree, holding one sum a level at a time."""
    waiting: list[tuple[int, Wide]] = []
    for part in parts:
        level = 0
        while waiting and waiting[-1][0] == level:
            part = add(waiting.pop()[1], part)
            level += 1
        waiting.append((level, part))
    _, total = waiting.pop()
    while waiting:
        total = add(waiting.pop()[1], total)
    return total


def _operand(x: ArrayLike, label: str) -> Array:
    """Return numbers exactly: as float32 where that holds them all, else as float64."""
    array = np.asarray(x)
    dtype = array.dtype
    if (dtype.kind == "f" and dtype.itemsize <= 4) or (
        dtype.type.__module__ == "ml_dtypes" and np.can_cast(dtype, np.float32)
    ):
        return array.astype(np.float32, copy=False)
    if dtype.kind not in "iu" and not (dtype.kind == "f" and dtype.itemsize == 8):
        raise TypeError(f"{label} of dtype {dtype} does not hold real numbers of at most 64 bits")
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        narrow = wide.astype(np.float32)
        unlike = ~((narrow == wide) | np.isnan(wide))
    if dtype.kind in "iu":
        outside = (array > 2**53) | (array < -(2**53)) if dtype.itemsize == 8 else np.zeros(array.shape, bool)
        allowed = "2**53 at most"
    else:
        magnitude = np.abs(wide)
        outside = unlike & ((magnitude > 2.0**COMFORT) | (magnitude < 2.0**-COMFORT))
        allowed = f"within 2**+-{COMFORT}"
    if outside.any():
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ValueError(f"{label}{list(index)} = {array[index]!r}: magnitudes must be {allowed}")
    return wide if unlike.any() else narrow


def _added(c: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return what is to be added, in the result's shape."""
    numbers = _operand(c, "c")
    try:
        return np.broadcast_to(numbers, shape)
    except ValueError:
        raise ValueError(f"c of shape {numbers.shape} does not broadcast to the result's {shape}") from None
