"""Recording of algorithms: an arithmetic that computes nothing and notes the operations it is asked for."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import Opaque
from mcfsim.compile.program import (
    Draw,
    Program,
    ProgramStep,
    Register,
    Scalar,
    flat,
    identity,
    mapped,
    needed,
)
from mcfsim.compile.scalars import is_result
from mcfsim.formats import Format, get_format
from mcfsim.kernels.blocks import rounds
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.real_numbers import is_scalar, is_value_of
from mcfsim.protocol import Arithmetic, Forwarding
from mcfsim.rounding import Rounding, Underflow, get_rounding

#: Files that only forward operations, so that their lines belong to no algorithm.
BETWEEN = {__file__, sys.modules[Arithmetic.__module__].__file__}


class Kind(NamedTuple):
    """The attributes that steps of one kind share.

    Attributes
    ----------
    operation : str
    format : Format
        The format of the result.
    rounding : Rounding
    source : int or None
        The source of random words, if steps of this kind draw.
    """

    operation: str
    format: Format
    rounding: Rounding
    source: int | None


class Traced(Opaque):
    """A value in an algorithm that is being recorded: its number, and nothing an algorithm could inspect.

    Parameters
    ----------
    recording : ProgramRecording
        The recording to which it belongs.
    number : int
        See `ProgramRecording`.
    fmt : Format
    """

    __slots__ = ("format", "number", "recording")

    def __init__(self, recording: ProgramRecording, number: int, fmt: Format) -> None:
        self.recording, self.number, self.format = recording, number, fmt

    def __repr__(self) -> str:
        inputs = self.recording.inputs
        later = self.number - len(inputs)
        return inputs[self.number].name if later < 0 else f"t{later + 1}"


class ProgramRecording:
    """The operations of an algorithm, stored as numbers: a sum of many terms has a hundred thousand of them.

    Values are numbered: the inputs, and then the results of all steps, in order.

    Attributes
    ----------
    name : str
        The name of the algorithm.
    inputs : tuple of Register
    named : tuple of str
        The names of the real scalars that it takes.
    kinds : list of Kind
    steps : list of int
        The kind of each step, by its number.
    operands : list of int
        Three per step: the number of a value; -1 for none; or ``-2 - n`` for the n-th real scalar.
    scalars : list of Scalar or number
        Each once.
    draws : list of int
        For each step, its number among the operations of its source; -1 if it does not draw.
    drawn : list of int
        How many operations of each source draw.
    alone : set of int
        The numbers of values that depend on real scalars alone.
    lines : list
        For each step what `place` returns, the algorithm's source line, if requested.
    results : Any
        What the algorithm returns: `Traced` values, real scalars, and tuples of them.
    """

    #: Whether operations on real scalars alone may round at random, each element by a word of its own.
    numbers_draw = False

    def __init__(self, inputs: tuple[Register, ...], *, lines: bool) -> None:
        self.name, self.inputs, self.results = "algorithm", inputs, None
        self.named: tuple[str, ...] = ()
        self.kinds: list[Kind] = []
        self.steps: list[int] = []
        self.operands: list[int] = []
        self.scalars: list[Any] = []
        self.draws: list[int] = []
        self.drawn: list[int] = []
        self.alone: set[int] = set()
        self.lines: list[Any] | None = [] if lines else None
        self._kinds: dict[Kind, int] = {}
        self._scalars: dict[Any, int] = {}

    def place(self) -> Any:
        """Return the source line of the algorithm that contains the current operation."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename in BETWEEN:
            frame = frame.f_back
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}: {line}" if line else ""

    def kind(self, kind: Kind) -> int:
        """Return the number of a kind, adding the kind if it is new."""
        number = self._kinds.setdefault(kind, len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append(kind)
        return number

    def scalar(self, x: Any) -> int:
        """Return the operand code of a real scalar, adding the scalar if it is new."""
        number = self._scalars.setdefault(identity(x), len(self.scalars))
        if number == len(self.scalars):
            self.scalars.append(x)
        return -2 - number

    def outputs(self) -> list[Any]:
        """Return the results, with tuples flattened."""
        return list(flat(self.results))

    @cached_property
    def key(self) -> Any:
        """A key that is equal for recordings of the same operations with the same real scalars."""
        return (
            *(tuple(x.format for x in self.inputs), tuple(self.kinds), tuple(self.steps)),
            *(tuple(self.operands), tuple(map(identity, self.scalars)), tuple(self.draws)),
            tuple(x.number for x in self.outputs() if isinstance(x, Traced)),
        )

    def formats(self) -> NDArray[np.int64]:
        """Return a number for the format of each value; equal formats have equal numbers."""
        known: dict[Format, int] = {}
        of_inputs = [known.setdefault(x.format, len(known)) for x in self.inputs]
        of_kinds = [known.setdefault(kind.format, len(known)) for kind in self.kinds]
        return np.array([*of_inputs, *(of_kinds[kind] for kind in self.steps)])

    def format(self, number: int) -> Format:
        """Return the format of a value."""
        if number < len(self.inputs):
            return self.inputs[number].format
        return self.kinds[self.steps[number - len(self.inputs)]].format

    def codes(self, number: int) -> list[int]:
        """Return the operand codes of a step."""
        return [code for code in self.operands[3 * number : 3 * number + 3] if code != -1]

    def step(self, number: int, values: Iterable[Any], name: str, draw: int) -> ProgramStep:
        """Return a recorded step as a `ProgramStep`.

        Parameters
        ----------
        number : int
        values : iterable
            The register of each operand; anything where the operand is a real scalar.
        name : str
            The name of the result.
        draw : int
            Its number among the operations of its source, if it draws.
        """
        kind = self.kinds[self.steps[number]]
        given = zip(self.codes(number), values, strict=True)
        operands = tuple(x if code >= 0 else self.scalars[-2 - code] for code, x in given)
        drawing = None if kind.source is None else Draw(kind.source, draw)
        line = self.lines[number] if self.lines else ""
        return ProgramStep(
            kind.operation, kind.rounding, operands, Register(name, kind.format), line, drawing
        )

    def program(self, *, merged: bool = True) -> Program:
        """Return the program: repeated operations appear once if `merged`, unused ones are left out."""
        values, steps, known = list(self.inputs), list[ProgramStep](), dict[Any, Register]()
        for number, kind in enumerate(self.steps):
            given = [values[code] if code >= 0 else None for code in self.codes(number)]
            step = self.step(number, given, f"t{len(steps) + 1}", self.draws[number])
            key = kind, step.draw, *map(identity, step.operands)
            if not merged or step.draw is not None or key not in known:
                known[key] = step.result
                steps.append(step)
            values.append(known[key])
        results = mapped(lambda x: values[x.number] if isinstance(x, Traced) else x, self.results)
        kept = needed(steps, {x for x in flat(results) if isinstance(x, Register)})
        return Program(self.name, self.inputs, self.named, kept, results, tuple(self.drawn))


class TraceArithmetic(Forwarding):
    """An arithmetic that records the operations of an algorithm. Its values are all `Traced`.

    Parameters
    ----------
    fmt : Format
        The format of the results.
    rounding : Rounding
        How they are rounded. If rounding is stochastic, each arithmetic is a separate source of random
        words: the first is number 0, and those that an algorithm makes by `like` follow.
    recording : ProgramRecording
        Receives the operations.
    """

    def __init__(self, fmt: Format, rounding: Rounding, recording: ProgramRecording) -> None:
        self.format, self.rounding, self.carrier = fmt, rounding, carrier_of(fmt)
        self._recording = recording
        self._kinds: dict[str, int] = {}
        if rounding.stochastic:
            self._source = len(self._recording.drawn)
            self._recording.drawn.append(0)

    def __repr__(self) -> str:
        return f"TraceArithmetic({self.format}, {self.rounding.mode})"

    def like(self, fmt: Format, rounding: Rounding) -> TraceArithmetic:
        """Return an arithmetic of another format and rounding that records into the same program."""
        return type(self)(fmt, rounding, self._recording)

    def round(self, x: Any) -> Any:
        """Record the rounding of a value of any format; a value of this format stays unless flushed."""
        gradual = self.rounding.underflow is Underflow.GRADUAL
        if isinstance(x, Traced) and x.format == self.format and gradual:
            if self.rounding.stochastic:
                self._draw()  # without effect
            return x
        if self.rounding.stochastic and is_scalar(x) and is_value_of(x, self.format):  # at most flushed
            self._draw()  # without effect
            return self.like(self.format, Rounding(underflow=self.rounding.underflow))._operate("round", x)
        return self._operate("round", x)

    def _operate(self, operation: str, *operands: Any) -> Traced:
        # This must be fast: a sum of many terms calls it a hundred thousand times.
        fmt, kept, codes = self.format, self._recording, [-1, -1, -1]
        values = False
        for place, x in enumerate(operands):
            if isinstance(x, Traced):
                values = values or x.number not in kept.alone
                if x.recording is not kept:
                    raise ValueError(f"{operation} of {x}, a value of another recording")
                if x.format is not fmt and x.format != fmt and operation != "round":
                    raise ValueError(
                        f"{operation} in {fmt} of {x}, a value of {x.format}: convert it by round"
                    )
                codes[place] = x.number
            elif is_result(x, fmt):  # a value, and no real scalar
                codes[place] = self.like(fmt, Rounding()).round(float(x)).number
            elif isinstance(x, Scalar) or is_scalar(x):
                codes[place] = kept.scalar(x)
            else:
                raise TypeError(f"{operation} of {x!r}: operands must be values and real scalars alone")
        kind = self._kinds.get(operation)
        if kind is None:
            source = self._source if self.rounding.stochastic and rounds(operation, fmt) else None
            kind = self._kinds[operation] = kept.kind(Kind(operation, fmt, self.rounding, source))
        if not values and self.rounding.stochastic and not kept.numbers_draw:
            raise ValueError(f"{operation} of numbers alone at random: all elements would share one word")
        draw = self._draw() if kept.kinds[kind].source is not None else -1
        result = Traced(kept, len(kept.inputs) + len(kept.steps), fmt)
        if not values:
            kept.alone.add(result.number)
        kept.steps.append(kind)
        kept.operands += codes
        kept.draws.append(draw)
        if kept.lines is not None:
            kept.lines.append(kept.place())
        return result

    def _draw(self) -> int:
        drawn = self._recording.drawn
        drawn[self._source] += 1
        return drawn[self._source] - 1


def trace(
    function: Callable[..., Any],
    fmt: Format | str,
    rounding: Rounding | str = "nearest_even",
    *,
    operands: tuple[Any, ...] | None = None,
    lines: bool = True,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Program:
    """Record a branch-free algorithm as a program.

    Parameters
    ----------
    function : callable
        ``function(ar, *operands, **options)``, like `mcfsim.two_sum`.
    fmt : Format or str
        The format of operands and operations, unless the algorithm asks for another by ``ar.like``.
    rounding : Rounding or str, optional
        The rounding of the operations.
    operands : tuple, optional
        What the algorithm takes: names or registers, in tuples where it takes tuples; `Scalar` objects and
        Python numbers are real scalars. By default the names of its parameters, each a value.
    lines : bool, optional
        Whether to note the algorithm's source line for each operation, which takes time.
    options : mapping, optional
        Passed to the algorithm by name, unchanged.

    Returns
    -------
    Program

    Raises
    ------
    TypeError, ValueError
        If the algorithm does anything with its operands but pass them to the arithmetic.

    Examples
    --------
    >>> from mcfsim import two_sum
    >>> program = trace(two_sum, "bfloat16")
    >>> len(program.steps), program.depth(), program.registers()
    (6, 5, 5)
    """
    return record(function, fmt, rounding, operands=operands, lines=lines, options=options).program()


def record(
    function: Callable[..., Any],
    fmt: Format | str,
    rounding: Rounding | str = "nearest_even",
    *,
    operands: tuple[Any, ...] | None = None,
    lines: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
    kind: type[ProgramRecording] = ProgramRecording,
    arithmetic: type[TraceArithmetic] = TraceArithmetic,
) -> ProgramRecording:
    """Record a branch-free algorithm unchanged, in a recording of class `kind`; for the rest see `trace`."""
    fmt = get_format(fmt)
    if operands is None:
        placed = [x for x in signature(function).parameters.values() if x.kind <= x.POSITIONAL_OR_KEYWORD]
        operands = tuple(x.name for x in placed[1:] if x.name not in options)
    entered = _entered(operands, fmt)
    leaves = list(flat(entered))
    inputs = tuple(x for x in leaves if isinstance(x, Register))
    recording = kind(inputs, lines=lines)
    places = iter(range(len(inputs)))
    given = mapped(
        lambda x: Traced(recording, next(places), x.format) if isinstance(x, Register) else x, entered
    )
    recording.results = function(arithmetic(fmt, get_rounding(rounding), recording), *given, **options)
    recording.name = getattr(function, "__name__", "algorithm")
    if len({x.name for x in inputs}) < len(inputs):
        raise ValueError(f"operands must have distinct names, not {', '.join(x.name for x in inputs)}")
    recording.named = tuple(dict.fromkeys(x.name for x in leaves if isinstance(x, Scalar)))
    for result in recording.outputs():
        own = isinstance(result, Traced) and result.recording is recording
        if not (own or isinstance(result, Scalar) or is_scalar(result)):
            raise TypeError(f"the algorithm returns {result!r}, which is no value of the arithmetic")
    return recording


def _entered(operands: Any, fmt: Format) -> Any:
    if isinstance(operands, tuple):
        return tuple(_entered(item, fmt) for item in operands)
    if isinstance(operands, str):
        return Register(operands, fmt)
    return operands
