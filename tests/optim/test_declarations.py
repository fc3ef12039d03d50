"""Optimizers that are one file each: by the oracle, in simulation, exact truth, checkpoints and torch."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import permutations
from typing import NamedTuple

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.optim.declaration import Declaration, Slot, optimizers
from mcfsim.optim.lion import Lion
from mcfsim.optim.nesterov import Nesterov
from mcfsim.optim.state import State, Step, average, move
from mcfsim.optim.strategies import Roles, Stored, Strategy
from mcfsim.rounding import get_rounding
from tests.shared.kinds import STORED

from .reference import quantised, roles_of

NEW = {"lion": Lion(0.9, 0.95, 0.1), "nesterov": Nesterov(0.9, 0.1)}
MIXED = Strategy("mixed", parameter=Stored("bfloat16", 2), v=Stored("float8_e5m2"), addition="grow")
MIXED = mcf.strategy(MIXED, "bfloat16")
every_new = pytest.mark.parametrize("name", NEW)


def judged(hyper, strategy, rounding, steps=4, size=12, rate=2.0**-7):
    """Train some elements, and each of them alone by the oracle; return both states after each step."""
    random = np.random.default_rng(3)
    optimizer = mcf.Optimizer(hyper, strategy, {"w": random.standard_normal(size)}, {"w"}, rounding)
    rounding = get_rounding(rounding)
    ours = [State(*(tuple(map(float, x)) for x in _element(optimizer.state, i))) for i in range(size)]
    for t in range(1, steps + 1):
        gradient = optimizer.receive(
            {"w": random.standard_normal(size) * 2.0 ** random.integers(-9, 3, size)}
        )
        gradient[:: t + 2] = 0
        optimizer.step(gradient, rate)
        for i, g in enumerate(gradient.tolist()):
            roles = Roles(*roles_of(strategy, t, i, rounding))
            scalars = hyper.scalars(roles, strategy, t, rate, decayed=True)
            ours[i] = hyper.step(roles, strategy, ours[i], g, scalars).state
        for part in ("m", "v"):
            scaled = strategy.tensors[part].scaled
            if scaled and getattr(ours[0], part):
                numbers = quantised([getattr(x, part)[0] for x in ours], scaled)
                ours = [x._replace(**{part: (number,)}) for x, number in zip(ours, numbers, strict=True)]
        yield [State(*_element(optimizer.state, i)) for i in range(size)], ours


def _element(state, i):
    return [tuple(item[i] for item in part) for part in state]


def assert_judged(hyper, strategy, rounding="nearest_even", **options):
    for found, expected in judged(hyper, strategy, rounding, **options):
        for mine, other in zip(found, expected, strict=True):
            for part, by_oracle in zip(mine, other, strict=True):
                np.testing.assert_array_equal(np.float64(part), np.float64(by_oracle))
                np.testing.assert_array_equal(np.signbit(part), np.signbit(by_oracle))


@every_new
@pytest.mark.parametrize("rounding", ["nearest_even", "up", "toward_zero"])
@pytest.mark.parametrize("strategy", [name for name in STORED if name != "eco"])
@pytest.mark.sampled(6)
def test_steps_are_those_of_the_oracle(name, strategy, rounding):
    assert_judged(NEW[name], mcf.strategy(strategy), rounding)


@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero", "up"])
@pytest.mark.parametrize("strategy", ["eco", "remainder-8", "int8-moments", "coat-moments", "mcf-3"])
@pytest.mark.parametrize("hyper", [mcf.AdamW(0.9, 0.95, 1e-4, 0.1), mcf.SGD(0.9, 0.1)], ids=["adamw", "sgd"])
@pytest.mark.sampled(8)
def test_steps_of_adamw_and_sgd_are_those_of_the_oracle(hyper, strategy, rounding):
    assert_judged(hyper, mcf.strategy(strategy), rounding)


@pytest.mark.parametrize(
    "hyper", [mcf.AdamW(0.9, 0.95, 1e-4, 0.1), mcf.SGD(0.9, 0.1), *NEW.values()], ids=str
)
@pytest.mark.parametrize("rounding", ["nearest_even", "down"])
@pytest.mark.sampled(4)
def test_moments_of_different_formats_are_those_of_the_oracle(hyper, rounding):
    assert_judged(hyper, MIXED, rounding)
    assert_judged(hyper, replace(MIXED, m=MIXED.v, v=MIXED.m), rounding)


def test_each_moment_holds_values_of_its_own_format():
    optimizer = mcf.Optimizer(mcf.AdamW(), MIXED, {"w": np.linspace(-1, 1, 40)})
    for _ in range(3):
        optimizer.step(optimizer.receive({"w": np.linspace(0.3, 2, 40)}), 1e-3)
    for part, fmt in (("m", "bfloat16"), ("v", "float8_e5m2")):
        (stored,) = getattr(optimizer.state, part)
        np.testing.assert_array_equal(stored, mcf.round_to(stored, fmt))
        assert (stored != 0).all()
    assert MIXED.bytes_per_parameter == 2 * 2 + 2 + 2 + 1


def test_the_formulas_of_the_papers_in_exact_arithmetic():
    """One element in fractions, as published, beside the step texts in mpmath."""
    gradients, rate, decay = (
        [Fraction(3, 8), Fraction(-5, 16), Fraction(0), Fraction(1, 64)],
        Fraction(1, 128),
        Fraction(1, 8),
    )
    b1, b2 = Fraction(3, 4), Fraction(7, 8)
    theta, m, moved = Fraction(1), Fraction(0), Fraction(1)
    buffer = Fraction(0)
    exact = {
        "lion": mcf.Optimizer(Lion(0.75, 0.875, 0.125), mcf.strategy("exact"), {"w": np.ones(1)}, {"w"}),
        "nesterov": mcf.Optimizer(Nesterov(0.75, 0.125), mcf.strategy("exact"), {"w": np.ones(1)}, {"w"}),
    }
    for g in gradients:
        c = b1 * m + (1 - b1) * g
        theta -= rate * ((c > 0) - (c < 0) + decay * theta)
        m = b2 * m + (1 - b2) * g
        buffer = b1 * buffer + g
        moved -= rate * (g + b1 * buffer + decay * moved)
        for optimizer in exact.values():
            optimizer.step(optimizer.receive({"w": np.array([float(g)])}), float(rate))
    found = {name: optimizer.state.parameter[0][0] for name, optimizer in exact.items()}
    assert mcf.convert.to_fraction(found["lion"]) == theta
    assert mcf.convert.to_fraction(found["nesterov"]) == moved


@every_new
@pytest.mark.slow
def test_they_are_known_by_name_wherever_optimizers_are(name, tmp_path):
    assert optimizers()[name] is type(NEW[name])
    problem, options = mcf.get_problem("quadratic", dimension=8), {"steps": 6, "record_every": 2}
    strategies = ["plain", "collage-plus", "exact"]
    by_name = mcf.simulate(problem, name, strategies, **options)
    by_value = mcf.simulate(problem, optimizers()[name](), strategies, **options, checkpoint=tmp_path / "c")
    assert by_name.settings["optimizer"]["name"] == name
    for label in strategies:
        np.testing.assert_array_equal(by_name.series[label]["loss"], by_value.series[label]["loss"])
    # Without a second moment, collage-plus stores 8 bytes: two components of the parameter, m and a gradient.
    assert by_name.results["collage-plus"]["bytes_per_parameter"] == 8
    assert {"m_error", "distance"} <= by_name.series["plain"].keys()
    assert "v_error" not in by_name.series["plain"]


@every_new
@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "fp32-master"])
def test_torch_makes_the_same_steps(name, strategy):
    torch = pytest.importorskip("torch")
    import mcfsim.torch

    hyper, random = NEW[name], np.random.default_rng(0)
    start = mcf.round_to(random.standard_normal(50), "bfloat16").astype(np.float32)
    weight = torch.nn.Parameter(torch.from_numpy(start).bfloat16())
    keywords = {field.name: getattr(hyper, field.name) for field in fields(hyper)}
    theirs = getattr(mcfsim.torch, type(hyper).__name__)([weight], 2.0**-6, strategy=strategy, **keywords)
    ours = mcf.Optimizer(hyper, mcf.strategy(strategy), {"w": start}, {"w"})
    for _ in range(5):
        gradient = random.standard_normal(50).astype(np.float32)
        weight.grad = torch.from_numpy(gradient).bfloat16()
        theirs.step()
        ours.step(ours.receive({"w": gradient}), 2.0**-6)
    np.testing.assert_array_equal(weight.detach().float().numpy(), ours.state.parameter[0])
    with pytest.raises(TypeError, match=f"{type(hyper).__name__} has no 'rho'; it takes "):
        getattr(mcfsim.torch, type(hyper).__name__)([weight], rho=0.9)


@every_new
@pytest.mark.parametrize("wrong", [{"weight_decay": -1.0}, {"weight_decay": float("nan")}])
def test_hyperparameters_out_of_range_are_refused(name, wrong):
    with pytest.raises(ValueError, match="weight_decay"):
        type(NEW[name])(**wrong)


def test_lion_refuses_what_adamw_does():
    for wrong in ({"beta1": 1.0}, {"beta2": -0.1}):
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\)"):
            Lion(**wrong)


@pytest.mark.parametrize("name", ["n", "mv", "", "v2", "M", "parameter", "extra", None, 0, ("m",)])
def test_a_slot_that_no_strategy_stores_is_refused_where_it_is_declared(name):
    with pytest.raises(ValueError, match=r"a slot is named 'm' or 'v', not .* cannot be declared"):
        Slot(name, average_of)


@pytest.mark.parametrize("order", list(permutations("mv")))
@pytest.mark.parametrize("packed", [False, True])
def test_slots_are_told_apart_by_name_in_any_order(order, packed):
    made = {}
    for slots in (order, tuple(sorted(order))):
        kind = declared(*(Slot(name, average_of) for name in slots))
        optimizer = mcf.Optimizer(kind(), mcf.strategy("collage-plus"), {"w": np.ones(5)}, packed=packed)
        optimizer.step(optimizer.receive({"w": np.linspace(-1, 1, 5)}), 2.0**-5)
        run = mcf.simulate(mcf.get_problem("quadratic", dimension=5), kind(), "plain", steps=3)
        found = [optimizer.state.m[0].tolist(), optimizer.state.v[1].tolist()]
        made[slots] = found, {name: x.tolist() for name, x in run.series["plain"].items()}
    assert len({repr(item) for item in made.values()}) == 1


@pytest.mark.parametrize(
    ("slots", "error", "text"),
    [
        (["m", "m"], ValueError, "each slot of state is named once"),
        (["m", None], TypeError, r"slots must be Slot\(name, average\)"),
    ],
)
def test_slots_that_contradict_each_other_are_refused(slots, error, text):
    with pytest.raises(error, match=text):
        declared(*(name and Slot(name, average_of) for name in slots))


def test_a_slot_without_an_average_is_for_stages_alone():
    with pytest.raises(ValueError, match="slot 'v' must say its average; only stages go without"):
        declared(Slot("m", average_of), Slot("v"))
    assert any(slot.average is None for slot in optimizers()["adafactor"].slots)


def average_of(ar, x, new, scalars):
    return average(ar, x, 0.5, new, 0.5)


def declared(*given):
    """Return an optimizer that averages its gradient in each of its slots, and moves along the first."""

    @dataclass(frozen=True)
    class Averages(Declaration):
        slots = given

        def scalars(self, roles, strategy, step, rate, *, decayed):
            return Rate(rate)

        def entering(self):
            return {}

        def step(self, roles, strategy, state, gradient, scalars):
            new = {}
            for name, ar in (("m", roles.moments), ("v", roles.second_moment)):
                if self.keeps(name):
                    new[name] = average_of(ar, getattr(state, name), ar.round(gradient), scalars)
            update = roles.update.mul(new["m"][0], -scalars.rate)
            parameter, extra = move(roles, strategy, state, update)
            return Step(State(parameter, new["m"], new.get("v", ()), extra), update)

    return Averages


class Rate(NamedTuple):
    rate: float
