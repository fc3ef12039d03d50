"""The unit that multiplies matrices: tiles of the result, their sums, and the roundings of these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.arguments import check_threads
from mcfsim.checks.processor import check_processor
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import FLOAT64, carrier_of
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.kernels.exact_dot import add_to_odd, dot_to_odd, tiles
from mcfsim.products.accumulator import Accumulator, Order, Products
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding, get_rounding

Array = NDArray[Any]
Wide = NDArray[np.float64]


class Unit:
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
        """Return the products of matrices, of shape ``(number, m, n)``, each begun with its part of ``c``."""
        check_threads(threads)
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
            check_processor()  # a setting of each thread
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
    """Roundings of one tile, each with the words of the next operation, from one element of the result on."""

    def __init__(self, random: RandomWords | None, start: int) -> None:
        self.random, self.start = random, start

    def round(self, y: Wide, fmt: Format, rounding: Rounding) -> Wide:
        """Return an array rounded into a format."""
        flat = np.ascontiguousarray(y).reshape(-1)
        rounded = np.empty_like(flat)
        draws = None
        if rounding.stochastic and self.random is not None:
            draws = self.random.draws(self.start, flat.size, rounding.random_bits)
            self.random = self.random.of(1)
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
