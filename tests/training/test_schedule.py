"""Learning rates: those of the formula, in mpmath, at every step; and what is no schedule."""

import math
from itertools import pairwise

import mpmath
import pytest

from mcfsim import Schedule


def formula(schedule, step, steps):
    """Return the rate that is documented, to 40 digits."""
    peak, warmup, final = map(mpmath.mpf, (schedule.peak, schedule.warmup, schedule.final))
    if step <= warmup:
        return peak * step / warmup
    with mpmath.workdps(40):
        half = (1 + mpmath.cospi((step - warmup) / (steps - warmup))) / 2
        return peak * (final + (1 - final) * half)


@pytest.mark.parametrize("final", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("warmup", [0, 1, 3, 7, 50, 400])
@pytest.mark.parametrize("peak", [3e-4, 0.1, 1 / 3])
@pytest.mark.sampled(6)
def test_rates_are_those_of_the_formula(peak, warmup, final):
    schedule, steps = Schedule(peak, warmup, final), 300
    rates = [schedule.rate(step, steps) for step in range(1, steps + 1)]
    with mpmath.workdps(40):
        for step, rate in enumerate(rates, start=1):
            assert abs(rate - formula(schedule, step, steps)) <= 2e-15 * peak, step
    if 0 < warmup <= steps:  # exactly, at its ends
        assert rates[0] == peak / warmup
        assert rates[warmup - 1] == max(rates) == peak
    if warmup < steps:
        assert rates[-1] == pytest.approx(final * peak, rel=1e-15, abs=0)
        assert all(later < earlier or final == 1 for earlier, later in pairwise(rates[max(warmup, 1) - 1 :]))


def test_of_one_step_the_last_is_the_first():
    assert Schedule(0.1, 0, 0.0).rate(1, 1) == 0
    assert [Schedule(1.0, 2).rate(step, 2) for step in (1, 2)] == [0.5, 1.0]


def test_every_rate_of_every_schedule_is_finite():
    for peak in (5e-324, 1.0, 1.7e308):
        for warmup in (0, 1, 10, 10**6):
            schedule = Schedule(peak, warmup)
            assert all(0 <= schedule.rate(step, 20) <= peak for step in range(1, 21))


def test_what_is_out_of_range():
    for given, message in (
        ({"peak": 0.0}, "peak = 0.0 must be positive"),
        ({"peak": math.nan}, "peak = nan must be finite"),
        ({"warmup": -1}, "warmup = -1 must not be negative"),
        ({"final": -0.1}, r"final = -0.1 must lie in \[0, 1\]"),
        ({"final": 1.5}, r"final = 1.5 must lie in \[0, 1\]"),
        ({"final": math.nan}, "final = nan"),
    ):
        with pytest.raises(ValueError, match=message):
            Schedule(**given)
    for step, message in ((11, "step = 11 is beyond the last of 10"), (0, "step = 0 must be at least 1")):
        with pytest.raises(ValueError, match=message):
            Schedule().rate(step, 10)
