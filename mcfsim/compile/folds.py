"""Long algorithms as several compiled loops: over bodies of operations that repeat, and piece by piece."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.compile.loops import BoundLoop, draw_rows, word_dtype
from mcfsim.compile.program import ProgramStep
from mcfsim.compile.rolling import Numbers, RepeatedBody, Rolled
from mcfsim.kernels.blocks import on_threads
from mcfsim.kernels.carriers import carrier_of
from mcfsim.random import RandomWords

Array = NDArray[Any]
#: Performs a step, whose operands are blocks and real scalars, given the index of their first element.
CarryOut = Callable[[ProgramStep, int], Any]

#: The most elements of a block; its size is a multiple of the second; the most bytes of its rows together.
_WIDEST, _NARROWEST, _BYTES = 1024, 64, 1 << 22
#: How many random words are drawn together.
_WORDS = 1 << 15


class Fold:
    """A rolled program, with a compiled loop for each stretch that repeats.

    Each value that is used outside the repetition that makes it has a row of memory, as wide as a block of
    elements; loops find their operands and results by addresses. Operands stay in place if they are
    contiguous arrays of the carrier that a loop checks; otherwise they are copied to rows, too.

    Parameters
    ----------
    rolled : Rolled
    bound_loops : mapping of int to BoundLoop
        The loops by the numbers of the stretches' first steps.
    """

    def __init__(self, rolled: Rolled, bound_loops: Mapping[int, BoundLoop]) -> None:
        self.recording, self.rolled, self.bound_loops = rolled.recording, rolled, bound_loops
        inputs = len(self.recording.inputs)
        values = inputs + len(self.recording.steps)
        formats = {self.recording.inputs[0].format, *(kind.format for kind in self.recording.kinds)}
        self.itemsize = max(carrier_of(fmt).itemsize for fmt in formats)
        looked_at, copied = np.zeros(values, np.bool_), np.zeros(values, np.bool_)
        copied[list(rolled.results)] = True
        for part in rolled.parts:
            if isinstance(part, RepeatedBody):
                for place, numbers in enumerate(part.takes.T):
                    (copied if place in part.trusted else looked_at)[numbers] = True
            else:
                copied[[code for code in rolled.operands[part] if code >= 0]] = True
        self.looked_at, self.copied = looked_at[:inputs], copied[:inputs]
        self.place, self.rows = _placed(rolled, values)


def _placed(rolled: Rolled, values: int) -> tuple[Numbers, int]:
    """Return the row of each value that a part makes, and the number of rows; dead values give theirs up."""
    inputs, last = len(rolled.recording.inputs), np.zeros(values, np.int64)
    parts = [
        ([part.takes], list(zip(part.makes.T, part.lasting, strict=True)))
        if isinstance(part, RepeatedBody)
        else ([rolled.operands[part][rolled.operands[part] >= 0]], [(np.array([inputs + part]), 1)])
        for part in rolled.parts
    ]
    for number, (takes, makes) in enumerate(parts):
        for numbers in (*takes, *(made for made, _ in makes)):
            last[numbers] = number
    last[list(rolled.results)] = len(parts)
    place, rows, free = np.full(values, -1), 0, list[int]()
    ends: dict[int, list[int]] = defaultdict(list)  # rows, by the last part that reads them
    for number, (_, makes) in enumerate(parts):
        for numbers, lasting in makes:
            own = [free.pop() for _ in range(min(lasting, len(free)))]
            own += range(rows, rows + lasting - len(own))
            rows = max(rows, *(row + 1 for row in own))
            place[numbers] = np.array(own)[np.arange(numbers.size) % lasting]
            ends[int(last[numbers].max())] += own
        free += ends.pop(number, [])
    return place, rows


@dataclass
class FoldRun:
    """One call of a fold, which fills results from operands.

    Parameters
    ----------
    fold : Fold
    operands, results : sequence of array
        Of one shape and of the carrier, the results contiguous.
    carry_out : callable
        Performs single steps.
    keeps : callable
        Returns whether a block holds only values of the operands' format.
    words : RandomWords or None
        Those of the first operation that draws.
    """

    fold: Fold
    operands: Sequence[Array]
    results: Sequence[Array]
    carry_out: CarryOut
    keeps: Callable[[Array], bool]
    words: RandomWords | None

    def __post_init__(self) -> None:
        fold, operands = self.fold, self.operands
        self._results = [x.reshape(-1) for x in self.results]
        self._size = self.results[0].size
        contiguous = np.array([x.flags.c_contiguous and x.flags.aligned for x in operands])
        self._operands = [x.reshape(-1) if own else x for x, own in zip(operands, contiguous, strict=True)]
        self._addresses = np.array([x.__array_interface__["data"][0] for x in operands])
        in_place = fold.looked_at & contiguous & ~fold.copied
        self._in_place = np.flatnonzero(in_place).tolist()
        self._copied = np.flatnonzero(~in_place & (fold.looked_at | fold.copied)).tolist()
        self._unseen = np.flatnonzero(~fold.looked_at).tolist()
        self._place = fold.place.copy()
        self._place[self._copied] = fold.rows + np.arange(len(self._copied))
        self._rows = fold.rows + len(self._copied)
        width = min(_WIDEST, self._size, _BYTES // (self._rows * fold.itemsize))
        self.width = max(1, -(-width // _NARROWEST)) * _NARROWEST

    def fill(self, threads: int = 1) -> bool:
        """Fill the results, on several threads if wanted.

        Returns
        -------
        bool
            Whether all operands are values of their format; if not, results are not complete.
        """
        starts = range(0, self._size, self.width)
        return all(on_threads(self.work, [starts[first::threads] for first in range(threads)], threads))

    @np.errstate(all="ignore")
    def work(self, starts: range) -> bool:
        """Fill the blocks that begin at the given elements."""
        check_processor()  # a setting of each thread
        fold = self.fold
        memory = np.empty((self._rows, self.width * fold.itemsize), np.uint8)
        at = memory.__array_interface__["data"][0] + self._place * memory.shape[1]
        for start in starts:
            size = min(self.width, self._size - start)

            def row(number: int, size: int = size) -> Array:
                dtype = carrier_of(fold.recording.format(number))
                found: Array = memory[self._place[number]].view(dtype)
                return found[:size]

            at[self._in_place] = self._addresses[self._in_place] + start * self._operands[0].itemsize
            if not all(self.keeps(np.ascontiguousarray(self._part(x, start, size))) for x in self._unseen):
                return False
            for x in self._copied:
                _clean(row(x), self._part(x, start, size))
            for part in fold.rolled.parts:
                if isinstance(part, RepeatedBody):
                    if not self._repeat(part, at, start, size):
                        return False
                else:
                    self._single(part, row, start)
            for result, number in zip(self._results, fold.rolled.results, strict=True):
                result[start : start + size] = row(number)
        return True

    def _part(self, operand: int, start: int, size: int) -> Array:
        x = self._operands[operand]
        return x[start : start + size] if x.ndim == 1 else np.asarray(x.flat[start : start + size])

    def _single(self, number: int, row: Callable[[int], Array], start: int) -> None:
        recording = self.fold.recording
        values = [row(code) if code >= 0 else None for code in recording.codes(number)]
        step = recording.step(number, values, "result", recording.draws[number])
        _clean(row(len(recording.inputs) + number), self.carry_out(step, start))

    def _repeat(self, part: RepeatedBody, at: Numbers, start: int, size: int) -> bool:
        """Run a stretch, with as many repetitions at a time as words are drawn together."""
        bound_loop = self.fold.bound_loops[part.start]
        operands, results = at[part.takes], at[part.makes]
        if self.words is None or not part.draws.size:
            return bound_loop.over_rows(np.concatenate([operands, results], axis=1), size)
        drawing = bound_loop.random_bits
        several = max(1, _WORDS // (self.width * len(drawing)))
        dtypes = [word_dtype(bits) for bits in drawing]
        drawn = [np.empty((several, self.width * dtype.itemsize // 4), np.int32) for dtype in dtypes]
        lines = [x.__array_interface__["data"][0] + x.strides[0] * np.arange(several) for x in drawn]
        found = True
        for first in range(0, len(part.takes), several):
            some = slice(first, first + several)
            count = len(part.takes[some])
            for words, dtype, streams in zip(drawn, dtypes, part.draws[some].T, strict=True):
                draw_rows(self.words, streams, start * dtype.itemsize // 16, words[:count])
            of_words = np.stack(lines, axis=1)[:count]
            table = np.concatenate([operands[some], of_words, results[some]], axis=1)
            found = bound_loop.over_rows(table, size) and found
        return found


def _clean(row: Array, x: Any) -> None:
    """Fill a row, writing each NaN with the code that loops trust."""
    row[...] = x
    row[np.isnan(row)] = np.nan
