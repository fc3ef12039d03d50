"""Master copies as remainders, and errors that are fed back: by fractions, and at their edges."""

import math
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.optim.remainder import remaining
from mcfsim.optim.state import error_weight
from mcfsim.optim.strategies import FLOAT32
from mcfsim.oracle import round_fraction
from mcfsim.scaled.quantisers import DynamicMap, RangeExpansion

SIGNED, UNSIGNED = DynamicMap("signed", signed=True), DynamicMap("unsigned", signed=False)
EXPANDED = RangeExpansion("expanded")
BFLOAT16 = mcf.get_format("bfloat16")


# -- remainders ----------------------------------------------------------------------------------------------
def judged(x, low, bits):
    """Return what theta and rho say of a number, in fractions, by the documented formula."""
    most, x = 2 ** (bits - 1) - 1, Fraction(x)
    theta = Fraction(round_fraction(x, low))
    exponent = max(math.frexp(float(theta))[1] - 1, low.emin) if theta else low.emin
    half = Fraction(2) ** (exponent - low.precision)
    share = Fraction(round_fraction((x - theta) / half * most, FLOAT32))
    rho = min(math.floor(abs(share) + Fraction(1, 2)), most) * (1 if share >= 0 else -1)
    step = Fraction(round_fraction(Fraction(round_fraction(Fraction(rho, most), FLOAT32)) * half, FLOAT32))
    return float(round_fraction(theta + step, FLOAT32)), rho


def numbers(low):
    """Return numbers of all binades of a format, between two of its numbers, at ties and beside them."""
    rng = np.random.default_rng(5)
    spread = rng.choice([-1, 1], 400) * np.ldexp(
        rng.uniform(1, 2, 400), rng.integers(low.emin, low.emax, 400)
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
    assert left.tolist() == [judged(float(number), low, bits)[0] for number in x]
    assert (np.abs(left - x) <= np.abs(x - theta)).all()


def test_it_holds_what_it_says_again():
    """What is read back gives the same parameter and the same remainder: nothing is lost a second time."""
    ar, x = mcf.arithmetic("float32"), numbers(BFLOAT16)
    for bits in (8, 16):
        once = remaining(ar, BFLOAT16, bits, x, mcf.round_to(x, BFLOAT16).astype(np.float32))
        theta = mcf.round_to(once, BFLOAT16).astype(np.float32)
        again = remaining(ar, BFLOAT16, bits, once, theta)
        settled = theta == mcf.round_to(x, BFLOAT16)
        assert settled.mean() > 0.9  # the others lay next to a tie
        assert (again == once)[settled].all()


def test_a_remainder_has_the_values_that_its_bits_have():
    x = np.float32(1) + np.arange(-(1 << 15), 1 << 15, dtype=np.float32) * np.float32(2.0**-23)
    theta = np.ones_like(x)
    for bits, most in ((2, 1), (4, 7), (8, 127)):
        inside = np.abs(x - 1) <= 2.0**-9  # next to 1, below which bfloat16 is twice as fine
        found = remaining(mcf.arithmetic("float32"), BFLOAT16, bits, x[inside], theta[inside])
        assert np.unique(found).size <= 2 * most + 1
        assert {judged(float(number), BFLOAT16, bits)[1] for number in x[inside][::999]} <= {
            *range(-most, most + 1)
        }


def test_sixteen_bits_name_nearly_every_master_copy():
    """As the page says: 50 of those about a number are off by a bit, and half of those below 1."""
    ar = mcf.arithmetic("float32")
    for middle, first, last, wrong in ((1.5, -(1 << 15), 1 << 15, 50), (1.0, -(1 << 15), 0, 1 << 14)):
        codes = np.arange(first + 1, last, dtype=np.int64) + int(np.float32(middle).view(np.int32))
        x = codes.astype(np.int32).view(np.float32)
        theta = mcf.round_to(x, BFLOAT16).astype(np.float32)
        assert (theta == middle).all()
        apart = remaining(ar, BFLOAT16, 16, x, theta).view(np.int32) - codes
        assert np.abs(apart).max() == 1
        assert np.count_nonzero(apart) == wrong


def test_beyond_the_range_it_is_no_number():
    low = mcf.get_format("float16")
    for x in (70000.0, np.inf, np.nan):
        given = np.array([x], np.float32)
        with np.errstate(all="ignore"):
            theta = mcf.round_to(given, low).astype(np.float32)
            assert np.isnan(remaining(mcf.arithmetic("float32"), low, 8, given, theta)).all()


# -- errors fed back -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("hyper", [mcf.AdamW(0.9, 0.99, 1e-6, 0.1), mcf.SGD(0.9, 0.1)], ids=["adamw", "sgd"])
@pytest.mark.slow
def test_what_is_lost_is_made_up_for_in_steps_to_come(hyper):
    """A steady update that nearest loses moves nothing; with feedback, all but a bounded rest arrives."""
    moved, rate = {}, 2.0**-9 / (1 if isinstance(hyper, mcf.AdamW) else 10)
    for name in ("fp32-optim", "eco", "fp32-master"):
        optimizer = mcf.Optimizer(hyper, mcf.strategy(name), {"w": np.ones(1)})
        for _ in range(500):
            optimizer.step(np.full(1, -1.0, np.float32), rate)
        moved[name] = float(optimizer.weights()["w"][0]) - 1
    assert moved["fp32-optim"] == 0
    assert abs(moved["eco"] - moved["fp32-master"]) <= 20 * 2.0**-8 < moved["fp32-master"] / 10


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
