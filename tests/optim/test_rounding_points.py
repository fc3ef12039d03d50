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

#: Operations of the parameter, after the update is known.
ADDITIONS = {
    **{name: ["round", "add"] for name in ("plain", "fp32-optim", "fp32-master")},
    "kahan": ["round", "add", "add", "sub", "sub"],
    **{name: ["round", *GROW] for name in ("collage-light", "collage-plus")},
}
#: Those of a second moment of two components: Mul, then Grow.
IN_TWO = {"second moment decayed": MUL, "second moment": ["mul", *GROW]}
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
    """A meter that also watches the arithmetics that it is asked for."""

    def like(self, fmt, rounding):  # whose roundings bring numbers into a wider format
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


def expected(hyper, name):
    """Return the declared points and the strategy's addition, as (role, operation)."""
    found = []
    for point, operation in points_of(hyper):
        if name == "collage-plus" and point in IN_TWO:
            found += [("second_moment", operation) for operation in IN_TWO[point]]
        elif hyper.weight_decay or point not in DECAY:
            found.append((MOMENTS.get(point, "update"), operation))
    found += [("parameter", operation) for operation in ADDITIONS[name]]
    return [*found, ("model", "round")] if name == "fp32-master" else found


@pytest.mark.parametrize("decay", [0.1, 0.0])
@pytest.mark.parametrize("optimizer", [name for name in straight_optimizers() if name != "torchadamw"])
@pytest.mark.parametrize("name", ADDITIONS)
def test_a_step_makes_the_declared_operations_and_no_others(optimizer, name, decay):
    hyper = straight_optimizers()[optimizer](weight_decay=decay)
    assert trace(hyper, name) == expected(hyper, name)


#: Roles of PyTorch's points, each up to the one that is named.
UP_TO = {"first moment": "moments", "denominator": "second_moment", "update": "update", "weight": "parameter"}


@pytest.mark.parametrize("name", ["plain", "fp32"])
def test_a_step_at_the_points_of_pytorch_makes_the_declared_operations(name):
    hyper, found, roles = TorchAdamW(weight_decay=0.1), [], list(UP_TO.values())
    for point, operation in points_of(hyper):
        if operation != "round" or point == "gradient" or name == "plain":  # binary32 stores what it has
            found.append((roles[0], operation))
        if UP_TO.get(point) == roles[0]:
            del roles[0]
    assert trace(hyper, name) == found


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


@pytest.mark.parametrize(("nesterov", "decay"), [(True, 0.1), (False, 0.0)])
def test_stages_of_muon_make_the_declared_operations_around_the_iteration(nesterov, decay):
    hyper = mcf.Muon(nesterov=nesterov, weight_decay=decay)
    made = [operation for _, _, operation in points_of(hyper)]
    if not nesterov:
        made = [*made[:3], "mul"]  # the direction is the momentum, and nothing decays
    before = 5 if nesterov else 3
    found = trace(hyper, "plain")
    roles = ["moments"] * 3 + ["update"] * 2
    assert found[:before] == list(zip(roles, made[:before], strict=False))
    rest = [("update", operation) for operation in made[before:]]
    assert found[-len(rest) - 2 :] == [*rest, ("parameter", "round"), ("parameter", "add")]
    # Between them the iteration's own, in formats of its own, and the factor rounded for the update.
    assert {role for role, _ in found[before : -len(rest) - 2]} == {"update"}
