"""Accumulators for sums of products, and matrix products by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks import check_int, check_processor, check_threads, chosen, real_array
from mcfsim.formats import Format, get_format
from mcfsim.kernels.blocks import get_kernel, on_threads
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, carrier_of
from mcfsim.kernels.exact_dot import COMFORT, ODD_BITS, Summands, add_to_odd, dot_to_odd, tiles
from mcfsim.kernels.native import Wide
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding, Underflow, get_rounding
from mcfsim.scaled import Scaled


class Order(StrEnum):
    """Order in which the blocks of a sum are added.

    ``sequential``: each block is added to a running accumulator. ``pairwise``: each block is summed by
    itself, and the sums are added in pairs, neighbours first, until one is left; an odd sum at the end of a
    level goes to the next level, unrounded.
    """

    SEQUENTIAL = "sequential"
    PAIRWISE = "pairwise"


class Products(StrEnum):
    """Treatment of products before summation: kept exact, or rounded to the accumulator's format."""

    EXACT = "exact"
    ROUNDED = "rounded"


@dataclass(frozen=True)
class Accumulator:
    """An accumulator of products: its format, its rounding and the order of its sums.

    The products are taken in blocks along the contracted axis. The accumulator's value plus the products of a
    block, summed exactly, is rounded once into the accumulator's format. With ``block=1`` this is a chain of
    fused multiply-adds, with ``block=None`` a dot product rounded once.

    Parameters
    ----------
    format : Format or str
        Format of the accumulator.
    rounding : Rounding or str, optional
        Mode and policies of all its roundings.
    block : int or None
        Products per block: at least 1, or None for all. The last block may be shorter.
    order : {"sequential", "pairwise"}, optional
        See `Order`.
    lanes : int, optional
        Number of sequential accumulators. They take the blocks in turn; in the end they are added as if
        ``pairwise``.
    products : {"exact", "rounded"}, optional
        See `Products`. ``rounded`` with ``block=1`` is a separate multiplication and addition.

    Raises
    ------
    TypeError
        If `block` or `lanes` is not an int.
    ValueError
        If a name is unknown, a number is out of range, ``pairwise`` has more than one lane, or operands are
        to be flushed: their own formats are not stated, so it is unknown which of them are small.
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
        if self.block is not None:
            check_int("block", self.block, 1)
        check_int("lanes", self.lanes, 1)
        for label, kind in (("order", Order), ("products", Products)):
            object.__setattr__(self, label, chosen(label, getattr(self, label), kind))
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
        """Return the number of roundings in a sum of `length` products, each with words of its own.

        Parameters
        ----------
        length : int
            Length of the contracted axis.

        Raises
        ------
        TypeError
            If `length` is not an int.
        ValueError
            If `length` is negative.
        """
        check_int("length", length, 0)
        products = length if self.products is Products.ROUNDED else 0
        blocks = -(-length // (self.block or max(1, length)))
        parts = blocks if self.order is Order.PAIRWISE else min(blocks, self.lanes)
        return products + max(1, blocks) + max(0, parts - 1)


# -- products ---------------------------------------------------------------------------------------------
Array = NDArray[Any]


class Accumulation:
    """Matrix products by an accumulator, with an output format and random words for both."""

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
        self.down = accumulator.rounding.mode is Mode.DOWN
        self.carrier = carrier_of(self.output or accumulator.format)

    def operand(self, x: Any, label: str, axis: int) -> Array:
        """Return an operand's numbers exactly, whatever its contracted axis is."""
        if isinstance(x, Scaled):
            raise TypeError(f"{label} is scaled, and an accumulator takes numbers; dequantize() gives them")
        return _numbers(x, label)

    def added(self, c: ArrayLike, shape: tuple[int, ...]) -> Array:
        """Return the addend c, broadcast to the result's shape."""
        return spread_addend(_numbers(c, "c"), shape)

    def multiply(self, a: Array, b: Array, c: Array | None, stack: tuple[int, ...], threads: int) -> Array:
        """Return matrix products, of shape ``(number, m, n)``, each accumulated onto its part of ``c``."""
        check_threads(threads)
        # A product of two numbers of float32 has 48 bits.
        narrow = a.dtype == b.dtype == np.float32
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        if b.ndim == 2 and len(stack):  # one matrix serves the whole stack: stack its rows
            a, stack, m = a.reshape(math.prod(stack) * m, k), (), math.prod(stack) * m
        out = np.empty((math.prod(stack), m, n), self.carrier)
        given = None if c is None else c.reshape(out.shape)
        # Every stack needs a first axis to index.
        stack = stack or (1,)
        lefts, rights = np.broadcast_to(a, (*stack, m, k)), np.broadcast_to(b, (*stack, k, n))

        def run(tile: tuple[slice, slice, slice]) -> None:
            check_processor()  # the setting belongs to a thread
            matrices, rows, columns = tile
            index: tuple[Any, ...] = np.unravel_index(np.arange(matrices.start, matrices.stop), stack)

            def operands(start: int, stop: int) -> tuple[Wide, Wide]:
                places = slice(start, stop)
                left, right = lefts[(*index, rows, places)], rights[(*index, places, columns)]
                return left.astype(np.float64), right.astype(np.float64)

            carried = None if given is None else given[tile].astype(np.float64)
            words = _Words(self, (matrices.start * m + rows.start) * n + columns.start)
            rounded = words.round_products if self.accumulator.products is Products.ROUNDED else None
            count, height, width = out[tile].shape
            summands = Summands(operands, (count, height, width), narrow, self.down, rounded)
            with np.errstate(all="ignore"):
                out[tile] = self._tile(summands, k, carried, words)

        block = min(k, self.accumulator.block or k)
        on_threads(run, tiles((len(out), m, n), block, contiguous=self.stochastic), threads)
        return out

    def _tile(self, summands: Summands, length: int, carried: Wide | None, words: _Words) -> Wide:
        """Return one tile of the result."""
        accumulator = self.accumulator

        def block_sum(number: int, carried: Wide | None) -> Wide:
            places = number * block, min((number + 1) * block, length)
            return words.round(dot_to_odd(summands, places, carried))

        block = accumulator.block or max(1, length)
        blocks = -(-length // block)
        parts: Iterable[Wide]
        if not blocks:
            parts = [words.round(np.zeros(summands.shape) if carried is None else carried)]
        elif accumulator.order is Order.PAIRWISE:
            parts = (block_sum(number, None if number else carried) for number in range(blocks))
        else:
            lanes: list[Wide | None] = [carried] + [None] * (min(accumulator.lanes, blocks) - 1)
            for number in range(blocks):
                lane = number % len(lanes)
                lanes[lane] = block_sum(number, lanes[lane])
            parts = [total for total in lanes if total is not None]
        result = _add_pairwise(parts, lambda x, y: words.round(add_to_odd(x, y, down=self.down)))
        return result if self.output is None else words.round(result, self.output, self.out_rounding)


class _Words:
    """The roundings of one tile, to the accumulator's format or another; each takes new words.

    ``start`` is the index of the tile's first element in the result.
    """

    def __init__(self, accumulation: Accumulation, start: int) -> None:
        self.accumulator, self.random, self.start = accumulation.accumulator, accumulation.random, start

    def round(self, y: Wide, fmt: Format | None = None, rounding: Rounding | None = None) -> Wide:
        """Return an array rounded."""
        fmt, rounding = fmt or self.accumulator.format, rounding or self.accumulator.rounding
        flat = np.ascontiguousarray(y).reshape(-1)
        rounded = np.empty_like(flat)
        draws = None
        if rounding.stochastic and self.random is not None:
            draws = self.random.draws(self.start, flat.size, rounding.random_bits)
            self.random = self.random.of(1)
        get_kernel(fmt, rounding, FLOAT64)(flat, rounded, draws)
        return rounded.reshape(y.shape)

    def round_products(self, products: Wide) -> None:
        """Round products in place; each place has its own stream."""
        for each in products if self.accumulator.rounding.stochastic else [products]:
            each[...] = self.round(each)


def _add_pairwise(parts: Iterable[Wide], add: Callable[[Wide, Wide], Wide]) -> Wide:
    """Return the sum of parts, added as a balanced tree; at most one sum per level is held at a time."""
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


def spread_addend(numbers: Array, shape: tuple[int, ...]) -> Array:
    """Return the numbers of the addend c, broadcast to the result's shape."""
    try:
        return np.broadcast_to(numbers, shape)
    except ValueError:
        raise ValueError(f"c of shape {numbers.shape} does not broadcast to the result's {shape}") from None


def _numbers(x: ArrayLike, label: str) -> Array:
    """Return numbers exactly: as float32 if it holds them all, else as float64."""
    array = real_array(x, label)
    dtype = array.dtype
    if dtype.kind not in "iu" and (dtype.kind != "f" or dtype.itemsize <= 4):
        return array.astype(np.float32, copy=False)
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
        raise ValueError(f"{label}{list(index)} = {array[index]}: magnitudes must be {allowed}")
    return wide if unlike.any() else narrow
