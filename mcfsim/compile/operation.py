"""One operation as a line, carried out on blocks by NumPy: what an arithmetic does that is not compiled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.lowering import Lowered, lower
from mcfsim.compile.program import Draw, Program, ProgramStep, Register, Scalar
from mcfsim.compile.scalars import Entering, entering, uses
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.dispatch import rounds
from mcfsim.kernels.element.calls import Calls
from mcfsim.kernels.operation_plan import Way, plan, refusal
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import Words, word_bits
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import scratch

Block = NDArray[Any]

#: Bytes of the result that are worked on at once: what lies between fits into the second cache with them.
_AT_ONCE = 1 << 18
#: Elements from which on a stand-in saves more time than is spent on finding it.
_WORTH_A_SEARCH = 1 << 12
#: Real scalars that are kept with what they enter as.
_KEPT = 256


class _Bound(NamedTuple):
    """A line with its real scalars put in."""

    calls: Calls
    numbers: tuple[Block, ...]


class Operation:
    """An operation of a format on blocks of values and real scalars.

    Parameters
    ----------
    name : str
        Of the operation, as in `mcfsim.protocol.Arithmetic`.
    fmt, rounding
        Of the result; of the operands that are values, too.
    policy : {"exact", "rounded"}
        How real scalars enter.
    scalars : tuple of bool
        Which operands are real scalars.

    Attributes
    ----------
    draws : bool
        Whether it takes random words.
    plain : _Bound or None
        The line, if there are no real scalars.
    """

    def __init__(
        self, name: str, fmt: Format, rounding: Rounding, policy: Scalars, scalars: tuple[bool, ...]
    ) -> None:
        self._name, self._format, self._rounding, self._policy = name, fmt, rounding, policy
        self.draws = rounding.stochastic and rounds(name, fmt)
        operands = [Scalar(f"s{n}") if s else Register(f"x{n}", fmt) for n, s in enumerate(scalars)]
        draw = Draw(0, 0) if self.draws else None
        step = ProgramStep(name, rounding, tuple(operands), Register("y", fmt), draw=draw)
        inputs = tuple(x for x in operands if isinstance(x, Register))
        names = tuple(x.name for x in operands if isinstance(x, Scalar))
        self._program = Program(name, inputs, names, (step,), step.result, (1,) if self.draws else ())
        self._uses = uses(self._program)
        self._carrier, self._word_bits = carrier_of(fmt), word_bits(rounding.random_bits)
        self._lines: dict[tuple[Entering, ...], tuple[Lowered, Calls]] = {}
        self._kept: dict[Any, _Bound | None] = {}
        self.plain = None if any(scalars) else self._bind((), ())

    def __reduce__(self) -> tuple[Any, ...]:
        scalars = tuple(not isinstance(x, Register) for x in self._program.steps[0].operands)
        return operation, (self._name, self._format, self._rounding, self._policy, scalars)

    def bound(self, numbers: Sequence[Any], size: int) -> _Bound | None:
        """Return the line with its real scalars; None if one of them is beyond what binary64 takes exactly.

        Parameters
        ----------
        numbers : sequence of number
            The real scalars, in order.
        size : int
            How many elements there will be.

        Raises
        ------
        UnsupportedFormatError
            If the operation has no exact path.
        """
        search = size >= _WORTH_A_SEARCH
        # Zeros of either sign are equal, and numbers of other types may be equal and differ.
        key = (search, *numbers) if all(isinstance(x, float) and x for x in numbers) else None
        if key is not None and key in self._kept:
            return self._kept[key]
        found = self._entered(numbers, search)
        if key is not None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found

    def _entered(self, numbers: Sequence[Any], search: bool) -> _Bound | None:
        ways: list[Entering] = []
        stand: list[float] = []
        for use, number in zip(self._uses, numbers, strict=True):
            try:
                way, parts = entering(use, number, self._policy, search=search)
            except UnsupportedFormatError:
                chosen, why = plan(self._format, self._rounding, self._carrier).reals[self._name]
                if chosen is Way.REFUSED:
                    raise refusal(self._name, self._format, self._rounding, why) from None
                return None
            ways.append(way)
            stand += parts
        return self._bind(tuple(ways), stand)

    def _bind(self, ways: tuple[Entering, ...], numbers: Sequence[float]) -> _Bound:
        if ways not in self._lines:
            lowered = lower(self._program, ways, clean=False, narrows=False)
            given = (*lowered.operands, *lowered.words, *lowered.numbers)
            self._lines[ways] = lowered, Calls(lowered.results, given, lowered.numbers)
        lowered, calls = self._lines[ways]
        typed = zip(lowered.numbers, numbers, strict=True)
        return _Bound(calls, tuple(np.array(number, lowered.dtype(x)) for x, number in typed))

    def __call__(self, bound: _Bound, blocks: Sequence[Block], size: int, words: Words | None) -> Block:
        """Return the result on contiguous blocks of the carrier.

        Parameters
        ----------
        bound : _Bound
            See `bound`.
        blocks : sequence of array
            The operands that are no real scalars.
        size : int
            Their elements; where there are real scalars alone, 1.
        words : array of unsigned integers or None
            A random word an element, if it draws, of which the highest bits count.
        """
        for x in blocks:
            if x.dtype is not self._carrier and x.dtype != self._carrier:
                raise ValueError(
                    f"{self._name} in {self._format} of {x.dtype}: round brings values of other formats over"
                )
        out = np.empty(size, self._carrier)
        given = blocks
        if words is not None:
            drawn = scratch("words", size, np.int64)
            longer = 8 * words.itemsize - self._word_bits
            np.copyto(drawn, words >> words.dtype.type(longer) if longer else words)
            given = [*blocks, drawn]
        at_once = _AT_ONCE // self._carrier.itemsize
        if size <= at_once or len(bound.calls) == 1:
            bound.calls([*given, *bound.numbers] if bound.numbers else given, [out])
            return out
        for start in range(0, size, at_once):
            part = slice(start, start + at_once)
            bound.calls([*(x[part] for x in given), *bound.numbers], [out[part]])
        return out


@lru_cache(maxsize=1024)
def operation(
    name: str, fmt: Format, rounding: Rounding, policy: Scalars, scalars: tuple[bool, ...]
) -> Operation:
    """Return an operation, made once; see `Operation`."""
    return Operation(name, fmt, rounding, policy, scalars)
