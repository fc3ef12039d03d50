"""Long texts rolled up: a body of operations that repeats, and where each repetition finds its operands.

What repeats are operations, their formats and roundings, and how they depend on one another within one
repetition. Where the other operands come from is a table, read off the recording as it is. So what is rolled
up does what the text does, whatever its wiring: nothing is concluded from a part of it about the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.program import Program, ProgramStep, Register
from mcfsim.compile.tracing import ProgramRecording, Traced

Numbers = NDArray[np.int64]

#: The longest body, the fewest repetitions, and how many steps may stand alone.
_LONGEST, _FEWEST, _ALONE = 64, 8, 256
#: A text is rolled up if it has so many steps, and bodies and single steps are so many times fewer.
_LONG, _SHORTER = 48, 4
#: Added to what stands for no value, to tell it from operands counted from elsewhere.
_AFAR = -(1 << 48)


@dataclass(frozen=True)
class RepeatedBody:
    """A stretch of a recording that repeats.

    Attributes
    ----------
    start : int
        The number of its first step.
    body : Program
        One repetition. Its inputs come from elsewhere, its results are wanted elsewhere. Its draws are
        numbered from 0, in order.
    takes, makes : array of int, one row a repetition
        The numbers of the body's inputs and results.
    draws : array of int, one row a repetition
        Which of the recorded operations draw.
    lasting : tuple of int
        For each result after how many repetitions another one may take its place.
    """

    start: int
    body: Program
    takes: Numbers
    makes: Numbers
    draws: Numbers
    lasting: tuple[int, ...]


@dataclass(frozen=True)
class Rolled:
    """A recording as stretches that repeat and single steps.

    Attributes
    ----------
    recording : Recording
    parts : tuple of Repeated or int
        In order; a single step is given by its number.
    operands : array of int, three a step
        What stands for the steps' operands, see `ProgramRecording`.
    results : tuple of int
        The numbers of what the text returns.
    """

    recording: ProgramRecording
    parts: tuple[RepeatedBody | int, ...]
    operands: Numbers
    results: tuple[int, ...]

    def repeated(self) -> list[RepeatedBody]:
        """Return the stretches that repeat."""
        return [part for part in self.parts if isinstance(part, RepeatedBody)]


def roll(recording: ProgramRecording) -> Rolled | None:
    """Return a recording rolled up, or None if that does not make it much shorter, or it returns a number."""
    outputs = recording.outputs()
    if len(recording.steps) < _LONG or not outputs or not all(isinstance(x, Traced) for x in outputs):
        return None
    first = len(recording.inputs)
    operands = np.array(recording.operands).reshape(-1, 3)
    # Only a rounding takes values of other formats.
    kinds, formats = np.array(recording.steps), recording.formats()
    rounds = np.array([kind.operation == "round" for kind in recording.kinds])[kinds] & (operands[:, 0] >= 0)
    kinds = kinds * (formats.max() + 1) + np.where(rounds, formats[operands[:, 0]], 0)
    stretches = _stretches(kinds, np.where(operands < 0, _AFAR + operands, operands - first))
    if sum(period for _, period, _ in stretches) * _SHORTER > kinds.size:
        return None
    # When each step is carried out: repetitions and single steps, counted.
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
    """Return start, period and count of all stretches, in order; one of all steps if too many stand alone.

    Operands are counted from the first step's result.
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
    """Return period and count of the longest stretch that begins with a step; 1 and 1 if none does."""
    period = count = 1
    for length in range(1, min(_LONGEST, (kinds.size - start) // _FEWEST) + 1):
        stop = start + _FEWEST * length
        # Most are found out by a few repetitions.
        if _count(kinds[start:stop], operands[start:stop], start, length) < _FEWEST:
            continue
        repeats = _count(kinds[start:], operands[start:], start, length, least=period * count)
        if repeats * length > period * count:
            period, count = length, repeats
    return period, count


def _count(kinds: Numbers, operands: Numbers, start: int, length: int, *, least: int = 0) -> int:
    """Return how often the first steps repeat; 0 if they are known to cover `least` steps at most."""
    if (kinds[0] != kinds[length]) or (kinds[:length] != kinds[length : 2 * length]).any():
        return 1
    other = kinds[:-length] != kinds[length:]
    count = (int(other.argmax()) if other.any() else other.size) // length + 1
    if count * length <= least:
        return 0
    # Within a repetition the place of an operand counts; that of one from before is -1.
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
    """Return a stretch; `time` is when a step is carried out, `until` when its result is last wanted."""
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
    # To another repetition after it, if at all; what is wanted after all of them stays.
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
