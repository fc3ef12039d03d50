"""The same text in mpmath: against more bits of itself, and against closed forms in rational numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mcfsim import SGD, AdamW, Optimizer, strategy
from mcfsim.kernels.real_numbers import to_fraction

pytestmark = pytest.mark.slow

STEPS = 50
SIZE = 4
HYPERS = {"adamw": AdamW(0.9, 0.999, 1e-8, 0.1), "sgd": SGD(0.9, 0.1)}


def numbers():
    random = np.random.default_rng(11)
    return random.standard_normal(SIZE), random.standard_normal((STEPS, SIZE)) / 8


def rate(step):
    return 1e-3 * (1 - step / 80)


def trajectory(hyper, precision):
    """Return the exact update, and the state after it, of every step as Fractions."""
    start, gradients = numbers()
    optimizer = Optimizer(hyper, strategy("exact"), {"w": start}, {"w"}, precision=precision)
    steps = []
    for t, gradient in enumerate(gradients, start=1):
        update = optimizer.step(optimizer.receive({"w": gradient}), rate(t))
        tensors = {"update": update, **{k: v[0] for k, v in optimizer.state._asdict().items() if v}}
        steps.append({key: [to_fraction(x) for x in tensor] for key, tensor in tensors.items()})
    return steps


def root(x):
    """Return the square root of a rational number to 1000 bits behind the point."""
    return Fraction(math.isqrt((x.numerator << 2000) // x.denominator), 1 << 1000)


@pytest.mark.parametrize("hyper", HYPERS.values(), ids=HYPERS)
def test_400_bits_agree_with_2000_bits(hyper):
    short, long = trajectory(hyper, 400), trajectory(hyper, 2000)
    different = 0
    for ours, theirs in zip(short, long, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours:
            for a, b in zip(ours[key], theirs[key], strict=True):
                assert abs(a - b) <= abs(b) * Fraction(1, 2**390)
                different += a != b
    assert different > STEPS  # so that not both are 400 bits long, or 53


def test_adamw_is_its_closed_form():
    """Moments as weighted sums of all gradients; the update from them; start plus updates."""
    hyper = HYPERS["adamw"]
    beta1, beta2 = Fraction(hyper.beta1), Fraction(hyper.beta2)
    gain1, gain2 = Fraction(1.0 - hyper.beta1), Fraction(1.0 - hyper.beta2)
    start, gradients = numbers()
    steps = trajectory(hyper, 400)
    for i in range(SIZE):
        theta = Fraction(start[i])
        g = [Fraction(x) for x in gradients[:, i]]
        for t in range(1, STEPS + 1):
            m = gain1 * sum(beta1 ** (t - j) * g[j - 1] for j in range(1, t + 1))
            v = gain2 * sum(beta2 ** (t - j) * g[j - 1] ** 2 for j in range(1, t + 1))
            mhat = m / Fraction(1.0 - hyper.beta1**t)
            vhat = v / Fraction(1.0 - hyper.beta2**t)
            direction = mhat / (root(vhat) + Fraction(hyper.epsilon)) + Fraction(hyper.weight_decay) * theta
            update = -Fraction(rate(t)) * direction
            theta += update
            for key, expected in (("m", m), ("v", v), ("update", update), ("parameter", theta)):
                assert abs(steps[t - 1][key][i] - expected) <= abs(expected) * Fraction(1, 2**385), (key, t)


def test_the_first_update_of_adamw_forgets_the_betas():
    """It is ``-lr (g / (|g| + eps) + decay theta)``."""
    start, gradients = numbers()
    first = [Fraction(x) for x in gradients[0]]
    for beta1, beta2 in ((0.9, 0.999), (0.5, 0.75), (0.0, 0.0)):
        update = trajectory(AdamW(beta1, beta2, 1e-8, 0.1), 400)[0]["update"]
        for g, theta, ours in zip(first, map(Fraction, start), update, strict=True):
            expected = -Fraction(rate(1)) * (g / (abs(g) + Fraction(1e-8)) + Fraction(0.1) * theta)
            assert abs(ours - expected) <= abs(expected) * Fraction(1, 2**390)


def test_sgd_is_its_closed_form():
    hyper = HYPERS["sgd"]
    momentum, decay = Fraction(hyper.momentum), Fraction(hyper.weight_decay)
    start, gradients = numbers()
    steps = trajectory(hyper, 400)
    for i in range(SIZE):
        theta = Fraction(start[i])
        for t in range(1, STEPS + 1):
            m = sum(momentum ** (t - j) * Fraction(gradients[j - 1, i]) for j in range(1, t + 1))
            theta -= Fraction(rate(t)) * (m + decay * theta)
            for key, expected in (("m", m), ("parameter", theta)):
                assert abs(steps[t - 1][key][i] - expected) <= abs(expected) * Fraction(1, 2**385), (key, t)


def test_tensors_without_decay_have_none():
    start, gradients = numbers()
    tensors = {"a": start, "b": start}
    optimizer = Optimizer(HYPERS["sgd"], strategy("exact"), tensors, {"b"})
    optimizer.step(optimizer.receive({"a": gradients[0], "b": gradients[0]}), 0.5)
    after = {name: [to_fraction(x) for x in tensor] for name, tensor in optimizer.weights().items()}
    for i in range(SIZE):
        theta, g = Fraction(start[i]), Fraction(gradients[0, i])
        assert after["a"][i] == theta - g / 2
        assert after["b"][i] == theta - (g + Fraction(0.1) * theta) / 2
