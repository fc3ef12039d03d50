"""The scaling law for precision: as published, and its constants found again in losses that follow it."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import f as f_distribution

from experiments.scaling_law import (
    PUBLISHED,
    PUBLISHED_FLOAT_WEIGHTS,
    Effective,
    PrecisionLaw,
    fit,
    share_band,
)
from tests.shared.refusals import check, refusals, refused

SIZES, BITS = np.repeat([3e3, 1e4, 3e4, 1e5], 7), np.tile([4, 5, 6, 7, 8, 10, math.inf], 4)
SAME = np.full(28, 4.0)
TRUE = {"a": 0.6, "alpha": 0.4, "floor": 2.0, "gamma": 1.5, "offset": 0.8}


def law(size, bits, a, alpha, floor, gamma, offset):
    """Return the law by its formula; sizes in units of their geometric mean."""
    unit = np.exp(np.log(SIZES).mean())
    return a * (size / unit * (1 - np.exp(-bits / gamma + offset))) ** -alpha + floor


def test_what_is_published():
    """Four bits leave these shares; seven are best, and half of that without offsets."""
    kinds = PUBLISHED.kinds
    without = {name: Effective(kind.gamma) for name, kind in kinds.items()}
    best = [round(law.best_bits(), 1) for law in (PUBLISHED, replace(PUBLISHED, kinds=without))]
    assert best == [7.0, 3.5]
    for kind, share in (("weights", 0.70), ("activations", 0.33), ("kv", 0.83)):
        found = float(kinds[kind].share(4))
        assert round(found, 2) == share
        assert float(PUBLISHED.effective_parameters(1e8, **{kind: 4})) == pytest.approx(1e8 * found)
        for bits in (2.5, 3, 4, 8, 16, 32):
            power = -mpmath.mpf(bits) / mpmath.mpf(kinds[kind].gamma) + mpmath.mpf(kinds[kind].offset)
            exact = max(float(1 - mpmath.exp(power)), 0.0)
            assert float(kinds[kind].share(bits)) == pytest.approx(exact, rel=1e-14)
    assert PUBLISHED_FLOAT_WEIGHTS.share(8) == pytest.approx(1 - math.exp(-8 / 2.8111 + 0.1240))


def test_where_no_parameter_is_left_the_loss_is_infinite():
    assert PUBLISHED.kinds["activations"].share(3) == 0
    assert PUBLISHED.loss(1e8, 1e10, activations=3) == math.inf
    exact = PUBLISHED.loss(1e8, 1e10)
    assert exact == pytest.approx(4.299e3 * 1e8**-0.4965 + 1.806e4 * 1e10**-0.4965 + 2.7648)
    assert PUBLISHED.loss(1e8, 1e10, weights=math.inf, activations=math.inf) == exact
    losses = PUBLISHED.loss(1e8, [1e9, 1e10, math.inf], weights=[3, 4, 16])
    assert losses.shape == (3,)
    assert (np.diff(losses) < 0).all()


@pytest.mark.slow
def test_the_optimum_is_that_of_a_fine_grid():
    rng, grid = np.random.default_rng(0), np.arange(1, 40_000) / 1000
    for _ in range(10):
        count = rng.integers(1, 4)
        kinds = {f"k{i}": Effective(rng.uniform(0.3, 4), rng.uniform(-1, 2.5)) for i in range(count)}
        worth = np.prod([1 - np.exp(-grid / k.gamma + k.offset) for k in kinds.values()], axis=0) / grid
        worth[np.any([grid <= k.gamma * k.offset for k in kinds.values()], axis=0)] = 0
        best = grid[worth.argmax()]
        if worth.argmax() > 60:  # else the fewest bits of all are best, and there is no optimum
            assert PrecisionLaw(1, 1, 1, 0.5, kinds).best_bits() == pytest.approx(best, abs=2e-3)


@pytest.mark.slow
def test_constants_are_found_again():
    found = fit(SIZES, BITS, law(SIZES, BITS, **TRUE))
    assert {name: item.value for name, item in found.constants.items()} == pytest.approx(TRUE, rel=1e-6)
    assert found.residual < 1e-9
    for bits in (9, math.inf):
        assert found.predict(2e5, bits) == pytest.approx(law(2e5, bits, **TRUE))


@pytest.mark.slow
@pytest.mark.sampled(2, each=False)
@pytest.mark.parametrize("confidence", [0.68, 0.95])
def test_the_ends_of_intervals_are_where_the_profile_crosses(confidence):
    """By curve_fit: with a constant held just inside the sum of squares is in the limit, just outside not."""
    losses = law(SIZES, BITS, **TRUE) + np.random.default_rng(1).normal(0, 0.01, SIZES.size)
    found = fit(SIZES, BITS, losses, confidence)
    values = {name: item.value for name, item in found.constants.items()}
    least = np.square(law(SIZES, BITS, **values) - losses).sum()
    limit = least * (1 + f_distribution.ppf(confidence, 1, SIZES.size - 5) / (SIZES.size - 5))
    for name, item in found.constants.items():
        assert item.low < item.value < item.high
        for end in (item.low, item.high):
            for sign in (-1, 1):
                held = end + sign * 0.01 * (end - item.value)
                assert (squares({name: held}, values, losses) > limit) == (sign > 0), (name, end)


@pytest.mark.slow
@pytest.mark.sampled(2, each=False)
@pytest.mark.parametrize("confidence", [0.68, 0.95])
@pytest.mark.exhaustive
def test_the_band_of_shares_is_what_pairs_of_gamma_and_offset_in_their_region_reach(confidence):
    """By curve_fit for every pair of a grid: all in the region are in the band, and some near each end."""
    losses, at = law(SIZES, BITS, **TRUE) + np.random.default_rng(1).normal(0, 0.01, SIZES.size), [4, 5.5, 8]
    low, high = share_band(SIZES, BITS, losses, at, confidence)
    values = {name: item.value for name, item in fit(SIZES, BITS, losses).constants.items()}
    least = np.square(law(SIZES, BITS, **values) - losses).sum()
    limit = least * (1 + 2 * f_distribution.ppf(confidence, 2, SIZES.size - 5) / (SIZES.size - 5))
    reached = []
    for gamma in values["gamma"] * np.linspace(0.6, 1.6, 41):
        for exponent in np.log(1 - np.linspace(low[0] - 0.02, high[0] + 0.02, 41)):
            held = {"gamma": gamma, "offset": exponent + 4 / gamma}
            if squares(held, values, losses) <= limit:
                reached.append(Effective(**held).share(at))
    assert (np.min(reached, axis=0) >= low - 1e-4).all()
    assert (np.max(reached, axis=0) <= high + 1e-4).all()
    assert np.ptp(reached, axis=0) == pytest.approx(high - low, rel=0.1)


def squares(held, values, losses):
    """Return the least sum of squares with some constants held."""
    others = [other for other in values if other not in held]

    def model(_, *rest):
        return law(SIZES, BITS, **dict(zip(others, rest, strict=True)), **held)

    best, _ = curve_fit(model, SIZES, losses, [values[other] for other in others], maxfev=20_000)
    return np.square(model(None, *best) - losses).sum()


@pytest.mark.slow
def test_a_constant_that_nothing_bounds_has_no_end():
    """At ten bits and more the precision does nothing, and gamma may be as small as it likes."""
    bits = np.tile([10, 11, 12, 13, 14, 16, math.inf], 4)
    noise = np.random.default_rng(2).normal(0, 0.02, SIZES.size)
    found = fit(SIZES, bits, law(SIZES, bits, **TRUE) + noise).constants
    assert (found["gamma"].low, found["offset"].low) == (0, -math.inf)


def fitted(name, x):
    fit(**{"sizes": SIZES, "bits": BITS, "losses": SIZES} | {name: x})


@refusals(
    refused(ValueError, "do not belong together", fitted, ("sizes", SIZES[:-1])),
    refused(ValueError, "must be positive", fitted, ("sizes", -SIZES), ("bits", np.full(28, math.nan))),
    refused(ValueError, "finite", fitted, ("losses", np.full(28, math.inf))),
    refused(ValueError, "two sizes and three precisions", fitted, ("sizes", SAME), ("bits", SAME)),
    refused(ValueError, "confidence", fitted, ("confidence", 1)),
    refused(ValueError, "positive and finite", lambda x: share_band(SIZES, BITS, SIZES, [x]), 0, math.inf),
    refused(ValueError, "gamma", Effective, 0, -1, math.nan, math.inf),
    refused(ValueError, "bits must be positive", Effective(1.0).share, 0, -3, math.nan),
    refused(
        ValueError, "known kinds: weights, activations, kv", lambda x: PUBLISHED.loss(x, x, gradients=4), 1e8
    ),
)
def test_what_makes_no_sense_is_refused(rows):
    check(rows)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_what_a_seed_has_in_common_is_taken_out():
    """The same constants as without any seed's own part, and narrower intervals than where it is noise."""
    rng, seeds = np.random.default_rng(3), np.repeat([0, 1, 2], 28)
    sizes, bits = np.tile(SIZES, 3), np.tile(BITS, 3)
    losses = law(sizes, bits, **TRUE) + rng.normal(0, 0.002, sizes.size)
    parts = {(size, seed): rng.normal(0, 0.1) for size in set(SIZES) for seed in range(3)}
    for size in set(SIZES):  # what is left of their mean would be the size's
        parts[size, 0] -= sum(parts[size, seed] for seed in range(3))
    common = np.array([parts[key] for key in zip(sizes, seeds, strict=True)])
    alone, noisy = fit(sizes, bits, losses, seeds=seeds), fit(sizes, bits, losses + common)
    together = fit(sizes, bits, losses + common, seeds=seeds)
    for name, item in together.constants.items():
        assert (item.low, item.value, item.high) == pytest.approx(
            [getattr(alone.constants[name], end) for end in ("low", "value", "high")], rel=1e-5
        )
        assert item.low < TRUE[name] < item.high
        assert noisy.constants[name].low < item.low < item.high < noisy.constants[name].high
    for wrong, why in ((seeds[:-1], "83 seeds"), ([0, *seeds[1:-1], 3], "the same precisions")):
        with pytest.raises(ValueError, match=why):
            fit(sizes, bits, losses, seeds=list(wrong))
