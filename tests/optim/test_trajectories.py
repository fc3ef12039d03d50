"""Whole trajectories of every strategy, bit for bit as the judge computes them one number at a time."""

import itertools
import zlib

import numpy as np
import pytest

from mcfsim import SGD, AdamW, Optimizer, get_format, strategy
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding

from .reference import Element

LOW_STRATEGIES = ["plain", "kahan", "collage-light", "collage-plus", "fp32-optim", "fp32-master", "eco"]
LOW_STRATEGIES += ["remainder-8", "remainder-16"]
BFLOAT16_STRATEGIES = [*LOW_STRATEGIES, "split-master", "split-truncated"]
DRAWING = ["stochastic-parameter", "stochastic"]
EXPANSION_FREE = ["plain", "fp32-optim", "fp32-master", "split-master", "split-truncated", "eco"]
EXPANSION_FREE += ["remainder-8", "stochastic-parameter"]
BETAS = [(0.9, 0.999), (0.9, 0.95), (0.3, 0.99), (0.0, 0.9999)]
STEPS = 50


def generator(*key):
    """Return random numbers that depend on the test's own parameters."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def start_values(random, fmt, elements):
    scalar = Element("plain", fmt, 0.0).low
    return [scalar.round(float(x)) for x in random.standard_normal(elements)]


def rates(peak):
    """Return a rate for every step: none of them, nor their ratios, a number of a low format."""
    return [peak * (1 - t / (2 * STEPS)) for t in range(STEPS)]


def assert_trajectory(optimizer, elements, gradients, peak, step_of):
    """Make every step twice and compare the update and all that is stored."""
    for rate, row in zip(rates(peak), gradients, strict=True):
        row = [elements[0].low.round(float(g)) for g in row]
        expected = [step_of(element, g, rate) for element, g in zip(elements, row, strict=True)]
        assert optimizer.step(np.array(row), rate).tolist() == expected
        for part, components in optimizer.state._asdict().items():
            expected = [element.state()[part] for element in elements]
            if part == "v" and not components:
                assert isinstance(optimizer.hyper, SGD)
            else:
                stored = np.array(components).reshape(-1, len(elements)).T
                assert stored.tolist() == [list(numbers) for numbers in expected]
    finals = np.array([element.theta for element in elements])
    assert np.isfinite(finals).all()
    return finals


@pytest.mark.parametrize(
    ("name", "scalars"),
    [
        *itertools.product(BFLOAT16_STRATEGIES, ["exact", "rounded"]),
        *((name, "exact") for name in DRAWING),  # the judge draws for values, not for scalars
    ],
)
@pytest.mark.parametrize("betas", BETAS, ids=str)
@pytest.mark.sampled(6)
def test_adamw_in_bfloat16(name, scalars, betas):
    fmt, random = get_format("bfloat16"), generator(name, scalars, betas)
    start = start_values(random, fmt, 2)
    gradients = random.standard_normal((STEPS, 2)) * 2.0 ** random.integers(-12, 1, (STEPS, 2))
    hyper = AdamW(*betas, epsilon=1e-8, weight_decay=0.1)
    optimizer = Optimizer(hyper, strategy(name, fmt), {"w": np.array(start)}, {"w"}, scalars=scalars)
    elements = [Element(name, fmt, theta, scalars, index=i) for i, theta in enumerate(start)]

    def step_of(element, g, rate):
        return element.adamw(g, rate, *betas, 1e-8, 0.1)

    finals = assert_trajectory(optimizer, elements, gradients, 0.01, step_of)
    assert (finals != start).any()


@pytest.mark.parametrize(
    ("name", "scalars"),
    [*itertools.product(LOW_STRATEGIES, ["exact", "rounded"]), *((name, "exact") for name in DRAWING)],
)
@pytest.mark.parametrize(
    ("low", "epsilon", "rate", "least"), [("float16", 1e-4, 0.01, -8), ("float8_e4m3fn", 0.1, 0.3, -2)]
)
@pytest.mark.sampled(4)
def test_adamw_in_formats_with_little_range(name, scalars, low, epsilon, rate, least):
    fmt, random = get_format(low), generator(name, scalars, low)
    start = start_values(random, fmt, 3)
    gradients = random.standard_normal((STEPS, 3)) * 2.0 ** random.integers(least, 2, (STEPS, 3))
    hyper = AdamW(0.9, 0.95, epsilon, weight_decay=0.1)
    optimizer = Optimizer(hyper, strategy(name, fmt), {"w": np.array(start)}, {"w"}, scalars=scalars)
    elements = [Element(name, fmt, theta, scalars, index=i) for i, theta in enumerate(start)]

    def step_of(element, g, rate):
        return element.adamw(g, rate, 0.9, 0.95, epsilon, 0.1)

    finals = assert_trajectory(optimizer, elements, gradients, rate, step_of)
    assert (finals != start).any()


@pytest.mark.parametrize("name", EXPANSION_FREE)
@pytest.mark.parametrize("mode", [mode for mode in DETERMINISTIC if mode is not Mode.NEAREST_EVEN])
@pytest.mark.sampled(6)
def test_adamw_in_other_rounding_modes(name, mode):
    fmt, random = get_format("bfloat16"), generator(name, mode)
    start = start_values(random, fmt, 2)
    gradients = random.standard_normal((STEPS, 2))
    hyper = AdamW(0.9, 0.999, epsilon=1e-8, weight_decay=0.1)
    optimizer = Optimizer(hyper, strategy(name, fmt), {"w": np.array(start)}, {"w"}, str(mode))
    elements = [Element(name, fmt, x, rounding=Rounding(mode), index=i) for i, x in enumerate(start)]

    def step_of(element, g, rate):
        return element.adamw(g, rate, 0.9, 0.999, 1e-8, 0.1)

    assert_trajectory(optimizer, elements, gradients, 0.01, step_of)


@pytest.mark.parametrize(
    ("name", "low"),
    [
        *itertools.product(
            [name for name in (*LOW_STRATEGIES, *DRAWING) if name != "collage-plus"],
            ["bfloat16", "float8_e4m3fn"],
        ),
        ("split-master", "bfloat16"),
        ("split-truncated", "bfloat16"),
    ],
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sgd(name, decay, low):
    fmt, random = get_format(low), generator(name, decay, low)
    start = start_values(random, fmt, 2)
    gradients = random.standard_normal((STEPS, 2))
    optimizer = Optimizer(SGD(0.9, decay), strategy(name, fmt), {"w": np.array(start)}, {"w"})
    elements = [Element(name, fmt, theta, index=i) for i, theta in enumerate(start)]

    def step_of(element, g, rate):
        return element.sgd(g, rate, 0.9, decay)

    rate = 0.01 if low == "bfloat16" else 0.125  # by which numbers of 4 bits do move
    finals = assert_trajectory(optimizer, elements, gradients, rate, step_of)
    assert (finals != start).any()
