"""Updates far below half a unit in the last place of the parameter: lost by plain, kept by the others."""

from fractions import Fraction

import numpy as np
import pytest

from mcfsim import SGD, AdamW, Optimizer, strategy
from mcfsim.training import metrics

COMPENSATED = ["kahan", "collage-light", "collage-plus"]
TINY = 2.0**-12  # half a unit in the last place below 1 is 2**-9 in bfloat16


def represented(optimizer):
    """Return the exact sum of the components of the first element."""
    return sum(Fraction(float(component[0])) for component in optimizer.represented())


def constant_updates(name, theta, update, steps):
    """Ask for the same update so many times: SGD without momentum at rate 1."""
    optimizer = Optimizer(SGD(0.0), strategy(name), {"w": np.array([theta])})
    positions = [represented(optimizer)]
    for _ in range(steps):
        assert optimizer.step(np.array([-update]), 1.0).tolist() == [update]
        positions.append(represented(optimizer))
    return optimizer, positions


@pytest.mark.parametrize("name", ["plain", "fp32-optim", *COMPENSATED])
@pytest.mark.parametrize("sign", [-1, 1])
def test_compensated_addition_alone_keeps_a_tiny_update_to_the_last_bit(name, sign):
    optimizer, positions = constant_updates(name, 1.0, sign * TINY, 40)
    if name not in COMPENSATED:
        assert set(positions) == {1}
        return
    assert positions == [1 + sign * t * Fraction(TINY) for t in range(41)]
    assert optimizer.weights()["w"][0] != 1.0  # and in time the model sees it


@pytest.mark.parametrize("name", ["plain", *COMPENSATED, "fp32-master"])
def test_lost_arithmetic_of_adamw_near_one(name):
    """Updates of about 2**-12 on parameters in [1, 2): plain loses them all."""
    random = np.random.default_rng(4)
    start = random.uniform(1, 2, 200)
    optimizer = Optimizer(AdamW(weight_decay=0.0), strategy(name), {"w": start})
    gradient = optimizer.receive({"w": random.standard_normal(200)})
    for _ in range(3):
        before = optimizer.represented()
        update = optimizer.step(gradient, TINY)
        effective = metrics.effective_update(before, optimizer.represented())
        lost = metrics.lost_fraction(update, effective)
        assert lost == (1.0 if name == "plain" else 0.0)
        if name != "plain":
            assert metrics.normalized_edq(update, effective) == pytest.approx(1, abs=2.0**-7)


@pytest.mark.slow
def test_a_bfloat16_second_moment_never_decays_and_an_expansion_does():
    """RN(.999 v) is v for every v in bfloat16."""
    ends = {}
    for name in ("collage-light", "collage-plus"):
        optimizer = Optimizer(AdamW(0.9, 0.999), strategy(name), {"w": np.ones(128)})
        leading = np.arange(128, 256) / 128.0
        optimizer.state.v[0][...] = leading
        for _ in range(100):
            optimizer.step(np.zeros(128), 0.0)
        ends[name] = np.sum(np.array(optimizer.state.v, dtype=np.float64), axis=0) / leading
    assert (ends["collage-light"] == 1).all()
    assert np.abs(ends["collage-plus"] / 0.999**100 - 1).max() < 100 * 5 * 2.0**-16
