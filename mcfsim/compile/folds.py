"""Rolled programs carried out on arrays: compiled loops over repetitions, a block of elements at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.processor import check_processor
from mcfsim.compile.drawing import draw_rows, word_dtype
from mcfsim.compile.loops import Filler
from mcfsim.compile.program import ProgramStep
from mcfsim.compile.rolling import Numbers, RepeatedBody, Rolled
from mcfsim.kernels.carriers import carrier_of
from mcfsim.random import RandomWords

Array = NDArray[Any]
#: Carries out a step, whose operands are blocks and real scalars, given the index of their first element.
CarryOut = Callable[[ProgramStep, int], Any]

#: Elements a block, at the most; a multiple of the least; and bytes that its rows take together.
_WIDEST, _NARROWEST, _BYTES = 1024, 64, 1 << 22
#: Random words that are drawn together.
_WORDS = 1 << 15


def trusted(part: RepeatedBody, rolled: Rolled) -> frozenset[int]:
    """Return the inputs of a body, by their places, that are seldom operands of the text itself."""
    operands = part.takes < len(rolled.recording.inputs)
    return frozenset(np.flatnonzero(2 * operands.sum(axis=0) <= len(operands)).tolist())


class Fold:
    """A rolled program, with a compiled loop for each stretch that repeats.

    Each value that is wanted outside of the repetition that makes it has a row of memory, as wide as a block
    of elements; loops find their operands and results by addresses. Operands lie where they are if they are
    contiguous arrays of the carrier that a loop looks at; else they are copied to rows, too.

    Parameters
    ----------
    rolled : Rolled
    fillers : mapping of int to Filler
        The loops by the numbers of the stretches' first steps.
    """

    def __init__(self, rolled: Rolled, fillers: Mapping[int, Filler]) -> None:
        self.recording, self.rolled, self.fillers = rolled.recording, rolled, fillers
        inputs = len(self.recording.inputs)
        values = inputs + len(self.recording.steps)
        formats = {self.recording.inputs[0].format, *(kind.format for kind in self.recording.kinds)}
        self.itemsize = max(carrier_of(fmt).itemsize for fmt in formats)
        looked_at, copied = np.zeros(values, np.bool_), np.zeros(values, np.bool_)
        copied[list(rolled.results)] = True
        self.place, self.rows = np.full(values, -1), 0
        for part in rolled.parts:
            if isinstance(part, RepeatedBody):
                unseen = trusted(part, rolled)
                for place, numbers in enumerate(part.takes.T):
                    (copied if place in unseen else looked_at)[numbers] = True
                for numbers, lasting in zip(part.makes.T, part.lasting, strict=True):
                    self.place[numbers] = self.rows + np.arange(numbers.size) % lasting
                    self.rows += lasting
            else:
                copied[[number for number in rolled.operands[part] if number >= 0]] = True
                self.place[inputs + part] = self.rows
                self.rows += 1
        self.looked_at, self.copied = looked_at[:inputs], copied[:inputs]

    def __call__(
        self,
        operands: Sequence[Array],
        results: Sequence[Array],
        carry_out: CarryOut,
        keeps: Callable[[Array], bool],
        words: RandomWords | None = None,
        *,
        threads: int = 1,
    ) -> bool:
        """Fill results from operands, arrays of one shape and of the carrier, the results contiguous.

        Parameters
        ----------
        operands, results : sequence of array
        carry_out : callable
            What carries single steps out.
        keeps : callable
            Whether a block holds values of the operands' format alone.
        words : RandomWords, optional
            Of the first operation that draws.
        threads : int, optional
            That share the blocks.

        Returns
        -------
        bool
            Whether all operands are values of their format; if not, results are not complete.
        """
        blocks = _Blocks(self, operands, results, carry_out, keeps, words)
        starts = range(0, results[0].size, blocks.width)
        if threads == 1:
            return blocks.work(starts)
        with ThreadPoolExecutor(threads) as pool:
            return all(list(pool.map(blocks.work, [starts[first::threads] for first in range(threads)])))


class _Blocks:
    """One call of a fold."""

    def __init__(
        self,
        fold: Fold,
        operands: Sequence[Array],
        results: Sequence[Array],
        carry_out: CarryOut,
        keeps: Callable[[Array], bool],
        words: RandomWords | None,
    ) -> None:
        self._fold, self._carry_out, self._keeps, self._words = fold, carry_out, keeps, words
        self._results = [x.reshape(-1) for x in results]
        self._size = results[0].size
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

    @np.errstate(all="ignore")
    def work(self, starts: range) -> bool:
        """Fill the blocks that begin with some elements."""
        check_processor()  # a setting of each thread
        fold = self._fold
        memory = np.empty((self._rows, self.width * fold.itemsize), np.uint8)
        at = memory.__array_interface__["data"][0] + self._place * memory.shape[1]
        for start in starts:
            size = min(self.width, self._size - start)

            def row(number: int, size: int = size) -> Array:
                dtype = carrier_of(fold.recording.format(number))
                found: Array = memory[self._place[number]].view(dtype)
                return found[:size]

            at[self._in_place] = self._addresses[self._in_place] + start * self._operands[0].itemsize
            if not all(self._keeps(np.ascontiguousarray(self._part(x, start, size))) for x in self._unseen):
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
        recording = self._fold.recording
        values = [row(code) if code >= 0 else None for code in recording.codes(number)]
        step = recording.step(number, values, "result", recording.draws[number])
        _clean(row(len(recording.inputs) + number), self._carry_out(step, start))

    def _repeat(self, part: RepeatedBody, at: Numbers, start: int, size: int) -> bool:
        """Carry a stretch out, so many repetitions at a time as words are drawn together."""
        filler = self._fold.fillers[part.start]
        operands, results = at[part.takes], at[part.makes]
        if self._words is None or not part.draws.size:
            return filler.over_rows(np.concatenate([operands, results], axis=1), size)
        drawing = filler.random_bits
        several = max(1, _WORDS // (self.width * len(drawing)))
        dtypes = [word_dtype(bits) for bits in drawing]
        drawn = [np.empty((several, self.width * dtype.itemsize // 4), np.int32) for dtype in dtypes]
        lines = [x.__array_interface__["data"][0] + x.strides[0] * np.arange(several) for x in drawn]
        found = True
        for first in range(0, len(part.takes), several):
            some = slice(first, first + several)
            count = len(part.takes[some])
            for words, dtype, streams in zip(drawn, dtypes, part.draws[some].T, strict=True):
                draw_rows(self._words, streams, start * dtype.itemsize // 16, words[:count])
            of_words = np.stack(lines, axis=1)[:count]
            table = np.concatenate([operands[some], of_words, results[some]], axis=1)
            found = filler.over_rows(table, size) and found
        return found


def _clean(row: Array, x: Any) -> None:
    """Fill a row; where it is NaN, with the code that loops trust."""
    row[...] = x
    row[np.isnan(row)] = np.nan
