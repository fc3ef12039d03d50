"""A step of an optimizer as a program."""

from __future__ import annotations

from typing import Any

from mcfsim.compile.program import Program, Register
from mcfsim.compile.recording import trace
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.state import State
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.protocol import Arithmetic


def record_step(
    hyper: Declaration, strategy: Strategy, roles: Roles, scalars: Any, *, lines: bool = False
) -> Program:
    """Record one step.

    Parameters
    ----------
    hyper, strategy, roles
        Of the optimizer.
    scalars
        Of the step, as `Declaration.scalars` returns them: Python numbers, or symbols in their places.
    lines : bool, optional
        Whether to note the lines of the step's text.

    Returns
    -------
    Program
        Its inputs are the components of parameter, m, v and extra, and the gradient; its results the new ones,
        and the update.

    Raises
    ------
    TypeError, ValueError
        If the step is no straight line, is exact, or rounds stochastically.
    """
    if any(role.format is None or role.rounding is None for role in roles):
        raise ValueError("a step in exact numbers is no program")

    def registers(label: str, role: Arithmetic) -> tuple[Register, ...]:
        stored = strategy.tensors.get(label)
        count = 0 if stored is None or (label in ("m", "v") and not hyper.keeps(label)) else stored.components
        assert role.format is not None
        return tuple(Register(f"{label}{number}", role.format) for number in range(count))

    state = State(
        parameter=registers("parameter", roles.model),
        m=registers("m", roles.moments),
        v=registers("v", roles.second_moment),
        extra=registers("extra", roles.parameter),
    )
    gradient = Register("gradient", strategy.gradient.format or roles.moments.format)

    def step(ar: Arithmetic, old: Any, gradient: Register) -> Any:
        made = {id(role): ar.like(role.format, role.rounding) for role in roles}  # type: ignore[arg-type]
        recorders = Roles(*(made[id(role)] for role in roles))
        new, update = hyper.step(recorders, strategy, State(*old), gradient, scalars)
        return (*map(tuple, new), update)

    fmt, rounding = roles.moments.format, roles.moments.rounding
    assert fmt is not None
    assert rounding is not None
    name = f"{type(hyper).__name__.lower()}, {strategy.name}"
    program = trace(step, fmt, rounding, operands=(tuple(map(tuple, state)), gradient), lines=lines)
    return Program(name, program.inputs, program.scalars, program.steps, program.results)
