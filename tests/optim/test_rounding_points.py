"""The operations of a step, in their order and by the role whose arithmetic makes them."""

from importlib import import_module

import numpy as np
import pytest

from mcfsim import AdamW, Meter, strategy
from mcfsim.optim import torchadamw
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.optim.state import State
from mcfsim.optim.strategies import Roles

TWO_SUM = ["add", "sub", "sub", "sub", "sub", "add"]
FAST_TWO_SUM = ["add", "sub", "sub"]
GROW = [*TWO_SUM, "add", *FAST_TWO_SUM]
MUL = ["mul", "neg", "fma", "mul", "fma", "add", *FAST_TWO_SUM]

#: Role and operation, after the update is known.
ADDITIONS = {
    "plain": [("parameter", "round"), ("parameter", "add")],
    "fp32-optim": [("parameter", "round"), ("parameter", "add")],
    "kahan": [("parameter", name) for name in ("round", "add", "add", "sub", "sub")],
    "collage-light": [("parameter", name) for name in ("round", *GROW)],
    "fp32-master": [("parameter", "round"), ("parameter", "add"), ("model", "round")],
}
DECAY = {"weight", "weight decay", "decayed direction"}
#: Points of the moments, by the role; the direction of Lion is an average that is not kept.
FIRST = ("gradient", "first moment decayed", "first moment", "momentum weighted", "interpolation")
SECOND = ("gradient squared", "second moment decayed", "second moment")
MOMENTS = {**dict.fromkeys(FIRST, "moments"), **dict.fromkeys(SECOND, "second_moment")}


class Labelled:
    """Takes the place of a meter's trace, and writes role and operation to one list for all roles."""

    def __init__(self, role, together):
        self.role, self.together = role, together

    def append(self, operation):
        self.together.append((self.role, operation))


class Inner(Labelled):
    """Of an arithmetic that a role's was asked for: its roundings bring numbers into a wider format."""

    def append(self, operation):
        if operation != "round":
            super().append(operation)


class Watching(Meter):
    """A meter that also watches the arithmetics that it is asked for."""

    def like(self, fmt, rounding):
        made = super().like(fmt, rounding)
        made.trace = Inner(self.trace.role, self.trace.together)
        return made


def trace(hyper, name):
    """Return the (role, operation) pairs of one step from a random state, whose bits are those unwatched."""
    random = np.random.default_rng(5)
    declared = strategy(name)
    plain_roles = declared.roles()
    operations = []
    meters = Roles(*(Watching(ar) for ar in plain_roles))
    for role, meter in zip(Roles._fields, meters, strict=True):
        meter.trace = Labelled(role, operations)

    def tensor(ar, components, positive=False):
        numbers = random.standard_normal(4)
        leading = ar.round(np.abs(numbers) if positive else numbers)
        return (leading, *(ar.round(leading * 2.0**-10) for _ in range(components - 1)))

    state = State(
        tensor(plain_roles.model, declared.parameter.components),
        tensor(plain_roles.moments, declared.m.components),
        tensor(plain_roles.moments, declared.v.components, positive=True) if hyper.keeps("v") else (),
        tensor(plain_roles.parameter, 1) if declared.extra else (),
    )
    gradient = plain_roles.model.round(random.standard_normal(4))
    scalars = hyper.scalars(plain_roles, declared, 3, 0.01, decayed=True)
    watched = hyper.step(meters, declared, state, gradient, scalars)
    plainly = hyper.step(plain_roles, declared, state, gradient, scalars)
    np.testing.assert_array_equal(watched.update, plainly.update)
    for part, expected in zip(watched.state, plainly.state, strict=True):
        np.testing.assert_array_equal(part, expected)
    return operations


def points_of(hyper):
    return import_module(type(hyper).__module__).ROUNDING_POINTS


def declared(hyper):
    """Return the declared points before the strategy's addition, as (role, operation)."""
    points = [point for point in points_of(hyper) if hyper.weight_decay or point[0] not in DECAY]
    return [(MOMENTS.get(name, "update"), operation) for name, operation in points]


@pytest.mark.parametrize("decay", [0.1, 0.0])
@pytest.mark.parametrize("optimizer", [name for name in straight_optimizers() if name != "torchadamw"])
@pytest.mark.parametrize("name", ADDITIONS)
def test_a_step_makes_the_declared_operations_and_no_others(optimizer, name, decay):
    hyper = straight_optimizers()[optimizer](weight_decay=decay)
    assert trace(hyper, name) == declared(hyper) + ADDITIONS[name]


#: Roles of PyTorch's points, each up to the one that is named.
UP_TO = {"first moment": "moments", "denominator": "second_moment", "update": "update", "weight": "parameter"}


@pytest.mark.parametrize("name", ["plain", "fp32"])
def test_a_step_at_the_points_of_pytorch_makes_the_declared_operations(name):
    hyper = torchadamw.TorchAdamW(weight_decay=0.1)
    expected, ends = [], iter(UP_TO.items())
    end, role = next(ends)
    for point, operation in points_of(hyper):
        if operation != "round" or point == "gradient" or name == "plain":  # binary32 stores what it has
            expected.append((role, operation))
        if point == end:
            end, role = next(ends, ("", ""))
    assert trace(hyper, name) == expected


def test_the_second_moment_of_collage_plus_is_mul_then_grow():
    before = declared(AdamW())
    decayed = [point for point, _ in points_of(AdamW())].index("second moment decayed")
    instead = [("second_moment", name) for name in (*MUL, "mul", *GROW)]
    expected = before[:decayed] + instead + before[decayed + 2 :] + ADDITIONS["collage-light"]
    assert trace(AdamW(), "collage-plus") == expected
