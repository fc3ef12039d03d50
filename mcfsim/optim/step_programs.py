"""A step of an optimizer as a program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcfsim.compile.joined import AsBits, Integer, Joined
from mcfsim.compile.program import Program, Register, Scalar, flat
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format
from mcfsim.optim.declaration import Declaration, check_addition
from mcfsim.optim.remainder import grid_of
from mcfsim.optim.state import State, opened
from mcfsim.optim.state import closed as close
from mcfsim.optim.strategies import FLOAT32, Roles, Strategy
from mcfsim.optim.strategy import SLOTS
from mcfsim.protocol import Arithmetic
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode


def symbols(scalars: Any) -> Any:
    """Return symbols in the places of a named tuple's numbers, and of the numbers of expansions in it.

    Those that are zero stay numbers: a step leaves out what does not take part. What is no named tuple is
    returned as it is.
    """
    if not hasattr(scalars, "_fields"):
        return scalars
    pairs = zip(scalars._fields, scalars, strict=True)
    return type(scalars)(*(_symbol(name, number) for name, number in pairs))


def _symbol(name: str, number: Any) -> Any:
    if isinstance(number, tuple):
        return tuple(_symbol(f"{name}_{place}", part) for place, part in enumerate(number))
    return Scalar(name) if number else number


def numbers(scalars: Any) -> dict[str, Any]:
    """Return the numbers of a named tuple by the names that `symbols` gives them."""
    found: dict[str, Any] = {}
    if not hasattr(scalars, "_fields"):
        return found
    for name, number in zip(scalars._fields, scalars, strict=True):
        parts = number if isinstance(number, tuple) else ()
        found |= {f"{name}_{place}": part for place, part in enumerate(parts)} or {name: number}
    return found


def words_of(roles: Roles, count: int) -> dict[int, RandomWords]:
    """Return the random words of a recorded step's sources, in the step that is made."""
    sources = {id(role): role for role in roles}.values()
    drawing = [role.random for role in sources if role.rounding and role.rounding.stochastic]  # type: ignore[attr-defined]
    return {place: replace(words, step=count) for place, words in enumerate(drawing)}


def recorders(ar: Arithmetic, roles: Roles) -> Roles:
    """Return what records in the place of a step's arithmetics, of one that carries nothing out."""
    unique = {id(role): role for role in roles}  # a source of random words each
    made = {key: ar.like(role.format, role.rounding) for key, role in unique.items()}  # type: ignore[arg-type]
    return Roles(*(made[id(role)] for role in roles))


def record_step(
    hyper: Declaration,
    strategy: Strategy,
    roles: Roles,
    scalars: Any,
    *,
    gradient: Format | None = None,
    lines: bool = False,
    closed: bool = False,
) -> Program:
    """Record one step.

    Parameters
    ----------
    hyper, strategy, roles
        Of the optimizer.
    scalars
        Of the step, as `Declaration.scalars` returns them: Python numbers, or symbols in their places.
    gradient : Format, optional
        Of the gradient's numbers, which the step rounds; by default that in which the strategy stores it.
    lines : bool, optional
        Whether to note the lines of the step's text.
    closed : bool, optional
        Whether the step takes and gives remainders, where the strategy has some, and no master copies.

    Returns
    -------
    Program
        Its inputs are the components of parameter, m, v and extra, and the gradient; its results the new
        ones, and the update.

    Raises
    ------
    TypeError, ValueError
        If the step is no straight line, is exact, or feeds no errors back as the strategy asks.
    """
    check_addition(type(hyper), strategy)
    if any(role.format is None or role.rounding is None for role in roles):
        raise ValueError("a step in exact numbers is no program")

    def registers(label: str, role: Arithmetic) -> tuple[Register, ...]:
        stored = strategy.tensors.get(label)
        count = 0 if stored is None or (label in SLOTS and not hyper.keeps(label)) else stored.components
        assert role.format is not None
        return tuple(Register(f"{label}{number}", role.format) for number in range(count))

    bits = strategy.extra.remainder if closed and strategy.extra else None
    state = State(
        parameter=registers("parameter", roles.model),
        m=registers("m", roles.moments),
        v=registers("v", roles.second_moment),
        extra=registers("extra", roles.parameter) if bits is None else (Register("extra0", grid_of(bits)),),
    )
    received = gradient or strategy.gradient.format or roles.moments.format
    assert received is not None

    def step(ar: Arithmetic, old: Any, received: Register) -> Any:
        made, given = recorders(ar, roles), State(*old)
        if bits is None:
            new, update = hyper.step(made, strategy, given, received, scalars)
        else:
            new, update = hyper.step(made, strategy.unshared, opened(made, bits, given), received, scalars)
            new = close(made, bits, new)
        return (*map(tuple, new), update)

    assert roles.moments.format is not None
    name = f"{type(hyper).__name__.lower()}, {strategy.name}"
    given = tuple(map(tuple, state)), Register("gradient", received)
    # What the recording begins with carries nothing out, and is no source of random words.
    program = trace(step, roles.moments.format, operands=given, lines=lines)
    operands = (x for step in program.steps for x in step.operands)
    named = dict.fromkeys(x.name for x in operands if isinstance(x, Scalar))
    return replace(program, name=name, scalars=tuple(named))


class StepPrograms:
    """The steps of an optimizer as programs, recorded once for all numbers.

    Parameters
    ----------
    hyper, strategy
        Of the optimizer.
    closed : bool, optional
        See `record_step`.
    """

    def __init__(self, hyper: Declaration, strategy: Strategy, *, closed: bool = False) -> None:
        self._given, self._closed = (hyper, strategy), closed
        self._programs: dict[Any, Program] = {}

    def of(self, roles: Roles, scalars: Any, gradient: Format) -> Program:
        """Return the step for a gradient of a format, with its scalars as symbols.

        One that computes with scalars is recorded each time, with their numbers.
        """
        symbolic = symbols(scalars)
        key = gradient, *("" if isinstance(x, Scalar) else repr(x) for x in flat(symbolic))
        if key not in self._programs:
            try:
                self._programs[key] = self._recorded(roles, symbolic, gradient)
            except TypeError:
                return self._recorded(roles, scalars, gradient)
        return self._programs[key]

    def _recorded(self, roles: Roles, scalars: Any, gradient: Format) -> Program:
        return record_step(*self._given, roles, scalars, gradient=gradient, closed=self._closed)


def as_bits(strategy: Strategy, program: Program) -> AsBits | None:
    """Return which operand of a closed step lies as bits: what a parameter leaves of its master copy."""
    extra, low = strategy.extra, strategy.parameter.format
    place = len(program.inputs) - 2  # before the gradient
    if extra is None or low is None or not (extra.shared or extra.remainder):
        return None
    if extra.remainder:
        return Integer(place, size_of(extra.remainder))
    rounded = strategy.parameter.rounding is Mode.NEAREST_AWAY
    return Joined(place, 0, FLOAT32.precision - low.precision, rounded)


def size_of(bits: int) -> int:
    """Return the bits of the integer as which a remainder of so many lies in memory."""
    return 8 if bits <= 8 else 16
