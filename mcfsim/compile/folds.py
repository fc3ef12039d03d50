"""Long algorithms rolled up: bodies of operations that repeat, and compiled loops over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.compile.loops import BoundLoop
from mcfsim.compile.program import Program, ProgramStep, Register
from mcfsim.compile.tracing import ProgramRecording, Traced
from mcfsim.compile.words import draw_rows, word_dtype
from mcfsim.kernels.carriers import carrier_of
from mcfsim.random import RandomWords

# -- what repeats -----------------------------------------------------------------------------------------
Numbers = NDArray[np.int64]

#: The longest body, the fewest repetitions, and how many steps may stand alone.
_LONGEST, _FEWEST, _ALONE = 64, 8, 256
#: The fewest steps of an algorithm that is rolled up, and the least factor by which that shortens it.
_LONG, _SHORTER = 48, 4
#: Added to operand codes that stand for no value, to distinguish them from relative operand numbers.
_AFAR = -(1 << 48)


@dataclass(frozen=True)
class RepeatedBody:
    """A stretch of a recording in which one body repeats.

    Attributes
    ----------
    start : int
        The number of its first step.
    body : Program
        One repetition. Its inputs come from outside it, and its results are used outside it. Its draws are
        numbered from 0, in order.
    takes, makes : array of int, one row per repetition
        The numbers of the body's inputs and results.
    draws : array of int, one row per repetition
        Which of the recorded operations draw.
    lasting : tuple of int
        For each result, the number of repetitions after which another one may take its memory.
    """

    start: int
    body: Program
    takes: Numbers
    makes: Numbers
    draws: Numbers
    lasting: tuple[int, ...]


@dataclass(frozen=True)
class Rolled:
    """A recording divided into stretches that repeat and single steps.

    Attributes
    ----------
    recording : ProgramRecording
    parts : tuple of RepeatedBody or int
        In order; a single step is given by its number.
    operands : array of int, three per step
        The operand codes of the steps, see `ProgramRecording`.
    results : tuple of int
        The numbers of the values that the algorithm returns.
    """

    recording: ProgramRecording
    parts: tuple[RepeatedBody | int, ...]
    operands: Numbers
    results: tuple[int, ...]

    def repeated(self) -> list[RepeatedBody]:
        """Return the stretches that repeat."""
        return [part for part in self.parts if isinstance(part, RepeatedBody)]


def roll(recording: ProgramRecording) -> Rolled | None:
    """Roll up a recording; return None if that does not shorten it much, or if a result is no value."""
    outputs = recording.outputs()
    if len(recording.steps) < _LONG or not outputs or not all(isinstance(x, Traced) for x in outputs):
        return None
    first = len(recording.inputs)
    operands = np.array(recording.operands).reshape(-1, 3)
    # Only `round` takes values of other formats.
    kinds, formats = np.array(recording.steps), recording.formats()
    rounds = np.array([kind.operation == "round" for kind in recording.kinds])[kinds] & (operands[:, 0] >= 0)
    kinds = kinds * (formats.max() + 1) + np.where(rounds, formats[operands[:, 0]], 0)
    stretches = _stretches(kinds, np.where(operands < 0, _AFAR + operands, operands - first))
    if sum(period for _, period, _ in stretches) * _SHORTER > kinds.size:
        return None
    # The time of each step, counted in repetitions and single steps.
    lengths = np.concatenate([np.full(count, period) for _, period, count in stretches])
    time = np.repeat(np.arange(lengths.size), lengths)
    until = np.full(first + kinds.size, -1)
    taken = operands >= 0
    until[operands[taken]] = np.broadcast_to(time[:, None], taken.shape)[taken]  # the last one stays
    results = tuple(x.number for x in outputs)
    until[list(results)] = lengths.size
    parts: list[RepeatedBody | int] = []
    for start, period, count in stretches:
        if count == 1:
            parts.append(start)
        else:
            part = _repeated(recording, operands, time, until[first:], start, period, count)
            parts += [part] if part.makes.size else []
    return Rolled(recording, tuple(parts), operands, results)


# -- what repeats -------------------------------------------------------------------------------------------
def _stretches(kinds: Numbers, operands: Numbers) -> list[tuple[int, int, int]]:
    """Return start, period and count of all stretches in order, or one of all steps if too many are alone.

    Operands are numbered from the first step's result.
    """
    found: list[tuple[int, int, int]] = []
    start = alone = 0
    while start < kinds.size:
        period, count = _longest(kinds, operands, start)
        alone += count == 1
        if alone > _ALONE:
            return [(0, kinds.size, 1)]
        found.append((start, period, count))
        start += period * count
    return found


def _longest(kinds: Numbers, operands: Numbers, start: int) -> tuple[int, int]:
    """Return period and count of the longest stretch that begins at a step, or 1 and 1 if none does."""
    period = count = 1
    for length in range(1, min(_LONGEST, (kinds.size - start) // _FEWEST) + 1):
        stop = start + _FEWEST * length
        # A few repetitions rule out most lengths.
        if _count(kinds[start:stop], operands[start:stop], start, length) < _FEWEST:
            continue
        repeats = _count(kinds[start:], operands[start:], start, length, least=period * count)
        if repeats * length > period * count:
            period, count = length, repeats
    return period, count


def _count(kinds: Numbers, operands: Numbers, start: int, length: int, *, least: int = 0) -> int:
    """Return how often the first steps repeat; 0 if the repetitions cover no more than `least` steps."""
    if (kinds[0] != kinds[length]) or (kinds[:length] != kinds[length : 2 * length]).any():
        return 1
    other = kinds[:-length] != kinds[length:]
    count = (int(other.argmax()) if other.any() else other.size) // length + 1
    if count * length <= least:
        return 0
    # Operands must match by their place within a repetition; an operand from before it has place -1.
    rows = operands[: count * length].reshape(count, -1)
    wired = np.maximum(rows - (start + length * np.arange(count))[:, None], -1)
    wired = np.where(rows < _AFAR // 2, rows, wired)
    strange = (wired != wired[0]).any(axis=1)
    return int(strange.argmax()) if strange.any() else count


def _repeated(
    recording: ProgramRecording,
    operands: Numbers,
    time: Numbers,
    until: Numbers,
    start: int,
    length: int,
    count: int,
) -> RepeatedBody:
    """Return a stretch; `time` is when a step runs, and `until` is when its result is last used."""
    first, steps = len(recording.inputs), slice(start, start + length * count)
    rows = operands[steps].reshape(count, length, 3)
    inputs: dict[bytes, Register] = {}
    takes: list[Numbers] = []
    body: list[ProgramStep] = []
    draws: list[list[int]] = []
    for place in range(length):
        given: list[Any] = []
        for position in range(len(recording.codes(start + place))):
            number, column = int(rows[0, place, position]), rows[:, place, position]
            key = column.tobytes()
            if 0 <= number < first + start and key not in inputs:
                inputs[key] = Register(f"x{len(inputs)}", recording.format(number))
                takes.append(column)
            given.append(body[number - first - start].result if number >= first + start else inputs.get(key))
        body.append(recording.step(start + place, given, f"t{place + 1}", len(draws)))
        if body[-1].draw is not None:
            draws.append(recording.draws[steps][place::length])
    # How many repetitions later a result is last used; a result used after the stretch stays.
    times = time[steps].reshape(count, length)
    lasts = np.minimum(until[steps].reshape(count, length), times[-1, -1] + 1) - times
    wanted = [place for place in range(length) if (lasts[:, place] > 0).any()]
    made = first + start + np.arange(count * length).reshape(count, length)
    return RepeatedBody(
        start=start,
        body=Program(
            *(recording.name, tuple(inputs.values()), recording.named, tuple(body)),
            tuple(body[place].result for place in wanted),
            (len(draws),) if draws else (),
        ),
        takes=np.stack(takes, axis=1) if takes else np.empty((count, 0), np.int64),
        makes=made[:, wanted],
        draws=np.array(draws, np.int64).reshape(-1, count).T,
        lasting=tuple(min(count, int(lasts[:, place].max()) + 1) for place in wanted),
    )


# -- compiled loops over repetitions ----------------------------------------------------------------------
Array = NDArray[Any]
#: Performs a step, whose operands are blocks and real scalars, given the index of their first element.
CarryOut = Callable[[ProgramStep, int], Any]

#: The most elements of a block; its size is a multiple of the second; the most bytes of its rows together.
_WIDEST, _NARROWEST, _BYTES = 1024, 64, 1 << 22
#: How many random words are drawn together.
_WORDS = 1 << 15


def trusted(part: RepeatedBody, rolled: Rolled) -> frozenset[int]:
    """Return the places of a body's inputs that are seldom operands of the algorithm itself."""
    operands = part.takes < len(rolled.recording.inputs)
    return frozenset(np.flatnonzero(2 * operands.sum(axis=0) <= len(operands)).tolist())


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
        if threads == 1:
            return self.work(starts)
        with ThreadPoolExecutor(threads) as pool:
            return all(list(pool.map(self.work, [starts[first::threads] for first in range(threads)])))

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
