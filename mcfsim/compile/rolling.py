"""Long algorithms rolled up: bodies of operations that repeat, or pieces of what does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.program import Program, ProgramStep, Register
from mcfsim.compile.tracing import ProgramRecording, Traced

Numbers = NDArray[np.int64]

#: The longest body, the fewest repetitions, and how many steps may stand alone.
_LONGEST, _FEWEST, _ALONE = 64, 8, 256
#: The fewest operands and steps of an algorithm that is rolled up, and by what factor that must shorten it.
MANY, _LONG, _SHORTER = 32, 48, 4
#: The most steps of an algorithm that is one loop, and of a piece of a longer one that does not repeat.
#: Memory and time of compiling grow by up to .5 MB and 80 ms a step, and all of a loop's is held at once.
_WHOLE, _PIECE = 256, 32
#: Added to operand codes that stand for no value, to distinguish them from relative operand numbers.
_AFAR = -(1 << 48)


@dataclass(frozen=True)
class RepeatedBody:
    """A stretch of a recording in which one body repeats, or a piece that is such a body once.

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
    trusted : frozenset of int
        The places of inputs that are seldom operands of the algorithm itself.
    """

    start: int
    body: Program
    takes: Numbers
    makes: Numbers
    draws: Numbers
    lasting: tuple[int, ...]
    trusted: frozenset[int]


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


def is_long(recording: ProgramRecording) -> bool:
    """Return whether a recording may be worth rolling up, or is to be cut into pieces, and returns values."""
    outputs = recording.outputs()
    least = _LONG if len(recording.inputs) >= MANY else _WHOLE + 1
    return len(recording.steps) >= least and bool(outputs) and all(isinstance(x, Traced) for x in outputs)


def roll(recording: ProgramRecording) -> Rolled | None:
    """Roll up a long recording, or cut it into pieces if that does not shorten it much.

    The result is None if it is neither long nor shortened, or if a result is no value.
    """
    if not is_long(recording):
        return None
    outputs = recording.outputs()
    first = len(recording.inputs)
    operands = np.array(recording.operands).reshape(-1, 3)
    # Only `round` takes values of other formats.
    kinds, formats = np.array(recording.steps), recording.formats()
    rounds = np.array([kind.operation == "round" for kind in recording.kinds])[kinds] & (operands[:, 0] >= 0)
    kinds = kinds * (formats.max() + 1) + np.where(rounds, formats[operands[:, 0]], 0)
    stretches = _stretches(kinds, np.where(operands < 0, _AFAR + operands, operands - first))
    if sum(period for _, period, _ in stretches) * _SHORTER > kinds.size:
        if len(recording.steps) <= _WHOLE:
            return None
        stretches = _pieces(stretches)
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
        if count == period == 1:
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
            return [(step, 1, 1) for step in range(kinds.size)]
        found.append((start, period, count))
        start += period * count
    return found


def _pieces(stretches: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return stretches with single steps that follow one another as pieces."""
    found: list[tuple[int, int, int]] = []
    for start, period, count in stretches:
        if count == 1 and found and found[-1][1] < _PIECE and found[-1][2] == 1:
            found[-1] = found[-1][0], found[-1][1] + 1, 1
        else:
            found.append((start, period, count))
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
    taken = np.stack(takes, axis=1) if takes else np.empty((count, 0), np.int64)
    seldom = 2 * (taken < first).sum(axis=0) <= count
    return RepeatedBody(
        start=start,
        body=Program(
            *(recording.name, tuple(inputs.values()), recording.named, tuple(body)),
            tuple(body[place].result for place in wanted),
            (len(draws),) if draws else (),
        ),
        takes=taken,
        makes=made[:, wanted],
        draws=np.array(draws, np.int64).reshape(-1, count).T,
        lasting=tuple(min(count, int(lasts[:, place].max()) + 1) for place in wanted),
        trusted=frozenset(np.flatnonzero(seldom).tolist()),
    )
