"""A program: the straight line of operations that an algorithm performs, over named formats.

The program keeps the algorithm's operations as they are: neither order nor association changes. Repeated
operations appear once, and operations that no result needs are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from mcfsim.checks import Opaque
from mcfsim.formats import Format
from mcfsim.kernels.real_numbers import as_float, exact_or_binary64
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Rounding


@dataclass(eq=False, slots=True)  # not frozen, because making a frozen one takes three times as long
class Register:
    """A value of a format: an operand of the algorithm, or the result of an operation."""

    name: str
    format: Format

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Scalar(Opaque):
    """A real scalar that is known when the program runs; it enters an operation by the scalar policy.

    An algorithm may negate it, and may test its truth value, which is always true.
    """

    name: str
    negative: bool = False

    def of(self, numbers: Mapping[str, Any]) -> Any:
        """Return its number, given numbers by name."""
        return -numbers[self.name] if self.negative else numbers[self.name]

    def __neg__(self) -> Scalar:
        return Scalar(self.name, not self.negative)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"-{self.name}" if self.negative else self.name


#: An operand of an operation: a value, a real scalar, or a Python number that the algorithm itself contains.
Operand = Any


class Draw(NamedTuple):
    """The random words that an operation takes: those of the n-th operation of a source.

    Attributes
    ----------
    source : int
        Each arithmetic of an algorithm that draws has a source of its own.
    operation : int
        The number of the operation, from 0, among all random ones of the arithmetic, needed or not.
    """

    source: int
    operation: int


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """An operation, rounded once.

    Attributes
    ----------
    operation : str
        The name of a method of `mcfsim.protocol.Arithmetic`.
    rounding : Rounding
        How the result is rounded; its format is that of `result`.
    operands : tuple of Register, Scalar or number
    result : Register
    text : str
        The source line of the algorithm that contains the operation, if it is known.
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
        """Return the operation as one line of pseudocode, with other names for its operands if given.

        A random word comes last, after a semicolon.
        """
        if operands is None:
            named = (Register, Scalar)
            operands = (str(x) if isinstance(x, named) else f"{as_float(x):g}" for x in self.operands)
        return f"{self.result} = {self.operation}({', '.join(operands)}{_after(word)})"


@dataclass(frozen=True, eq=False)
class Use:
    """A real scalar as an operand.

    Attributes
    ----------
    name : str
        The name of the number that the line takes.
    step : ProgramStep
    position : int
        Its position among the step's operands.
    """

    name: str
    step: ProgramStep
    position: int

    @cached_property
    def about(self) -> tuple[str, int, bool, Format, Rounding]:
        """Its operation, position, whether the other operands are all values, format and rounding."""
        step = self.step
        alone = len(step.registers) == len(step.operands) - 1
        return step.operation, self.position, alone, step.result.format, step.rounding


@dataclass(frozen=True)
class Program:
    """A straight line of operations.

    Attributes
    ----------
    name : str
        The name of the algorithm.
    inputs : tuple of Register
        The algorithm's operands, with tuples flattened.
    scalars : tuple of str
        Names of the real scalars that it takes.
    steps : tuple of ProgramStep
        In the order in which the algorithm performs them.
    results : tuple
        What the algorithm returns, with nested tuples kept.
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
        """Return the results, with tuples flattened."""
        return flat(self.results)

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """All uses of real scalars as operands, in the order of the steps."""
        found = [
            (step, position)
            for step in self.steps
            for position, operand in enumerate(step.operands)
            if not isinstance(operand, Register)
        ]
        return tuple(Use(f"s{number}", step, position) for number, (step, position) in enumerate(found))

    def reals(self, scalars: Mapping[str, Any] = MappingProxyType({})) -> list[Any]:
        """Return the real scalars that are operands, in order; `scalars` gives the named ones."""
        found = [use.step.operands[use.position] for use in self.uses]
        return [x.of(scalars) if isinstance(x, Scalar) else x for x in found]

    @cached_property
    def words(self) -> Mapping[Draw | None, str]:
        """The names of the random words of the steps that draw, in order."""
        draws = [step.draw for step in self.steps if step.draw is not None]
        return {draw: f"word{place}" for place, draw in enumerate(draws)}

    @cached_property
    def key(self) -> HashedKey:
        """A key that is equal for programs that differ only in the numbers of their real scalars.

        It includes which fmas have the factors of an earlier product, whose error they may compute exactly.
        """
        places = {x: place for place, x in enumerate(self.inputs)}
        rows, products = [], defaultdict[Any, tuple[int, ...]](tuple)
        for step in self.steps:
            operands = tuple(places[x] if isinstance(x, Register) else -1 for x in step.operands)
            factors = tuple(map(identity, step.operands[:2])) if step.operation in ("mul", "fma") else ()
            again = products[factors] if step.operation == "fma" else ()
            rows.append((step.operation, step.result.format, step.rounding, operands, step.draw, again))
            places[step.result] = len(places)
            if step.operation == "mul":
                products[factors] += (places[step.result],)
        results = tuple(places[x] if isinstance(x, Register) else -1 for x in self.outputs())
        return HashedKey((tuple(x.format for x in self.inputs), tuple(rows), results))

    def count(self) -> Counter[tuple[str, str]]:
        """Return the number of operations of each kind in each format."""
        return Counter((step.operation, str(step.result.format)) for step in self.steps)

    def depths(self) -> dict[Register, int]:
        """Return, for the result of each step, the number of operations on the longest path to it."""
        deep: dict[Register, int] = {}
        for step in self.steps:
            deep[step.result] = 1 + max((deep.get(x, 0) for x in step.registers), default=0)
        return deep

    def depth(self) -> int:
        """Return the number of operations on the longest path to a result."""
        deep = self.depths()
        return max((deep.get(x, 0) for x in self.outputs() if isinstance(x, Register)), default=0)

    def registers(self) -> int:
        """Return the largest number of values alive at once; a result may take an operand's place."""
        last = {x: number for number, step in enumerate(self.steps) for x in step.registers}
        last |= {x: len(self.steps) for x in self.outputs() if isinstance(x, Register)}
        alive = {x for x in self.inputs if x in last}
        most = len(alive)
        for number, step in enumerate(self.steps):
            alive = {x for x in alive if last.get(x, -1) > number} | {step.result}
            most = max(most, len(alive))
        return most

    def pseudocode(self) -> str:
        """Return the steps as pseudocode, with changes of format and the algorithm's own source lines."""
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
        """Run the program on any arithmetic.

        Parameters
        ----------
        arithmetic : callable
            Takes a format and a rounding, and returns the arithmetic.
        *operands : value or (nested) tuple of values
            As the algorithm takes them.
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
                return x.of(scalars)
            return known[x] if isinstance(x, Register) else x

        for step in self.steps:
            ar = arithmetic(step.result.format, step.rounding)
            known[step.result] = getattr(ar, step.operation)(*map(number, step.operands))
        return mapped(number, self.results)


def identity(operand: Operand) -> Any:
    """Return a key that identifies an operand; it also distinguishes 0.0 from -0.0."""
    if isinstance(operand, Scalar):
        return operand.name, operand.negative
    if isinstance(operand, Register):
        return operand
    # An mpmath number may have more digits than its repr shows, and a long integer more than Python writes.
    exact = exact_or_binary64(operand)
    return type(operand), repr(exact) if isinstance(exact, float) else exact


class HashedKey:
    """A key for caches whose hash is computed once, as that of a whole program takes long."""

    __slots__ = ("_content", "_hash")

    def __init__(self, content: tuple[Any, ...]) -> None:
        self._content, self._hash = content, hash(content)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashedKey) and self._content == other._content

    def __reduce__(self) -> Any:  # another process has other hashes of strings
        return HashedKey, (self._content,)


@dataclass(frozen=True)
class CacheKey:
    """An item together with a key for caches; only the keys are compared."""

    key: Any
    item: Any = field(compare=False)


def flat(nested: Any) -> list[Any]:
    """Return the leaves of nested tuples, in order."""
    return [leaf for item in nested for leaf in flat(item)] if isinstance(nested, tuple) else [nested]


def mapped(function: Callable[[Any], Any], nested: Any) -> Any:
    """Return nested tuples with a function applied to their leaves."""
    if isinstance(nested, tuple):
        items = [mapped(function, item) for item in nested]
        return type(nested)(*items) if hasattr(nested, "_fields") else tuple(items)
    return function(nested)


def _after(words: str) -> str:
    """Return random words as written after operands, or an empty string."""
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
