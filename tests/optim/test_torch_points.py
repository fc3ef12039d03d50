"""AdamW with PyTorch's rounding points, without PyTorch: by the judge, and in exact arithmetic."""

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.plan import Plan
from mcfsim.optim.torchadamw import TorchAdamW
from mcfsim.training.schedule import Schedule
from tests.shared.kinds import LEADING, STORED

from .reference import Element
from .test_declarations import assert_judged

HYPERS = [
    TorchAdamW(0.9, 0.95, 1e-4, 0.1),
    TorchAdamW(0.375, 0.999, 1e-4, 0.0),
    TorchAdamW(0.0, 0.0, 1e-3, 0.5),
]
JUDGED = (
    "plain",
    "kahan",
    "collage-light",
    "collage-plus",
    "fp32-optim",
    "fp32-master",
    "split-master",
    "split-truncated",
    "remainder-8",
    "fp32",
)


@pytest.mark.parametrize("hyper", HYPERS, ids=str)
@pytest.mark.parametrize("low", ["bfloat16", "float16", "float8_e5m2"])
@pytest.mark.parametrize("strategy", JUDGED)
@pytest.mark.sampled(8)
def test_a_step_is_the_formula_by_the_judge(strategy, low, hyper):
    if strategy in LEADING and low != "bfloat16":
        return
    random = np.random.default_rng(4)
    start = mcf.round_to(random.standard_normal(8), low)
    ours = mcf.Optimizer(hyper, mcf.strategy(strategy, low), {"w": start}, {"w"})
    fmt = mcf.get_format("float32" if strategy == "fp32" else low)
    one = "plain" if strategy == "fp32" else strategy
    alone = [Element(one, fmt, float(x)) for x in ours.state.parameter[0]]
    for t in range(1, 8):
        gradient = ours.receive({"w": random.standard_normal(8) * 2.0 ** random.integers(-9, 3, 8)})
        gradient[t % 8] = 0
        ours.step(gradient, 2.0**-7 / t)
        for x, g in zip(alone, gradient.tolist(), strict=True):
            x.by_torch_points(g, 2.0**-7 / t, hyper.beta1, hyper.beta2, hyper.epsilon, hyper.weight_decay)
        for part, stored in ours.state._asdict().items():
            expected = np.array([x.state()[part] for x in alone], np.float64).reshape(8, -1).T
            np.testing.assert_array_equal(np.float64(stored).reshape(expected.shape), expected)


@pytest.mark.parametrize("rounding", ["nearest_even", "up", "toward_zero"])
@pytest.mark.parametrize("strategy", [name for name in STORED if name != "eco"])
@pytest.mark.sampled(8)
def test_the_text_is_the_oracle_s_in_every_strategy_and_mode(strategy, rounding):
    assert_judged(HYPERS[0], mcf.strategy(strategy), rounding)


def test_in_exact_numbers_it_is_adamw():
    random = np.random.default_rng(2)
    start, gradients = random.standard_normal(6), random.standard_normal((5, 6))
    found = []
    for kind in (mcf.AdamW, TorchAdamW):
        optimizer = mcf.Optimizer(kind(0.9, 0.95, 1e-8, 0.1), mcf.strategy("exact"), {"w": start}, {"w"})
        for gradient in gradients:
            update = optimizer.step(optimizer.receive({"w": gradient}), 2.0**-6)
        found.append([*update, *optimizer.state.parameter[0], *optimizer.state.m[0], *optimizer.state.v[0]])
    # What differs are scalars that are made of others in binary64, as lr lambda.
    assert max(abs(a - b) for a, b in zip(*found, strict=True)) < 2.0**-50


@pytest.mark.parametrize(("strategy", "moves"), [("plain", False), ("collage-light", True), ("kahan", True)])
def test_a_small_decay_is_lost_where_nothing_compensates_it(strategy, moves):
    """In bf16 the number 1 - lr lambda changes nothing that it multiplies if lr lambda < 2^-9."""
    optimizer = mcf.Optimizer(TorchAdamW(weight_decay=0.1), mcf.strategy(strategy), {"w": np.ones(3)}, {"w"})
    for _ in range(4):
        update = optimizer.step(optimizer.receive({"w": np.zeros(3)}), 1e-2)
        assert (update < 0).all()
    total = sum(np.asarray(item, np.float64) for item in optimizer.represented())
    assert (total < 1).all() == moves


def test_scalars_enter_as_numbers_of_binary32_and_epsilon_as_one_of_v():
    chosen = mcf.strategy("plain", "float16")
    scalars = TorchAdamW(0.9, 0.999, 1e-4, 0.1).scalars(chosen.roles(), chosen, 3, 1e-3, decayed=True)

    def single(x):
        return float(np.float32(x))

    assert scalars.near == single(1 - 0.9) != 1 - 0.9
    assert (scalars.far, scalars.beta2, scalars.gain2) == (0.0, single(0.999), single(1 - 0.999))
    assert scalars.root2 == single((1 - 0.999**3) ** 0.5)
    assert scalars.epsilon == float(np.float16(1e-4)) != single(1e-4)
    assert (scalars.kept, scalars.decay) == (single(1 - 1e-4), single(1e-3 * 0.1))
    assert scalars.size == single(1e-3 / (1 - 0.9**3))
    far = TorchAdamW(0.25).scalars(chosen.roles(), chosen, 1, 1e-3, decayed=False)
    assert (far.near, far.far, far.kept, far.decay) == (0.0, -0.25, 1.0, 0.0)


def test_an_epsilon_that_vanishes_in_v_is_told_of():
    with pytest.warns(mcf.VanishingScalarWarning, match=r"epsilon = 1e-08 is zero in float16"):
        mcf.Optimizer(TorchAdamW(), mcf.strategy("plain", "float16"), {"w": np.ones(2)})


def test_an_audit_is_of_the_other_points():
    with pytest.raises(TypeError, match=r"an audit is of mcfsim.AdamW\(...\), not of TorchAdamW\(beta1=0.9"):
        Plan(TorchAdamW(), Schedule(), 10, (mcf.strategy("plain"),))
