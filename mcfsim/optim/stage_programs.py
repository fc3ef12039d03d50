"""The stages of a step as programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcfsim.compile.program import Program, Register, Scalar, flat
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format
from mcfsim.optim.staged import Mean, Stage, Staged, mapped
from mcfsim.optim.step_programs import recorders, symbols
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.protocol import Arithmetic

#: Formats of what a step knows, by name: those of components as a tuple.
_Formats = dict[str, Any]
#: A stage, its program, and what that makes, by name.
Recorded = tuple[Stage, Program, dict[str, Any]]


def record_stages(
    hyper: Staged,
    strategy: Strategy,
    roles: Roles,
    scalars: Any,
    shape: tuple[int, ...],
    *,
    gradient: Format | None = None,
    lines: bool = False,
) -> dict[int, Recorded]:
    """Record the stages of one tensor's step.

    Parameters
    ----------
    hyper, strategy, roles
        Of the optimizer.
    scalars
        Of the step, as `Declaration.scalars` returns them: Python numbers, or symbols in their places.
    shape : tuple of int
        Of the tensor.
    gradient : Format, optional
        Of the gradient's numbers; by default that in which the strategy stores it.
    lines : bool, optional
        Whether to note the lines of the texts.

    Returns
    -------
    dict of int to tuple
        By their places in `Staged.stages`: stage, program, and registers of its results by name.

    Raises
    ------
    TypeError, ValueError
        If a stage is no straight line, or is exact.
    """
    if any(role.format is None or role.rounding is None for role in roles):
        raise ValueError("a step in exact numbers is no program")
    formats: _Formats = {"gradient": gradient or strategy.gradient.format or roles.moments.format}
    of = {"parameter": roles.model.format, "extra": roles.parameter.format}
    for label in of:
        stored = strategy.tensors.get(label)
        formats[label] = (of[label],) * (stored.components if stored else 0)
    for slot in hyper.slots:
        kept = strategy.tensors[slot.name]
        formats |= {
            name: (roles.of(slot.name).format,) * kept.components for name in hyper.parts(slot.name, shape)
        }
    found = {}
    for place, item in enumerate(hyper.stages(shape)):
        if isinstance(item, Mean):
            formats[item.name] = roles.of(item.role).format
        else:
            program, results = _record(item, strategy, roles, scalars, formats, lines=lines)
            name = f"{type(hyper).__name__.lower()}.{item.name}, {strategy.name}"
            found[place] = item, replace(program, name=name), results
            formats |= {label: mapped(made, lambda x: x.format) for label, made in results.items()}
    return found


def _record(
    stage: Stage, strategy: Strategy, roles: Roles, scalars: Any, formats: _Formats, *, lines: bool
) -> tuple[Program, dict[str, Any]]:
    names: list[str] = []

    def text(ar: Arithmetic, *given: Any) -> Any:
        known = dict(zip(stage.takes, given, strict=True))
        made = stage.text(recorders(ar, roles), strategy, known, scalars)
        names[:] = made
        return tuple(made.values())

    def register(name: str) -> Any:
        fmt = formats[name]
        if not isinstance(fmt, tuple):
            return Register(name, fmt)
        return tuple(Register(f"{name}{place}", one) for place, one in enumerate(fmt))

    assert roles.moments.format is not None
    # What the recording begins with carries nothing out, and is no source of random words.
    program = trace(text, roles.moments.format, operands=tuple(map(register, stage.takes)), lines=lines)
    operands = (x for step in program.steps for x in step.operands)
    named = dict.fromkeys(x.name for x in operands if isinstance(x, Scalar))
    return replace(program, scalars=tuple(named)), dict(zip(names, program.results, strict=True))


class StagePrograms:
    """The stages of an optimizer as programs, recorded once for all numbers.

    Parameters
    ----------
    hyper, strategy
        Of the optimizer.
    """

    def __init__(self, hyper: Staged, strategy: Strategy) -> None:
        self._given = hyper, strategy
        self._programs: dict[Any, dict[int, Recorded]] = {}

    def of(self, roles: Roles, scalars: Any, shape: tuple[int, ...], gradient: Format) -> dict[int, Recorded]:
        """Return the stages of a tensor's step for a gradient of a format, with its scalars as symbols.

        Those that compute with scalars are recorded each time, with their numbers.
        """
        symbolic = symbols(scalars)
        numbers = ("" if isinstance(x, Scalar) else repr(x) for x in flat(symbolic))
        key = self._given[0].stages(shape), gradient, *numbers
        if key not in self._programs:
            try:
                self._programs[key] = record_stages(*self._given, roles, symbolic, shape, gradient=gradient)
            except TypeError:
                return record_stages(*self._given, roles, scalars, shape, gradient=gradient)
        return self._programs[key]
