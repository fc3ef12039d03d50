"""The exact update of a step, from the state and the gradient that a low-precision optimizer has."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mcfsim import SGD, AdamW, Optimizer, strategy
from mcfsim.optim.strategies import STRATEGIES
from mcfsim.training.exact_step import one_step, sample_indices
from tests.optim.test_exact_arithmetic import B1, B2, EPSILON, PUBLISHED

HYPERS = {"adamw": AdamW(B1, B2, EPSILON, 0.1), "sgd": SGD(B1, 0.1)}
every_hyper = pytest.mark.parametrize("hyper", HYPERS.values(), ids=HYPERS)
every_strategy = pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "exact"])


def situation(hyper, name, steps=3, size=40):
    """Return an optimizer with filled moments, and the next gradient, as it was received."""
    random = np.random.default_rng(6)
    tensors = {"a": random.standard_normal(size), "b": random.standard_normal((size, 2))}
    optimizer = Optimizer(hyper, strategy(name), tensors, {"b"})

    def gradient():
        return optimizer.receive({key: random.standard_normal(x.shape) for key, x in tensors.items()})

    for _ in range(steps):
        optimizer.step(gradient(), 0.01)
    return optimizer, gradient()


def judge(optimizer, gradient, sample, **options):
    return one_step(
        *(optimizer.hyper, optimizer.layout, optimizer.state, optimizer.represented(), gradient),
        *(optimizer.count + 1, 0.01, np.array(sample, dtype=np.int64)),
        **options,
    )


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
def test_every_update_is_that_of_rational_arithmetic_to_the_gap(hyper, name, assert_same):
    optimizer, gradient = situation(hyper, name)
    before = [item.copy() for part in optimizer.state for item in part]
    edge = optimizer.layout.decayed_size
    exact = [rational_update(optimizer, gradient, i) for i in range(120)]
    assert edge == 80
    for sample in (range(120), [0, 1, edge - 1, edge, 119]):
        found = judge(optimizer, gradient, sample)
        worst = max(abs(Fraction(float(found.update[i])) - exact[i]) for i in sample)
        mean_square = sum(exact[i] ** 2 for i in sample) / len(sample)
        assert found.gap == pytest.approx(float(worst) / math.sqrt(mean_square), rel=1e-9, abs=0)
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
