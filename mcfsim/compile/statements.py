"""A line as statements of a language: one a verb, with notes on what they are made for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mcfsim.compile.lowering import Lowered
from mcfsim.kernels.element.machine import Value


class Statements(NamedTuple):
    """A line's statements.

    Attributes
    ----------
    constants : dict of str to Value
        Those that statements take, by name.
    body : list of str
        Statements and notes, in order.
    results : list of str
        What the values that were asked for are called.
    """

    constants: dict[str, Value]
    body: list[str]
    results: list[str]


def module_head(about: str, imports: str) -> str:
    """Return how the source of a module begins: by what it is, and what it imports."""
    return (
        f'"""{about}\n\n'
        "Made by mcfsim: what it says of itself holds as long as the text does that it was made from.\n"
        f'"""\n\n{imports}\n'
    )


def statements(
    lowered: Lowered,
    results: Sequence[Value],
    read: Callable[[Value], str],
    expression: Callable[[Value, list[str]], str],
    *,
    hardware: bool = False,
    values: Iterable[Value] | None = None,
) -> Statements:
    """Write a line down.

    Parameters
    ----------
    lowered : Lowered
        The line. Its numbers, the same for all elements, are called by their names.
    results : sequence of Value
        Those of its values that are asked for.
    read : callable
        Returns how an input is read: an operand, a word, or the number of the element.
    expression : callable
        Returns a verb as an expression, of a value and what its operands are called.
    hardware : bool, optional
        Whether the verbs of `mcfsim.kernels.element.gpu_verbs` are written, where they were noted.
    values : iterable of Value, optional
        Those that are written, in order; by default all that the results need.
    """
    constants: dict[str, Value] = {}
    numbers = set(lowered.numbers)

    def name(value: Value) -> str:
        if value in numbers:
            return str(value.constant)
        if value.verb == "constant":
            constants[f"c{value.number}"] = value
            return f"c{value.number}"
        return f"r{value.number}"

    body: list[str] = []
    notes = sorted(lowered.notes.items())
    for value in lowered.line.needed(tuple(results), hardware=hardware) if values is None else values:
        if value.verb not in ("input", "constant"):
            begun = [note for start, note in notes if start <= value.number]
            body += [f"# {note}" for note in begun[-1:]]
            notes = notes[len(begun) :]
            body.append(f"{name(value)} = {expression(value, [name(x) for x in value.operands])}")
        elif value.verb == "input" and value not in numbers:
            body.append(f"{name(value)} = {read(value)}")
    return Statements(constants, body, [name(value) for value in results])
