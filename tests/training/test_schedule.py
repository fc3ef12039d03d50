"""Learning rates: those of the formula, in mpmath, at every step. See `test_training_input` for refusals."""

from itertools import pairwise

import mpmath
import pytest

from mcfsim import Schedule

LEAST = 5e-324


def formula(schedule, step, steps):
    """Return the rate that is documented."""
    peak, warmup, final = map(mpmath.mpf, (schedule.peak, schedule.warmup, schedule.final))
    if step <= warmup:
        return peak * step / warmup
    return peak * (final + (1 - final) * (1 + mpmath.cospi((step - warmup) / (steps - warmup))) / 2)


@pytest.mark.parametrize("final", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("warmup", [0, 1, 3, 7, 50, 10**6])
@pytest.mark.parametrize("peak", [3e-4, 0.1, 1 / 3, LEAST, 1.7e308])
@pytest.mark.sampled(6)
def test_rates_are_those_of_the_formula(peak, warmup, final):
    schedule = Schedule(peak, warmup, final)
    for steps in (1, 2, 3, 300):
        rates = [schedule.rate(step, steps) for step in range(1, steps + 1)]
        assert 0 <= min(rates) <= max(rates) <= peak
        with mpmath.workdps(40):
            for step, rate in enumerate(rates, start=1):
                assert abs(rate - formula(schedule, step, steps)) <= 2e-15 * peak + LEAST, step
        if 0 < warmup <= steps:  # exactly, at its ends
            assert rates[0] == peak / warmup
            assert rates[warmup - 1] == max(rates) == peak
        if warmup < steps:
            assert rates[-1] == pytest.approx(final * peak, rel=1e-15, abs=0)
            falling = pairwise(rates[max(warmup, 1) - 1 :])
            assert peak == LEAST or all(later < earlier or final == 1 for earlier, later in falling)
