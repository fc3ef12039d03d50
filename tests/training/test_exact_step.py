"""Steps in mpmath, of whole trajectories and of those that judge a run: against rational recurrences."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mcfsim import SGD, STRATEGIES, AdamW, Optimizer, simulate, strategy
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.training.trainer import WideStep, sample_indices
from tests.training.problems import Made

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


# -- a step beside one in low precision, from its state and the gradient as it was received ----------------
HYPERS = {"adamw": AdamW(B1, B2, EPSILON, 0.1), "sgd": SGD(B1, 0.1)}
every_hyper = pytest.mark.parametrize("hyper", HYPERS.values(), ids=HYPERS)
every_strategy = pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "exact"])


def situation(hyper, name):
    """Return an optimizer with filled moments, and the next gradient, as it was received."""
    random = np.random.default_rng(6)
    tensors = {"a": random.standard_normal(40), "b": random.standard_normal((40, 2))}
    optimizer = Optimizer(hyper, strategy(name), tensors, {"b"})

    def gradient():
        return optimizer.receive({key: random.standard_normal(x.shape) for key, x in tensors.items()})

    for _ in range(3):
        optimizer.step(gradient(), 0.01)
    return optimizer, gradient()


def judge(optimizer, gradient, sample, **options):
    state = {**optimizer.state._asdict(), "parameter": optimizer.represented()}
    step = WideStep(optimizer.hyper, optimizer.layout, state, gradient, optimizer.count + 1, 0.01)
    return step.judged(np.array(sample, dtype=np.int64), **options)


def rational_update(optimizer, gradient, i):
    """Return the update of parameter i in rational arithmetic, by the published recurrence."""

    def total(components):
        return sum(Fraction(float(item[i])) for item in components)

    hyper, state, g = optimizer.hyper, optimizer.state, Fraction(float(gradient[i]))
    decay = Fraction(hyper.weight_decay) if i < optimizer.layout.decayed_size else 0
    published = PUBLISHED[type(hyper).__name__.lower()]
    _, _, direction = published(total(state.m), total(state.v), g, optimizer.count + 1)
    return -Fraction(0.01) * (direction + decay * total(optimizer.represented()))


@every_hyper
@every_strategy
@pytest.mark.sampled(2)
@pytest.mark.slow
def test_every_update_is_that_of_rational_arithmetic_to_the_gap(hyper, name, assert_same):
    optimizer, gradient = situation(hyper, name)
    before = [item.copy() for part in optimizer.state for item in part]
    edge = optimizer.layout.decayed_size
    exact = [rational_update(optimizer, gradient, i) for i in range(120)]
    assert edge == 80
    for sample in (range(120), [0, 1, edge - 1, edge, 119]):
        found = judge(optimizer, gradient, sample)
        worst = max(abs(Fraction(float(found.update[i])) - exact[i]) for i in sample)
        size = math.hypot(*(float(exact[i]) for i in sample)) / math.sqrt(len(sample))
        assert found.gap == pytest.approx(float(worst) / size, rel=1e-9, abs=0)
        assert 0 < found.gap < 1e-14
    assert found.update.dtype == np.float64
    # Nothing is changed.
    for old, now in zip(before, (item for part in optimizer.state for item in part), strict=True):
        assert_same(now, old)
    assert optimizer.count == 3


def test_more_bits_do_not_move_the_gap_and_too_few_are_refused():
    optimizer, gradient = situation(HYPERS["adamw"], "plain")
    assert len({judge(optimizer, gradient, range(9), precision=bits).gap for bits in (400, 2000)}) == 1
    assert math.isnan(judge(optimizer, gradient, []).gap)
    with pytest.raises(ValueError, match="at least 64"):
        judge(optimizer, gradient, [], precision=10)


@every_hyper
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_diverged_stays_visible_and_spoils_no_other(hyper, bad):
    optimizer, gradient = situation(hyper, "plain")
    gradient[0] = bad
    found = judge(optimizer, gradient, [0, 1])
    assert not np.isfinite(found.update[0])
    assert np.isfinite(found.update[1:]).all()
    assert 0 <= judge(optimizer, gradient, [1]).gap < 1e-14
    assert math.isnan(judge(optimizer, gradient, [0]).gap)
    assert found.gap == judge(optimizer, gradient, [1]).gap


def test_a_division_by_zero_has_no_gap_and_ends_no_run():
    """Where epsilon is zero, and gradient and second moment are."""
    problem = Made(lambda x, step: x * np.array([1.0, 0.0]))
    run = simulate(problem, AdamW(epsilon=0.0), "plain", 2, truth_sample=2, record_every=1)
    assert math.isnan(run.series["plain"]["binary64_gap"][0])
    assert run.results["plain"]["diverged_at"] == 1


def test_sample_indices():
    chosen = sample_indices(1000, 50, seed=3, step=7).tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 50
    assert 0 <= chosen[0] < chosen[-1] < 1000
    assert chosen == sample_indices(1000, 50, seed=3, step=7).tolist()
    assert chosen != sample_indices(1000, 50, seed=3, step=8).tolist()
    assert chosen != sample_indices(1000, 50, seed=4, step=7).tolist()
    assert sample_indices(5, 50, seed=0, step=1).tolist() == [0, 1, 2, 3, 4]
    assert sample_indices(5, 0, seed=0, step=1).size == 0
