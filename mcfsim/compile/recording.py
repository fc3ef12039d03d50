"""Recording of a text: an arithmetic whose values are names, and which carries nothing out."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mcfsim.compile.program import Draw, Program, Register, Scalar, Step, flat, identity, needed
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.kernels.real_numbers import is_scalar
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Rounding, get_rounding

#: Files whose lines are no text: what hands operations on.
_BETWEEN = {__file__, sys.modules[Arithmetic.__module__].__file__}


@dataclass
class _Recording:
    """What is recorded so far, by all the arithmetics of a text."""

    lines: bool
    steps: list[Step] = field(default_factory=list)
    known: dict[Any, Register] = field(default_factory=dict)
    drawn: list[int] = field(default_factory=list)


class TraceArithmetic:
    """An arithmetic that records what a text asks for. Its values are registers and nothing else.

    Parameters
    ----------
    fmt : Format
        Of the results.
    rounding : Rounding
        How they are rounded. Where that is stochastic, each arithmetic is a source of random words of its
        own: the first is number 0, and those that a text makes by `like` follow.
    """

    def __init__(self, fmt: Format, rounding: Rounding, recording: _Recording | None = None) -> None:
        self.format, self.rounding, self.carrier = fmt, rounding, carrier_of(fmt)
        self._recording = _Recording(lines=True) if recording is None else recording
        if rounding.stochastic:
            self._source = len(self._recording.drawn)
            self._recording.drawn.append(0)

    def __repr__(self) -> str:
        return f"TraceArithmetic({self.format}, {self.rounding.mode})"

    def like(self, fmt: Format, rounding: Rounding) -> TraceArithmetic:
        """Return the arithmetic of another format and rounding that records in the same program."""
        return TraceArithmetic(fmt, rounding, self._recording)

    def on_block(self, step: int, start: int) -> TraceArithmetic:
        """Return itself: elements of a block are as any."""
        return self

    def add(self, a: Any, b: Any) -> Any:
        """Record ``a + b``."""
        return self._record("add", a, b)

    def sub(self, a: Any, b: Any) -> Any:
        """Record ``a - b``."""
        return self._record("sub", a, b)

    def mul(self, a: Any, b: Any) -> Any:
        """Record ``a * b``."""
        return self._record("mul", a, b)

    def div(self, a: Any, b: Any) -> Any:
        """Record ``a / b``."""
        return self._record("div", a, b)

    def sqrt(self, a: Any) -> Any:
        """Record the square root."""
        return self._record("sqrt", a)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Record ``a * b + c``."""
        return self._record("fma", a, b, c)

    def neg(self, a: Any) -> Any:
        """Record ``-a``."""
        return self._record("neg", a)

    def abs(self, a: Any) -> Any:
        """Record ``|a|``."""
        return self._record("abs", a)

    def sign(self, a: Any) -> Any:
        """Record the sign of `a`."""
        return self._record("sign", a)

    def round(self, x: Any) -> Any:
        """Record the rounding of a value of any format; one of this format is returned as it is."""
        if isinstance(x, Register) and x.format == self.format:
            if self.rounding.stochastic:
                self._draw()  # without effect
            return x
        return self._record("round", x)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``."""
        return function(self, *operands, **options)

    def _record(self, operation: str, *operands: Any) -> Register:
        for x in operands:
            if not isinstance(x, Register | Scalar) and not is_scalar(x):
                raise TypeError(f"{operation} of {x!r}: a text's operands are values and real scalars alone")
            if isinstance(x, Register) and x.format != self.format and operation != "round":
                raise ValueError(
                    f"{operation} in {self.format} of {x}, a value of {x.format}: round brings it over"
                )
        kept, draw = self._recording, None
        if self.rounding.stochastic and self._rounds(operation):
            if not any(isinstance(x, Register) for x in operands):
                raise ValueError(f"{operation} of numbers alone at random: one word would have to do for all")
            draw = self._draw()
        key = operation, self.format, self.rounding, tuple(map(identity, operands)), draw
        if key not in kept.known:
            result = Register(f"t{len(kept.steps) + 1}", self.format)
            line = _line_of_text() if kept.lines else ""
            kept.steps.append(Step(operation, self.rounding, operands, result, line, draw))
            kept.known[key] = result
        return kept.known[key]

    def _draw(self) -> Draw:
        drawn = self._recording.drawn
        drawn[self._source] += 1
        return Draw(self._source, drawn[self._source] - 1)

    def _rounds(self, operation: str) -> bool:
        """Return whether an operation rounds, as those on signs do only where they leave the format."""
        fmt = self.format
        if operation in ("neg", "abs"):
            return fmt.lowest != -fmt.max and (fmt.signed or operation == "neg")
        if operation == "sign":
            units = np.array([1.0, -1.0 if fmt.signed else 1.0], self.carrier)
            return not get_kernel(fmt, Rounding(), self.carrier).keeps(units)
        return True


def _line_of_text() -> str:
    """Return the line of the text that asks for an operation."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}: {line}" if line else ""


def trace(
    function: Callable[..., Any],
    fmt: Format | str,
    rounding: Rounding | str = "nearest_even",
    *,
    operands: tuple[Any, ...] | None = None,
    lines: bool = True,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Program:
    """Record a branch-free text as a program.

    Parameters
    ----------
    function : callable
        ``function(ar, *operands, **options)``, as `mcfsim.two_sum`.
    fmt : Format or str
        Of the operands and of the operations, unless the text asks for others by ``ar.like``.
    rounding : Rounding or str, optional
        Of the operations.
    operands : tuple, optional
        What the text takes: names or registers, nested in tuples where it takes tuples; `Scalar` objects and
        Python numbers are real scalars. By default the names of its parameters, each a value.
    lines : bool, optional
        Whether to note the line of the text that asks for an operation, which takes its time.
    options : mapping, optional
        Handed to the text by name, as they are.

    Returns
    -------
    Program

    Raises
    ------
    TypeError, ValueError
        If the text does something else with its operands than hand them to the arithmetic.

    Examples
    --------
    >>> from mcfsim import two_sum
    >>> program = trace(two_sum, "bfloat16")
    >>> len(program.steps), program.depth(), program.registers()
    (6, 5, 5)
    """
    ar = TraceArithmetic(get_format(fmt), get_rounding(rounding), _Recording(lines))
    text = getattr(function, "__wrapped__", function)
    if operands is None:
        names = text.__code__.co_varnames[1 : text.__code__.co_argcount]
        operands = tuple(name for name in names if name not in options)
    entered = _entered(operands, ar.format)
    results = function(ar, *entered, **options)
    leaves = list(flat(entered))
    inputs = tuple(x for x in leaves if isinstance(x, Register))
    if len({x.name for x in inputs}) < len(inputs):
        raise ValueError(f"operands must have names of their own: {', '.join(x.name for x in inputs)}")
    scalars = tuple(dict.fromkeys(x.name for x in leaves if isinstance(x, Scalar)))
    for result in flat(results):
        if not isinstance(result, Register | Scalar) and not is_scalar(result):
            raise TypeError(f"the text returns {result!r}, which is no value of the arithmetic")
    steps = needed(ar._recording.steps, {x for x in flat(results) if isinstance(x, Register)})
    drawn = tuple(ar._recording.drawn)
    return Program(getattr(text, "__name__", "text"), inputs, scalars, steps, results, drawn)


def _entered(operands: Any, fmt: Format) -> Any:
    if isinstance(operands, tuple):
        return tuple(_entered(item, fmt) for item in operands)
    if isinstance(operands, str):
        return Register(operands, fmt)
    return operands
