"""Parts of a domain: tables of operands, or random ones, in blocks from any index on; how many are tried."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import on_blocks
from mcfsim.checks import check_int
from mcfsim.compile.loops import draw as compiled_words
from mcfsim.compile.objects import is_available
from mcfsim.formats import Format, Grid
from mcfsim.formats.floating import floor_log2
from mcfsim.random import RandomWords, Words
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK
from mcfsim.theorems.operands import Block, Columns, OperandSpec, PairRows

#: Kinds of parts: every operand of the format; every operand up to the reductions; operands near overflow or
#: underflow, where reductions end; some of every exponent, whatever the reductions say; known extremal ones;
#: random ones. Code that makes parts or reads certificates uses this list.
Kind = Literal["complete", "core", "edge", "spread", "family", "sample"]
#: Which operands: ``core`` uses the reductions of the statement, ``all`` uses none.
Extent = Literal["core", "all"]
#: Most cases of a core of pairs of words; an eighth of that if its low words lie deep.
LIMIT = 1_100_000_000
#: Number of random cases.
SAMPLES = 1 << 22
#: Blocks of random operands are kept if they have at most this many components.
_FEW = 4
#: Loading LLVM and the loop that draws takes as long as NumPy takes for this many words.
_LOADING_PAYS = 1 << 22
_drawn_so_far = [0]


@dataclass(frozen=True)
class Selection:
    """Which operands of a format are tried.

    Parameters
    ----------
    extent : {"core", "all"}, optional
        ``all`` takes every operand of the format, without reductions.
    limit : int, optional
        The most cases of a core of pairs of words; the core's depth is reduced until it has no more.
    samples, seed : int, optional
        Number of random cases, unless every operand is tried, and their seed.

    Raises
    ------
    TypeError
        If a number is not an int.
    ValueError
        If the extent is unknown, or a number out of range.
    """

    extent: Extent = "core"
    limit: int = LIMIT
    samples: int = SAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        if self.extent not in get_args(Extent):
            raise ValueError(f"unknown extent {self.extent!r}; known extents: {', '.join(get_args(Extent))}")
        for label, least in (("limit", 1), ("samples", 0), ("seed", 0)):
            check_int(label, getattr(self, label), least)


@dataclass(frozen=True)
class Part:
    """A part of a domain: all combinations of the rows of its tables.

    Attributes
    ----------
    kind : str
        See `Kind`.
    text : str
        Description of the operands.
    tables : tuple
        One table per operand, each a tuple of columns of equal length, one per component.
    """

    kind: Kind
    text: str
    tables: tuple[Columns, ...]

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"unknown kind of part {self.kind!r}; known kinds: {', '.join(get_args(Kind))}")

    @property
    def size(self) -> int:
        """Number of cases."""
        return prod(len(table[0]) for table in self.tables)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the tables."""
        return sum(column.nbytes for table in self.tables for column in table)

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, list[Block]]]:
        """Yield a range of cases in blocks: the index of the first case, and one array per component."""
        sizes = [len(table[0]) for table in self.tables]
        inner, axis = 1, len(sizes)
        while axis > 0 and inner * sizes[axis - 1] <= BLOCK:
            axis -= 1
            inner *= sizes[axis]
        # A block is a run of rows of the table `axis`, with all rows of the tables after it.
        axis = max(axis - 1, 0)
        inner = prod(sizes[axis + 1 :])
        if 0 < stop - start < inner:  # too few for a run
            yield start, self.at(np.arange(start, stop))
            return
        repeated: tuple[int, list[Block]] = (0, [])
        while start < stop:
            outer, row = divmod(start // inner, sizes[axis])
            rows = min(max(BLOCK // inner, 1), sizes[axis] - row, -(-stop // inner) - start // inner)
            offset = start % inner
            size = min(rows * inner - offset, stop - start)
            if repeated[0] != rows:
                repeated = rows, self._repeated(axis, rows)
            own = [
                np.broadcast_to(column[row : row + rows, None], (rows, inner)).ravel()
                for column in self.tables[axis]
            ]
            run = [*self._fixed(axis, outer, rows * inner), *own, *repeated[1]]
            yield start, [block[offset : offset + size] for block in run]
            start += size

    def at(self, cases: NDArray[np.int64]) -> list[Block]:
        """Return the cases with the given indices, as one array per component."""
        places = np.unravel_index(cases, [len(table[0]) for table in self.tables])
        return [column[place] for table, place in zip(self.tables, places, strict=True) for column in table]

    def _fixed(self, axis: int, outer: int, size: int) -> Iterator[Block]:
        """Yield the columns of the tables before `axis`; a run takes one row of each."""
        places = np.unravel_index(outer, [len(table[0]) for table in self.tables[:axis]]) if axis else ()
        for table, place in zip(self.tables, places, strict=False):
            yield from (np.full(size, column[place]) for column in table)

    def _repeated(self, axis: int, rows: int) -> list[Block]:
        """Return the columns of the tables after `axis`, read-only, since runs of equal length share them."""
        shape = (rows, *(len(table[0]) for table in self.tables[axis + 1 :]))
        found = []
        for i, table in enumerate(self.tables[axis + 1 :], start=1):
            for column in table:
                spread = column.reshape([-1 if j == i else 1 for j in range(len(shape))])
                found.append(np.broadcast_to(spread, shape).ravel())
                found[-1].flags.writeable = False
        return found


class InOrder:
    """Parts that follow one another; their cases are numbered consecutively."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Number of cases."""
        return sum(part.size for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the tables of all parts."""
        return sum(part.nbytes for part in self.parts)

    def starts(self) -> list[int]:
        """Return the index of each part's first case."""
        return [0, *accumulate(part.size for part in self.parts)][:-1]

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, list[Block]]]:
        """Yield a range of cases in blocks: the index of the first case, and one array per component."""
        for first, part, a, b in self.ranges(start, stop):
            yield from ((first + index, blocks) for index, blocks in part.blocks(a, b))

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, Part, int, int]]:
        """Yield each part that a range of cases meets: index of its first case, and the range in the part."""
        for first, part in zip(self.starts(), self.parts, strict=True):
            a, b = max(start - first, 0), min(stop - first, part.size)
            if a < b:
                yield first, part, a, b


@dataclass(frozen=True)
class Pieces(InOrder, Part):
    """A `Part` of several products of tables, one after the other; it has the tables of its parts."""

    parts: tuple[Part, ...] = ()

    def at(self, cases: NDArray[np.int64]) -> list[Block]:
        """Return the cases with the given indices, as one array per component."""
        first = np.array(self.starts())
        whose = np.searchsorted(first, cases, "right") - 1
        found = [np.empty(cases.size, table[0].dtype) for table in self.parts[0].tables]
        for i in np.unique(whose).tolist():
            there = whose == i
            for block, some in zip(found, self.parts[i].at(cases[there] - first[i]), strict=True):
                block[there] = some
        return found


@dataclass(frozen=True)
class Pairs(Part):
    """A `Part` of one operand that is a pair of words; the pairs are listed only when they are needed."""

    rows: PairRows

    @property
    def size(self) -> int:
        """Number of pairs."""
        return self.rows.size

    @property
    def nbytes(self) -> int:
        """Number of bytes of the rows."""
        return self.rows.nbytes

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, list[Block]]]:
        """Yield a range of cases in blocks: the index of the first case, and the high and the low words."""
        for first in range(start, stop, BLOCK):
            yield first, list(self.rows.between(first, min(first + BLOCK, stop)))

    def at(self, cases: NDArray[np.int64]) -> list[Block]:
        """Return the cases with the given indices: the high and the low words."""
        return list(self.rows.at(cases))


@dataclass(frozen=True)
class Sample(Part):
    """A `Part` of random operands, which are drawn when they are needed.

    Significands are uniform, and so are exponents, in a range for each operand. The low word of a pair is
    drawn below half an ulp of the high word; half of the draws are confined to the two binades next to it.
    The case of an index does not depend on the range of cases with which it is drawn.
    """

    operands: tuple[OperandSpec, ...]
    format: Format
    exponents: tuple[tuple[int, int], ...]
    count: int
    seed: int

    @property
    def size(self) -> int:
        """Number of cases."""
        return self.count

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, list[Block]]]:
        """Yield a range of cases in blocks: the index of the first case, and one array per component."""
        kept = sum(operand.components for operand in self.operands) <= _FEW
        for first in range(start, stop, BLOCK):
            size = min(BLOCK, stop - first)
            yield first, list(_drawn(self, first, size) if kept else self._draw(first, size))

    def at(self, cases: NDArray[np.int64]) -> list[Block]:
        """Return the cases with the given indices, as one array per component."""
        runs = np.split(cases, np.flatnonzero(np.diff(cases) != 1) + 1)
        drawn = [list(self._draw(int(run[0]), run.size)) for run in runs]
        return [np.concatenate(column) for column in zip(*drawn, strict=True)]

    def _draw(self, start: int, size: int) -> Iterator[Block]:
        ar, fmt, p = on_blocks(self.format, Rounding()), self.format, self.format.precision
        draw, operation = _drawing(2 * size * sum(operand.components for operand in self.operands)), 0
        for operand, (low, high) in zip(self.operands, self.exponents, strict=True):
            words: list[Block] = []
            exponent = np.empty(0, np.int32)
            for place in range(operand.components):
                bits, which = (
                    draw(RandomWords(self.seed).of(operation + i), start, size, 32, f"sample{i}")
                    for i in range(2)
                )
                operation += 2
                if operand.paired and place == 1:
                    # Half of the low words lie in the two binades below half an ulp.
                    rest, near = which >> 1, -(which & 1)  # a mask: selecting would branch for each element
                    far = _remainder(rest, p + 4)
                    down = far ^ ((far ^ (rest & 1)) & near)
                    exponent -= (1 + p) + down.astype(np.int32)
                    low, high = low - (2 * p + 4), high - (1 + p)
                else:
                    exponent = _remainder(which, high - low + 1).astype(np.int32)
                    exponent += np.int32(low)
                number = _number(bits, exponent, (low, high), p, ar.carrier)
                inside = fmt.emin <= low <= high < fmt.emax
                if type(fmt) is not Format or not inside:  # a subnormal number or a posit has fewer bits
                    number = ar.round(number)
                    exponent = np.frexp(number)[1] - 1
                words.append(number)
            if operand.kind == "double word":
                # A low word that would change the high one (a tie that rounds away) is replaced by zero.
                words[1] *= ar.add(words[0], words[1]) == words[0]
            yield from words


def _number(bits: Words, exponent: Block, span: tuple[int, int], precision: int, carrier: Any) -> Block:
    """Return random numbers with exponents in a span, in the carrier, or in binary64 if it lacks some.

    The last bit of a word is the sign. The bits before it, at most 31, are what follows the leading bit.
    """
    info = np.finfo(carrier if np.finfo(carrier).minexp <= span[0] else np.float64)
    inside = info.minexp <= span[0] and span[1] < info.maxexp
    unsigned = np.dtype(f"u{info.dtype.itemsize}").type
    code = bits.astype(unsigned)
    sign = code << unsigned(info.bits - 1)
    code >>= unsigned(1)
    code &= unsigned((1 << min(precision - 1, 31)) - 1)
    code <<= unsigned(info.nmant - (precision - 1))
    shift = (exponent if inside else 0) + np.asarray(info.maxexp - 1, exponent.dtype)
    code |= shift.astype(unsigned) << unsigned(info.nmant)
    code |= sign
    number: Block = code.view(info.dtype)
    return number if inside else np.ldexp(number, exponent)


@lru_cache(maxsize=64)
def _drawn(sample: Sample, start: int, size: int) -> tuple[Block, ...]:
    """Return a block of random operands; consecutive statements often share it."""
    blocks = tuple(sample._draw(start, size))
    for block in blocks:
        block.flags.writeable = False
    return blocks


def _drawing(many: int) -> Callable[..., Words]:
    """Return a function that draws words: a compiled loop, once LLVM is loaded or loading it pays."""
    _drawn_so_far[0] += many
    compiled = is_available() and ("llvmlite" in sys.modules or _drawn_so_far[0] > _LOADING_PAYS)
    return compiled_words if compiled else _words


def _words(words: RandomWords, start: int, count: int, bits: int, _: str) -> Words:
    return words.words(start, count, bits)


def _remainder(x: Words, divisor: int) -> Words:
    """Return ``x % divisor``, by a division that NumPy turns into a product."""
    found: Words = x - x // np.uint32(divisor) * np.uint32(divisor)
    return found


@dataclass(frozen=True)
class Domain(InOrder):
    """The operands of a trial, the format it runs in, and what the operands stand for.

    Attributes
    ----------
    format : Format
        The format that the algorithm runs in: the one to be tried, or one of the same precision whose
        exponents stand for unbounded ones.
    parts : tuple of Part
    reductions : tuple of str
        Why the operands tried stand for all.
    covers : bool
        Whether they do stand for all operands that meet the hypotheses.
    """

    format: Format
    parts: tuple[Part, ...]
    reductions: tuple[str, ...]
    covers: bool

    def units(self, size: int) -> list[tuple[int, int]]:
        """Return ranges of at most `size` cases that together cover all; none crosses a part's end."""
        return [
            (first + a, first + min(a + size, part.size))
            for first, part in zip(self.starts(), self.parts, strict=True)
            for a in range(0, part.size, size)
        ]


def anywhere(fmt: Format) -> tuple[int, int]:
    """Return the exponents of operands drawn from a whole format.

    For floats and posits the largest exponent is left out, if there is room. For a grid it is not: half of
    all numbers have it.
    """
    least = floor_log2(fmt.smallest_normal)
    return least, floor_log2(fmt.max) if isinstance(fmt, Grid) else max(least, fmt.emax - 1)
