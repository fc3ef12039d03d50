"""Master copies as remainders, and errors that are fed back: by fractions, and at their edges."""

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.optim.remainder import remaining
from mcfsim.optim.state import error_weight

from .reference import left_of

# -- remainders ----------------------------------------------------------------------------------------------


def numbers(low):
    """Return numbers of all binades of a format, between two of its numbers, at ties and beside them."""
    rng = np.random.default_rng(5)
    spread = rng.choice([-1, 1], 150) * np.ldexp(
        rng.uniform(1, 2, 150), rng.integers(low.emin, low.emax, 150)
    )
    ties = 1 + (2 * np.arange(20) + 1) * 2.0**-low.precision
    tiny = float(low.smallest_subnormal) * np.array([0, -0.0, 0.25, 0.5, 0.75, 1, 1.5, 7.25])
    around = np.concatenate([ties, np.nextafter(np.float32(ties), np.float32(9)), -ties, tiny])
    return np.concatenate([spread, around]).astype(np.float32)


@pytest.mark.parametrize("low", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"])
@pytest.mark.parametrize("bits", [2, 8, 16])
def test_a_remainder_says_what_the_formula_says(low, bits):
    low = mcf.get_format(low)
    x = numbers(low)
    theta = mcf.round_to(x, low).astype(np.float32)
    left = remaining(mcf.arithmetic("float32"), low, bits, x, theta)
    pairs = zip(x.tolist(), theta.tolist(), strict=True)
    assert left.tolist() == [left_of(*pair, low, 2 ** (bits - 1) - 1) for pair in pairs]
    assert (np.abs(left - x) <= np.abs(x - theta)).all()


def test_beyond_the_range_it_is_no_number():
    x = np.array([70000.0, np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        theta = mcf.round_to(x, "float16").astype(np.float32)
        left = remaining(mcf.arithmetic("float32"), mcf.get_format("float16"), 8, x, theta)
    assert np.isnan(left).all()


# -- errors fed back -----------------------------------------------------------------------------------------


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
