"""The operations of a step, in their order and by the role whose arithmetic makes them."""

from importlib import import_module

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.optim.adafactor import Adafactor
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.optim.strategies import Roles
from mcfsim.optim.torchadamw import TorchAdamW

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

    def __init__(self, role, together, but=None):
        self.role, self.together, self.but = role, together, but

    def append(self, operation):
        if operation != self.but:
            self.together.append((self.role, operation))


class Watching(mcf.Meter):
    """A meter that also watches the arithmetics that it is asked for.

    Their roundings bring numbers into a wider format.
    """

    def like(self, fmt, rounding):
        made = super().like(fmt, rounding)
        made.trace = Labelled(self.trace.role, self.trace.together, but="round")
        return made

    def on_block(self, step, start):
        made = Watching(self.arithmetic.on_block(step, start))
        made.trace = self.trace
        return made


def trace(hyper, name, meters=None):
    """Return the (role, operation) pairs of a second step, whose bits are those unwatched."""
    start, operations = {"w": np.linspace(-1, 1, 6).reshape(2, 3)}, []
    watched, plain = (mcf.Optimizer(hyper, mcf.strategy(name), start, {"w"}) for _ in range(2))
    gradient = watched.receive({"w": np.linspace(-3, 1, 6).reshape(2, 3)})
    for one in (watched, plain):
        one.step(gradient, 0.01)
    watched.roles = Roles(*(meters or map(Watching, watched.roles)))
    for role, meter in zip(Roles._fields, watched.roles, strict=True):
        meter.trace = Labelled(role, operations)
    np.testing.assert_array_equal(watched.step(gradient, 0.01), plain.step(gradient, 0.01))
    for mine, other in zip(watched.state, plain.state, strict=True):
        np.testing.assert_array_equal(mine, other)
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
    hyper = TorchAdamW(weight_decay=0.1)
    expected, ends = [], iter(UP_TO.items())
    end, role = next(ends)
    for point, operation in points_of(hyper):
        if operation != "round" or point == "gradient" or name == "plain":  # binary32 stores what it has
            expected.append((role, operation))
        if point == end:
            end, role = next(ends, ("", ""))
    assert trace(hyper, name) == expected


def test_the_second_moment_of_collage_plus_is_mul_then_grow():
    before = declared(mcf.AdamW())
    decayed = [point for point, _ in points_of(mcf.AdamW())].index("second moment decayed")
    instead = [("second_moment", name) for name in (*MUL, "mul", *GROW)]
    expected = before[:decayed] + instead + before[decayed + 2 :] + ADDITIONS["collage-light"]
    assert trace(mcf.AdamW(), "collage-plus") == expected


#: What finds the larger one of a number and a real scalar, which the second product rounds.
LARGER = ["sub", "sign", "abs", "add", "mul", "sub", "mul", "fma"]


def test_stages_make_the_declared_operations_and_no_others():
    hyper = Adafactor(weight_decay=0.1)
    made = {}
    for part, _, operation in points_of(hyper):
        made.setdefault(part, []).append(operation)
    assert list(made) == [item.name for item in hyper.stages((2, 3))]
    assert made["sizes"] == ["sqrt", "div", "sqrt", "mul", "mul"]
    made["sizes"] = ["sqrt", "div", *LARGER, "sqrt", *LARGER, "mul"]
    meter = mcf.Meter(mcf.strategy("plain").roles().moments)
    operations = [operation for _, operation in trace(hyper, "plain", [meter] * 5)]
    assert operations == [*(item for part in made.values() for item in part), "round", "add"]
    # Gradient, weight, and update twice; means of 2 rows, 3 columns, all of them and two more.
    counted = {"round": 4 * 6 + 2 + 3 + 1 + 2, "sqrt": 6 + 2, "fma": 2 + 3 + 2}
    assert {name: meter.tallies[name].elements for name in counted} == counted
