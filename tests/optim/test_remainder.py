"""Master copies as remainders, and errors that are fed back: by fractions, and at their edges."""

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.optim.remainder import remaining
from mcfsim.optim.state import error_weight


def test_beyond_the_range_it_is_no_number():
    x = np.array([70000.0, np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        theta = mcf.round_to(x, "float16").astype(np.float32)
        left = remaining(mcf.arithmetic("float32"), mcf.get_format("float16"), 8, x, theta)
    assert np.isnan(left).all()


@pytest.mark.parametrize("hyper", [mcf.AdamW(beta1=0.0), mcf.SGD(0.0), mcf.AdamW(), mcf.SGD()], ids=str)
def test_nothing_is_fed_back_without_momentum_or_rate(hyper):
    rates = (0.0, 1e-2) if getattr(hyper, "beta1", getattr(hyper, "momentum", 0.0)) == 0 else (0.0,)
    for rate in rates:
        ends = []
        for name in ("eco", "fp32-optim"):
            optimizer = mcf.Optimizer(hyper, mcf.strategy(name), {"w": np.linspace(-1, 1, 9)})
            for step in range(3):
                optimizer.step(optimizer.receive({"w": np.linspace(1, 2, 9) / (step + 1)}), rate)
            ends.append([x.tolist() for x in (*optimizer.state.m, *optimizer.state.v)])
        assert ends[0] == ends[1]


def test_errors_over_hardly_any_rate_are_refused():
    with pytest.raises(ValueError, match=r"'eco' feeds errors back over the learning rate: not over 5e-324"):
        error_weight(mcf.strategy("eco"), -0.1, 5e-324)
    assert error_weight(mcf.strategy("plain"), -0.1, 5e-324) == 0.0
