"""Moments that are kept in blocks with a scale each: by the judge, wherever they are made, and their trap."""

from dataclasses import replace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.optim.strategies import Stored
from mcfsim.scaled import ScaledFormat

from .reference import Element, kept

E4M3 = mcf.get_format("float8_e4m3fn")
WHOLE = ScaledFormat("whole", element=E4M3, block=None, scale="float32", rule="absmax")
#: Tensors of several blocks, of a part of one, of one element and of none, on both sides of the decayed edge.
SIZES = {"w": 300, "b": 128, "c": 5, "s": 1, "e": 0}
DECAYED = {"w", "s"}
HYPER = mcf.AdamW(0.9, 0.95, 1e-8, 0.1)


def gradients(step):
    random = np.random.default_rng(step)
    return {
        name: (random.standard_normal(size) * 2.0 ** random.integers(-14, 1, size)).astype(np.float32)
        for name, size in SIZES.items()
    }


def trained(strategy="fp8-moments", steps=4, start=None, **options):
    start = start or gradients(100)
    optimizer = mcf.Optimizer(HYPER, mcf.strategy(strategy), start, DECAYED, **options)
    for step in range(steps):
        optimizer.step(optimizer.receive(gradients(step)), 2.0**-7)
    return optimizer


@pytest.mark.parametrize("block", [128, None], ids=["groups", "tensors"])
@pytest.mark.slow
def test_moments_are_those_of_the_judge(block):
    strategy = mcf.strategy("fp8-moments")
    if block is None:
        moment = Stored("float32", scaled=WHOLE)
        strategy = replace(strategy, m=moment, v=moment)
    low = strategy.parameter.format
    start = {name: mcf.round_to(x, low) for name, x in gradients(100).items()}
    optimizer = mcf.Optimizer(HYPER, strategy, start, DECAYED)
    elements = {name: [Element("fp8-moments", low, float(x)) for x in start[name]] for name in SIZES}
    for step in range(3):
        given = {name: mcf.round_to(x, low) for name, x in gradients(step).items()}
        for name, part in elements.items():
            decay = 0.1 if name in DECAYED else 0.0
            for element, g in zip(part, given[name].tolist(), strict=True):
                element.adamw(g, 2.0**-7, 0.9, 0.95, 1e-8, decay)
            for moment in "mv":
                numbers = kept([getattr(x, moment) for x in part], E4M3, block or max(1, len(part)))
                for element, number in zip(part, numbers, strict=True):
                    setattr(element, moment, number)
        optimizer.step(optimizer.receive(given), 2.0**-7)
        for label, vectors in optimizer.state._asdict().items():
            for name, vector in optimizer.layout.split(vectors[0]).items():
                assert vector.tolist() == [x.state()[label][0] for x in elements[name]]


@pytest.mark.parametrize("options", [{"compiled": False}, {"threads": 2}, {}], ids=str)
def test_bits_depend_on_no_blocks_and_no_threads(options, monkeypatch, assert_same):
    expected = trained()
    monkeypatch.setattr("mcfsim.optim.memory.BLOCK", 200)
    monkeypatch.setattr("mcfsim.optim.optimizer.BLOCK", 77)
    found = trained(**options)
    for mine, other in zip(found.state, expected.state, strict=True):
        assert_same(mine[0], other[0])


def test_what_is_kept_stays_as_it_is():
    optimizer = trained()
    for (vector,) in (optimizer.state.m, optimizer.state.v):
        for tensor in optimizer.layout.split(vector).values():
            assert tensor.tolist() == kept(tensor, E4M3, 128)


def test_a_small_v_beside_a_large_one_is_lost_and_epsilon_alone_divides():
    """The ratio of two v is the square of the gradients': what m still has, v has not."""
    start = {"w": np.zeros(2)}
    made = {
        name: mcf.Optimizer(mcf.AdamW(0.5, 0.5, 1e-8, 0.0), mcf.strategy(name), start)
        for name in ("fp32-master", "fp8-moments")
    }
    asked = {}
    for name, optimizer in made.items():
        optimizer.step(np.array([1.0, 2.0**-10], np.float32), 1e-3)
        asked[name] = optimizer.step(np.array([1.0, 0.0], np.float32), 1e-3)
    (m,), (v,) = made["fp8-moments"].state.m, made["fp8-moments"].state.v
    assert v[1] == 0 < made["fp32-master"].state.v[0][1]
    assert m[1] > 0
    assert abs(asked["fp32-master"][1]) < 1e-3
    assert abs(asked["fp8-moments"][1]) > 10
    apart = mcf.Optimizer(mcf.AdamW(), mcf.strategy("fp8-moments"), {"a": np.zeros(1), "b": np.zeros(1)})
    apart.step(np.array([1.0, 2.0**-10], np.float32), 1e-3)
    assert (apart.state.v[0] > 0).all()  # in tensors of their own


def test_a_number_that_is_not_finite_spoils_its_block_alone():
    optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy("fp8-moments"), {"w": np.ones(300)})
    gradient = np.ones(300, np.float32)
    gradient[130] = np.inf
    optimizer.step(gradient, 1e-3)
    for (vector,) in (optimizer.state.m, optimizer.state.v):
        assert np.isnan(vector).tolist() == [128 <= i < 256 for i in range(300)]
