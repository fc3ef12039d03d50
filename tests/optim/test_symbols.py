"""Steps are straight lines: recorded on symbols, values and real scalars alike, then played with numbers."""

from dataclasses import dataclass, field

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.optim.optimizer import block_roles
from mcfsim.optim.state import State
from mcfsim.optim.strategies import Roles, Stored, Strategy
from tests.shared.kinds import PLAIN, feeding

MIXED = Strategy("mixed", parameter=Stored("bfloat16", 2), v=Stored("float8_e5m2"), addition="grow")
#: Operations of an arithmetic, all that a text may ask of it.
OPERATIONS = ("add", "sub", "mul", "div", "sqrt", "fma", "neg", "abs", "sign", "round")


class Symbol:
    """A number that is not known yet: a text can do nothing with it but hand it to an arithmetic."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        raise AssertionError("a text compares numbers")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__


class Scalar(Symbol):
    """A real scalar that is not known yet: it has a negative, and takes part."""

    def __init__(self, negative=None):
        self.negative = negative

    def __neg__(self):
        return Scalar(negative=self)


@dataclass
class Recorder:
    """An arithmetic that writes down its operations, in one program for all roles."""

    role: str
    format: mcf.Format
    rounding: mcf.Rounding
    program: list = field(default_factory=list)
    made: tuple = ()

    def like(self, fmt, rounding):
        return Recorder(self.role, fmt, rounding, self.program, (fmt, rounding))

    def __getattr__(self, name):
        if name not in OPERATIONS:
            raise AttributeError(name)

        def operation(*operands):
            result = Symbol()
            self.program.append((self.role, self.made, name, operands, result))
            return result

        return operation

    def evaluate(self, function, /, *operands, **options):
        return function(self, *operands, **options)


def recorded(hyper, optimizer):
    """Return the program of a step, the symbols that enter it, and those that leave."""
    program, roles = [], optimizer.roles
    own = zip(Roles._fields, roles, strict=True)
    recorders = Roles(*(Recorder(name, ar.format, ar.rounding, program) for name, ar in own))
    state = State(*(tuple(Symbol() for _ in part) for part in optimizer.state))
    numbers = hyper.scalars(roles, optimizer.strategy, 1, 2.0**-7, decayed=True)
    scalars = numbers._make(
        tuple(Scalar() for _ in number) if isinstance(number, tuple) else Scalar() for number in numbers
    )
    gradient = Symbol()
    outcome = hyper.step(recorders, optimizer.strategy, state, gradient, scalars)
    return program, (state, gradient, scalars), outcome.state


def played(program, roles, known):
    """Carry out a program; symbols that enter it are known by identity."""
    known = dict(known)

    def number(x):
        if isinstance(x, Scalar) and x.negative is not None:
            return -number(x.negative)
        return known[id(x)] if isinstance(x, Symbol) else x

    for role, made, name, operands, result in program:
        ar = getattr(roles, role)
        known[id(result)] = getattr(ar.like(*made) if made else ar, name)(*map(number, operands))
    return known


def flat(nested):
    for item in nested:
        yield from flat(item) if isinstance(item, tuple) else (item,)


@pytest.mark.parametrize(("optimizer", "strategy"), [*feeding(PLAIN), ("adamw", MIXED)], ids=str)
def test_a_step_recorded_once_is_every_step(optimizer, strategy):
    hyper, random = straight_optimizers()[optimizer](), np.random.default_rng(1)
    stored = mcf.strategy(strategy, "bfloat16")
    trained = mcf.Optimizer(hyper, stored, {"w": random.standard_normal(50)}, {"w"})
    program, (state, gradient, scalars), left = recorded(hyper, trained)
    assert len(program) > 3
    for count in range(1, 4):
        received = trained.receive({"w": random.standard_normal(50)})
        numbers = hyper.scalars(trained.roles, stored, count, 2.0**-7 / count, decayed=True)
        entering = zip(
            flat((state, gradient, scalars)), flat((trained.state, received, numbers)), strict=True
        )
        roles = block_roles(trained.roles, count, 0)
        known = played(program, roles, {id(symbol): number for symbol, number in entering})
        trained.step(received, 2.0**-7 / count)
        for symbol, expected in zip(flat(left), flat(trained.state), strict=True):
            np.testing.assert_array_equal(known[id(symbol)], expected)
