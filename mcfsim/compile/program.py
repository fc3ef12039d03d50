"""A program: the straight line of operations that a text carries out, over named formats.

It is what a text asks of an arithmetic, and nothing is changed of it: neither order nor association.
Operations asked for twice are there once, and those that no result needs are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from mcfsim.checks.opaque import Opaque
from mcfsim.formats import Format
from mcfsim.kernels.real_numbers import exact_or_binary64
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Rounding


@dataclass(eq=False, slots=True)  # not frozen, for it takes three times as long to make one that is
class Register:
    """A value of a format: an operand of the text, or the result of an operation."""

    name: str
    format: Format

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Scalar(Opaque):
    """A real scalar that is known when the program runs; it enters an operation by the scalar policy.

    A text may ask for its negative, and whether it takes part, which it does.
    """

    name: str
    negative: bool = False

    def __neg__(self) -> Scalar:
        return Scalar(self.name, not self.negative)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"-{self.name}" if self.negative else self.name


#: What an operation takes: a value, a real scalar, or a Python number that the text itself has.
Operand = Any


class Draw(NamedTuple):
    """Which random words an operation takes: those of a source's n-th operation.

    Attributes
    ----------
    source : int
        The arithmetics of a text that draw have a source each.
    operation : int
        Counted from 0 by all that the arithmetic does at random, needed or not.
    """

    source: int
    operation: int


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """An operation, rounded once.

    Attributes
    ----------
    operation : str
        A name of `mcfsim.protocol.Arithmetic`.
    rounding : Rounding
        How the result is rounded; its format is that of `result`.
    operands : tuple of Register, Scalar or number
    result : Register
    text : str
        The line of the text that asks for it, if it is known.
    draw : Draw, optional
        Where it finds its random words, if it rounds stochastically.
    """

    operation: str
    rounding: Rounding
    operands: tuple[Operand, ...]
    result: Register
    text: str = ""
    draw: Draw | None = None

    def __str__(self) -> str:
        return self.written()

    @property
    def registers(self) -> list[Register]:
        """The values among its operands."""
        return [x for x in self.operands if isinstance(x, Register)]

    def written(self, operands: Iterable[str] | None = None, word: str = "") -> str:
        """Return the operation as a line, its operands by other names if some are given.

        A random word comes last, after a semicolon.
        """
        if operands is None:
            operands = (str(x) if isinstance(x, Register | Scalar) else f"{x:g}" for x in self.operands)
        return f"{self.result} = {self.operation}({', '.join(operands)}{_after(word)})"


@dataclass(frozen=True)
class Program:
    """A straight line of operations.

    Attributes
    ----------
    name : str
        Of the text.
    inputs : tuple of Register
        The text's operands, tuples taken apart.
    scalars : tuple of str
        Names of the real scalars that it takes.
    steps : tuple of Step
        In the order in which the text asks for them.
    results : tuple
        What the text returns, tuples nested in it as they are.
    drawn : tuple of int
        How many operations of each source draw random words, needed or not.
    """

    name: str
    inputs: tuple[Register, ...]
    scalars: tuple[str, ...]
    steps: tuple[ProgramStep, ...]
    results: Any
    drawn: tuple[int, ...] = ()

    def outputs(self) -> list[Operand]:
        """Return the results, tuples taken apart."""
        return list(flat(self.results))

    @cached_property
    def words(self) -> Mapping[Draw | None, str]:
        """What the random words of the steps that draw are called, in order."""
        draws = [step.draw for step in self.steps if step.draw is not None]
        return {draw: f"word{place}" for place, draw in enumerate(draws)}

    @cached_property
    def key(self) -> Any:
        """What programs have in common that differ in the numbers of real scalars alone."""
        places = {x: place for place, x in enumerate(self.inputs)}
        rows = []
        for step in self.steps:
            operands = tuple(places[x] if isinstance(x, Register) else -1 for x in step.operands)
            rows.append((step.operation, step.result.format, step.rounding, operands, step.draw))
            places[step.result] = len(places)
        results = tuple(places[x] if isinstance(x, Register) else -1 for x in self.outputs())
        return tuple(x.format for x in self.inputs), tuple(rows), results

    def count(self) -> Counter[tuple[str, str]]:
        """Return how many operations of each kind there are, in each format."""
        return Counter((step.operation, str(step.result.format)) for step in self.steps)

    def depth(self) -> int:
        """Return how many operations follow one another on the longest way to a result."""
        deep: dict[Register, int] = {}
        for step in self.steps:
            deep[step.result] = 1 + max((deep.get(x, 0) for x in step.registers), default=0)
        return max((deep.get(x, 0) for x in self.outputs() if isinstance(x, Register)), default=0)

    def registers(self) -> int:
        """Return how many values are wanted at once, at the most; a result may take an operand's place."""
        last = {x: number for number, step in enumerate(self.steps) for x in step.registers}
        last |= {x: len(self.steps) for x in self.outputs() if isinstance(x, Register)}
        alive = {x for x in self.inputs if x in last}
        most = len(alive)
        for number, step in enumerate(self.steps):
            alive = {x for x in alive if last.get(x, -1) > number} | {step.result}
            most = max(most, len(alive))
        return most

    def pseudocode(self) -> str:
        """Return the steps, a line each, with formats where these change, and the text's own lines beside."""
        words = list(self.words.values())
        drawn = _after(" ... ".join(dict.fromkeys([*words[:1], *words[-1:]])))
        head = f"{self.name}({', '.join([*map(str, self.inputs), *self.scalars])}{drawn}):"
        rows, place = [], None
        for step in self.steps:
            here = str(step.result.format), str(step.rounding.mode)
            if here != place:
                rows.append(("    # " + ", ".join(here), ""))
                place = here
            rows.append((f"    {step.written(word=self.words.get(step.draw, ''))}", step.text))
        width = max((len(left) for left, _ in rows), default=0)
        body = [f"{left:<{width}}  # {right}" if right else left for left, right in rows]
        return "\n".join([head, *body, f"    return {_shown(self.results)}"])

    def run(
        self, arithmetic: Callable[[Format, Rounding], Arithmetic], *operands: Any, **scalars: Any
    ) -> Any:
        """Carry the program out on any arithmetic.

        Parameters
        ----------
        arithmetic : callable
            Takes a format and a rounding, and returns the arithmetic.
        *operands : value or (nested) tuple of values
            As the text takes them.
        **scalars : number
            The real scalars, by name.

        Raises
        ------
        TypeError
            If there are more or fewer operands or scalars than the program takes.
        """
        given = list(flat(operands))
        if len(given) != len(self.inputs):
            raise TypeError(f"{self.name} takes {len(self.inputs)} operands, not {len(given)}")
        if set(scalars) != set(self.scalars):
            wanted = ", ".join(self.scalars) or "none"
            raise TypeError(f"{self.name} takes the scalars {wanted}, not {', '.join(scalars) or 'none'}")
        known: dict[Register, Any] = dict(zip(self.inputs, given, strict=True))

        def number(x: Operand) -> Any:
            if isinstance(x, Scalar):
                return -scalars[x.name] if x.negative else scalars[x.name]
            return known[x] if isinstance(x, Register) else x

        for step in self.steps:
            ar = arithmetic(step.result.format, step.rounding)
            known[step.result] = getattr(ar, step.operation)(*map(number, step.operands))
        return mapped(number, self.results)


def identity(operand: Operand) -> Any:
    """Return what tells operands apart: 0.0 and -0.0, too."""
    if isinstance(operand, Scalar):
        return operand.name, operand.negative
    if isinstance(operand, Register):
        return operand
    # A number of mpmath may have more digits than it shows.
    return type(operand), repr(operand if isinstance(operand, float | int) else exact_or_binary64(operand))


def flat(nested: Any) -> Iterator[Any]:
    """Yield the leaves of nested tuples."""
    if isinstance(nested, tuple):
        for item in nested:
            yield from flat(item)
    else:
        yield nested


def mapped(function: Callable[[Any], Any], nested: Any) -> Any:
    """Return nested tuples with a function applied to their leaves."""
    if isinstance(nested, tuple):
        items = [mapped(function, item) for item in nested]
        return type(nested)(*items) if hasattr(nested, "_fields") else tuple(items)
    return function(nested)


def _after(words: str) -> str:
    """Return random words as they stand after operands, or nothing."""
    return f"; {words}" if words else ""


def _shown(nested: Any) -> str:
    return f"({', '.join(map(_shown, nested))})" if isinstance(nested, tuple) else str(nested)


def needed(steps: list[ProgramStep], results: Mapping[Any, Any] | set[Any]) -> tuple[ProgramStep, ...]:
    """Return the steps that results need, in order."""
    wanted, kept = set(results), []
    for step in reversed(steps):
        if step.result in wanted:
            wanted |= set(step.registers)
            kept.append(step)
    return tuple(reversed(kept))
