"""Recording of a function for its analysis: each operation with the expressions that asked for it."""

from __future__ import annotations

import itertools
import linecache
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from types import CodeType, MappingProxyType
from typing import Any, NoReturn

from mcfsim.analysis.samplers import innermost, name_of
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.checks import hint
from mcfsim.compile.program import Program
from mcfsim.compile.tracing import BETWEEN, ProgramRecording, TraceArithmetic, Traced, record
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.real_numbers import as_float, described, exact_or_binary64, to_fraction
from mcfsim.multiword.components import expand
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Rounding

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


@dataclass(frozen=True)
class Expression:
    """An expression in a source file.

    Attributes
    ----------
    file : str
        Path of the file.
    function : str
        Name of the function that contains it.
    line, last_line : int
        Its first and last line, counted from 1.
    start, stop : int
        Its columns, in bytes of the first and the last line.
    text : str
        The expression in one line.
    """

    file: str
    function: str
    line: int
    last_line: int
    start: int
    stop: int
    text: str

    @property
    def where(self) -> str:
        """The file's name and the line."""
        return f"{Path(self.file).name}:{self.line}"

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class Origin(tuple[Expression, ...]):
    """The expressions that led to an operation: the user's own, and those within what it calls."""

    __slots__ = ()

    @property
    def row(self) -> Expression:
        """The expression that an analysis names."""
        return self[0]

    @property
    def detail(self) -> Expression:
        """The expression that asks the arithmetic for the operation."""
        return self[-1]

    def __str__(self) -> str:
        return str(self[0])


class Component(Fraction):
    """A component of a real number that a function expands; its own value is that in exact arithmetic.

    In exact arithmetic the first component is the whole number, and the others are zero.
    """

    number: Fraction
    place: int
    count: int

    @classmethod
    def of(cls, number: Any, place: int, count: int) -> Component:
        """Return the component at one of `count` places of a number's expansion."""
        whole = to_fraction(number)
        assert whole is not None
        found = cls(0 if place else whole)
        found.number, found.place, found.count = whole, place, count
        return found

    def rounded(self, fmt: Format) -> Any:
        """Return its value in a format."""
        ar: Arithmetic = BlockArithmetic(fmt, Rounding(), "exact")
        return expand(ar, self.number, self.count)[self.place]

    def error(self, fmt: Format) -> Fraction:
        """Return its value in a format, minus its value in exact arithmetic."""
        return (to_fraction(self.rounded(fmt)) or 0) - Fraction(self)


class _Recorder(TraceArithmetic):
    """An arithmetic that records each `Component` as an operation, whose error is that of the constant."""

    def expanded(self, number: Any, parts: tuple[float, ...]) -> tuple[Any, ...]:
        """Return the components that `mcfsim.expand` makes of a real number, as values."""
        nearest = self.like(self.format, Rounding())
        return tuple(nearest.round(Component.of(number, k, len(parts))) for k in range(len(parts)))


class _Recording(ProgramRecording):
    """A recording that keeps an `Origin` for each operation."""

    own_file = ""
    numbers_draw = True

    def scalar(self, x: Any) -> int:
        """Return the operand code of a real scalar; components are never merged.

        Raises
        ------
        ValueError
            If it becomes infinity or zero in binary64, in which values and errors are compared.
        """
        exact = exact_or_binary64(x)
        if isinstance(exact, Fraction) and as_float(exact) in (-math.inf, 0.0, math.inf):
            raise ValueError(
                f"the constant {described(x)} is beyond the range of binary64, in which errors are measured"
            )
        if not isinstance(x, Component):
            return super().scalar(x)
        self.scalars.append(x)
        return -1 - len(self.scalars)

    def place(self) -> Origin:
        """Return the expressions of the current operation, from the user's own code inward."""
        frames = []
        frame = sys._getframe(2)
        while frame is not None and frame.f_code is not record.__code__:
            if frame.f_code.co_filename not in BETWEEN:
                frames.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back  # type: ignore[assignment]
        found = [_expression(code, code.co_filename, place) for code, place in reversed(frames)]
        own = [place for place, x in enumerate(found) if self._is_own(x.file)]
        return Origin(found[own[-1] if own else 0 :])

    @classmethod
    def _is_own(cls, file: str) -> bool:
        """Return whether an expression of a file gets a row of its own: not in code that users only call."""
        return file == cls.own_file or not file.startswith(_PACKAGE)

    @classmethod
    def refuse(cls, problem: Exception) -> NoReturn:
        """Raise TypeError or ValueError that says where the function failed."""
        frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(problem.__traceback__)]
        own = [place for place in frames if place[0] == cls.own_file]
        own = own or [place for place in frames if cls._is_own(place[0])]
        if not own:
            raise problem
        (file, line), text = own[-1], str(problem)
        if isinstance(problem, AttributeError) and isinstance(problem.obj, TraceArithmetic):
            text = f"there is no operation {problem.name}{hint(str(problem.name), vars(Arithmetic))}"
        elif not isinstance(problem, TypeError | ValueError):
            text = f"{type(problem).__name__}: {text}"
        elif Traced.__name__ in text:
            text += "; operands are for the arithmetic alone: ar.add(x, y), and ar.choose for a branch"
        where = f"{Path(file).name}:{line}: {linecache.getline(file, line).strip()}".rstrip(": ")
        kind = TypeError if isinstance(problem, TypeError) else ValueError
        raise kind(f"{where}: {text}") from problem


@lru_cache(maxsize=1 << 14)
def _expression(code: CodeType, file: str, instruction: int) -> Expression:
    """Return the expression of an instruction; codes of the same text are equal, whatever their files."""
    position = next(itertools.islice(code.co_positions(), instruction // 2, None))
    line, last, start, stop = (number or 0 for number in position)
    lines = [linecache.getline(file, number) for number in range(line, last + 1)]
    if len(lines) == 1:
        text = lines[0].encode()[start:stop].decode(errors="replace") or lines[0].strip()
    else:
        text = " ".join(x.strip() for x in lines)
    text = text or f"columns {start} to {stop} of {code.co_name}"  # of a source that is not kept
    return Expression(file, code.co_name, line, last, start, stop, text)


def recorded_function(
    function: Callable[..., Any],
    fmt: Format,
    rounding: Rounding,
    operands: tuple[Any, ...],
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Program:
    """Return a function as a program whose steps have an `Origin` as their text; nothing is merged.

    Parameters
    ----------
    function : callable
        ``function(ar, *operands, **options)``, branch-free.
    fmt, rounding : Format, Rounding
    operands : tuple
        Names, and tuples of names where the function takes tuples.
    options : mapping, optional
        Passed to the function by name.

    Raises
    ------
    TypeError, ValueError
        If the function does anything with its operands other than pass them to the arithmetic.
    """
    code = getattr(innermost(function), "__code__", None)

    class FromHere(_Recording):
        own_file = "" if code is None else code.co_filename

    kinds: Any = {"kind": FromHere, "arithmetic": _Recorder}
    try:
        recording = record(function, fmt, rounding, operands=operands, lines=True, options=options, **kinds)
    except UnsupportedFormatError:
        raise
    except Exception as problem:
        FromHere.refuse(problem)
    recording.name = name_of(function)
    return recording.program(merged=False)
