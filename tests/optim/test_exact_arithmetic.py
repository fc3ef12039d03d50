"""The same texts in mpmath, against the published recurrences in rational numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mcfsim import Optimizer, strategy
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.optim.declaration import straight_optimizers

STEPS, SIZE = 8, 2
B1, B2, EPSILON, DECAY = 0.9, 0.999, 1e-8, 0.1
GIVEN = {"beta1": B1, "beta2": B2, "epsilon": EPSILON, "momentum": B1, "weight_decay": DECAY}


def rate(step):
    return 1e-3 * (1 - step / 80)


def root(x):
    """Return the square root of a rational number to 1000 bits behind the point."""
    return Fraction(math.isqrt((x.numerator << 2000) // x.denominator), 1 << 1000)


def adamw(m, v, g, t):
    m, v = (Fraction(b) * x + Fraction(1.0 - b) * y for b, x, y in ((B1, m, g), (B2, v, g * g)))
    below = root(v / Fraction(1.0 - B2**t)) + Fraction(EPSILON)
    return m, v, m / Fraction(1.0 - B1**t) / below


def sgd(m, v, g, t):
    m = Fraction(B1) * m + g
    return m, v, m


def nesterov(m, v, g, t):
    m = Fraction(B1) * m + g
    return m, v, g + Fraction(B1) * m


def lion(m, v, g, t):
    ahead = Fraction(B1) * m + Fraction(1.0 - B1) * g
    return Fraction(B2) * m + Fraction(1.0 - B2) * g, v, Fraction((ahead > 0) - (ahead < 0))


#: Moments and direction from those before, a gradient and the number of the step.
PUBLISHED = {"adamw": adamw, "torchadamw": adamw, "sgd": sgd, "nesterov": nesterov, "lion": lion}


@pytest.mark.parametrize("precision", [400, 1500])
@pytest.mark.parametrize("name", straight_optimizers())
def test_a_trajectory_is_the_published_one(name, precision):
    """As far as the bits go; the points of PyTorch, but for scalars that are made of others in binary64."""
    random = np.random.default_rng(11)
    start, gradients = random.standard_normal(SIZE), random.standard_normal((STEPS, SIZE)) / 8
    gradients[3, 1] = 0.0
    kind = straight_optimizers()[name]
    hyper = kind(**{label: x for label, x in GIVEN.items() if label in kind.ranges})
    optimizer = Optimizer(hyper, strategy("exact"), {"w": start}, {"w"}, precision=precision)
    state = [(Fraction(x), Fraction(0), Fraction(0)) for x in start]
    room, different = Fraction(1, 2**50 if name == "torchadamw" else 2 ** min(precision - 15, 950)), 0
    for t, gradient in enumerate(gradients, start=1):
        update = optimizer.step(optimizer.receive({"w": gradient}), rate(t))
        for i, (theta, m, v) in enumerate(state):
            m, v, direction = PUBLISHED[name](m, v, Fraction(gradient[i]), t)
            asked = -Fraction(rate(t)) * (direction + Fraction(DECAY) * theta)
            state[i] = theta + asked, m, v
            found = [update, optimizer.state.parameter[0], *(x[0] for x in optimizer.state[1:3] if x)]
            for mine, exact in zip(found, (asked, *state[i]), strict=False):
                apart = abs(to_fraction(mine[i]) - exact)
                assert apart <= abs(exact) * room, (t, i)
                different += apart > abs(exact) * Fraction(1, 2 ** (precision + 40))
    assert different or precision > 400  # no fewer bits would do, and here no more are there
