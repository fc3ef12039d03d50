"""AdamW with PyTorch's rounding points, without PyTorch: its scalars, and what it loses."""

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.plan import Plan
from mcfsim.optim.torchadamw import TorchAdamW
from mcfsim.training.schedule import Schedule


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
