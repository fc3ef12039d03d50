"""Learning rates at the turns of a schedule."""

import math
from fractions import Fraction

import mpmath
import pytest

from mcfsim import Schedule

STEPS = 300


@pytest.mark.parametrize("warmup", [1, 3, 7, 49, 50])
@pytest.mark.parametrize("peak", [3e-4, 7e-4, 0.1, 1 / 3])
def test_warmup_is_linear_and_ends_at_the_peak_exactly(peak, warmup):
    schedule = Schedule(peak, warmup)
    rates = [schedule.rate(t, STEPS) for t in range(1, STEPS + 1)]
    assert rates[0] == peak / warmup
    for t in range(1, warmup + 1):
        assert abs(Fraction(rates[t - 1]) / (Fraction(peak) * t / warmup) - 1) < Fraction(1, 2**51)
    assert rates[warmup - 1] == max(rates) == peak
    assert all(later < earlier for earlier, later in zip(rates[warmup - 1 :], rates[warmup:], strict=False))


@pytest.mark.parametrize("final", [0.0, 0.1, 0.3, 0.5])
def test_cosine(final):
    schedule = Schedule(1.0, 100, final)
    assert schedule.rate(300, 300) == final
    assert schedule.rate(200, 300) == pytest.approx((1 + final) / 2, rel=1e-15)
    for t in (101, 150, 299):
        with mpmath.workdps(40):
            half = (1 + mpmath.cospi(mpmath.mpf(t - 100) / 200)) / 2
            assert abs(schedule.rate(t, 300) - (final + (1 - mpmath.mpf(final)) * half)) < 1e-15


def test_final_one_is_constant_after_warmup():
    schedule = Schedule(0.1, 2, 1.0)
    assert [schedule.rate(t, 5) for t in range(1, 6)] == [0.05, 0.1, 0.1, 0.1, 0.1]


def test_without_warmup_the_cosine_begins_at_once():
    schedule = Schedule(0.1, 0, 0.0)
    assert schedule.rate(1, 2) == pytest.approx(0.05, rel=1e-15)
    assert schedule.rate(2, 2) == 0.0
    assert schedule.rate(1, 1) == 0.0


def test_a_run_may_end_during_warmup():
    schedule = Schedule(1.0, 10)
    assert [schedule.rate(t, 4) for t in range(1, 5)] == [0.1, 0.2, 0.3, 0.4]
    assert schedule.rate(10, 10) == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"peak": 0.0}, "peak = 0.0 must be positive"),
        ({"peak": math.nan}, "peak = nan must be finite"),
        ({"warmup": -1}, "warmup = -1 must not be negative"),
        ({"final": -0.1}, r"final = -0.1 must lie in \[0, 1\]"),
        ({"final": 1.5}, r"final = 1.5 must lie in \[0, 1\]"),
        ({"final": math.nan}, "final = nan"),
    ],
)
def test_what_is_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**arguments)
