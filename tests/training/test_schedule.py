"""Learning rates at the turns of a schedule."""

import math
from fractions import Fraction

import mpmath
import pytest

from mcfsim import Schedule


@pytest.mark.parametrize("warmup", [1, 3, 7, 50])
@pytest.mark.parametrize("peak", [3e-4, 7e-4, 0.1, 1 / 3])
def test_warmup_is_linear_and_ends_at_the_peak_exactly(peak, warmup):
    schedule = Schedule(peak, warmup)
    rates = [schedule.rate(t, 300) for t in range(1, 301)]
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


@pytest.mark.parametrize(
    ("schedule", "steps", "rates"),
    [
        (Schedule(0.1, 2, 1.0), 5, [0.05, 0.1, 0.1, 0.1, 0.1]),  # constant after the warmup
        (Schedule(0.1, 0, 0.0), 2, [pytest.approx(0.05, rel=1e-15), 0.0]),  # the cosine begins at once
        (Schedule(0.1, 0, 0.0), 1, [0.0]),
        (Schedule(1.0, 10), 4, [0.1, 0.2, 0.3, 0.4]),  # ends during the warmup
        (Schedule(1.0, 2), 2, [0.5, 1.0]),
    ],
)
def test_by_hand(schedule, steps, rates):
    assert [schedule.rate(t, steps) for t in range(1, steps + 1)] == rates


def test_every_rate_of_every_schedule_is_finite():
    for peak in (5e-324, 1.0, 1.7e308):
        for warmup in (0, 1, 10, 10**6):
            schedule = Schedule(peak, warmup)
            assert all(0 <= schedule.rate(step, 20) <= peak for step in range(1, 21))


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


def test_a_schedule_has_the_steps_of_its_run_only():
    with pytest.raises(ValueError, match="step = 11 is beyond the last of 10"):
        Schedule().rate(11, 10)
    with pytest.raises(ValueError, match="step = 0 must be at least 1"):
        Schedule().rate(0, 10)
