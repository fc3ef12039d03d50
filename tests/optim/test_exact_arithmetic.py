"""The same text in mpmath: against more bits of itself, and against closed forms in rational numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mcfsim import SGD, AdamW, Optimizer, strategy
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.optim.lion import Lion
from mcfsim.optim.nesterov import Nesterov
from mcfsim.optim.torchadamw import TorchAdamW

pytestmark = pytest.mark.slow

STEPS = 20
SIZE = 4
HYPERS = {"adamw": AdamW(0.9, 0.999, 1e-8, 0.1), "sgd": SGD(0.9, 0.1)}


def numbers():
    random = np.random.default_rng(11)
    return random.standard_normal(SIZE), random.standard_normal((50, SIZE))[:STEPS] / 8


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


def test_lion_and_nesterov_are_those_of_the_papers():
    """One element in fractions, as published, beside the step texts in mpmath."""
    gradients = [Fraction(3, 8), Fraction(-5, 16), Fraction(0), Fraction(1, 64)]
    rate, decay = Fraction(1, 128), Fraction(1, 8)
    b1, b2 = Fraction(3, 4), Fraction(7, 8)
    theta, m, moved = Fraction(1), Fraction(0), Fraction(1)
    buffer = Fraction(0)
    exact = {
        "lion": Optimizer(Lion(0.75, 0.875, 0.125), strategy("exact"), {"w": np.ones(1)}, {"w"}),
        "nesterov": Optimizer(Nesterov(0.75, 0.125), strategy("exact"), {"w": np.ones(1)}, {"w"}),
    }
    for g in gradients:
        c = b1 * m + (1 - b1) * g
        theta -= rate * ((c > 0) - (c < 0) + decay * theta)
        m = b2 * m + (1 - b2) * g
        buffer = b1 * buffer + g
        moved -= rate * (g + b1 * buffer + decay * moved)
        for optimizer in exact.values():
            optimizer.step(optimizer.receive({"w": np.array([float(g)])}), float(rate))
    found = {name: optimizer.state.parameter[0][0] for name, optimizer in exact.items()}
    assert to_fraction(found["lion"]) == theta
    assert to_fraction(found["nesterov"]) == moved


def test_the_points_of_torch_are_none_of_exact_numbers():
    random = np.random.default_rng(2)
    start, gradients = random.standard_normal(6), random.standard_normal((5, 6))
    found = []
    for kind in (AdamW, TorchAdamW):
        optimizer = Optimizer(kind(0.9, 0.95, 1e-8, 0.1), strategy("exact"), {"w": start}, {"w"})
        for gradient in gradients:
            update = optimizer.step(optimizer.receive({"w": gradient}), 2.0**-6)
        found.append([*update, *optimizer.state.parameter[0], *optimizer.state.m[0], *optimizer.state.v[0]])
    # What differs are scalars that are made of others in binary64, as lr lambda.
    assert max(abs(a - b) for a, b in zip(*found, strict=True)) < 2.0**-50


@pytest.fixture(scope="module")
def torch():
    """Return PyTorch, with all that its first step imports."""
    torch = pytest.importorskip("torch")
    torch.optim.SGD([torch.zeros(1)]).step()
    return torch


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_torch_in_binary64_goes_along(name, torch):
    """As far as binary64 can."""
    random = np.random.default_rng(2)
    start, gradients = random.standard_normal(32), random.standard_normal((20, 32))
    weight = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    if name == "adamw":
        hyper = AdamW(0.9, 0.95, 1e-8, 0.1)
        theirs = torch.optim.AdamW([weight], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    else:
        hyper = SGD(0.9)
        theirs = torch.optim.SGD([weight], lr=1e-2, momentum=0.9)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        theirs.step()
    optimizer = Optimizer(hyper, strategy("exact"), {"w": start}, {"w"})
    for gradient in gradients:
        optimizer.step(optimizer.receive({"w": gradient}), 1e-2)
    exact = optimizer.weights()["w"].astype(np.float64)
    np.testing.assert_allclose(weight.detach().numpy(), exact, rtol=0, atol=1e-12)
    assert np.abs(exact - start).min() > 1e-4
