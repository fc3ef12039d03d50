"""The exact update of a step, from the state and the gradient that a low-precision optimizer has."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mcfsim import SGD, AdamW, Optimizer, strategy
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.optim.state import State
from mcfsim.optim.strategies import STRATEGIES, Roles
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


def update_in_binary64(optimizer, gradient, part, decayed):
    """Return the step function's update of some elements, on whole arrays of the native arithmetic."""
    hyper, state, exact = optimizer.hyper, optimizer.state, STRATEGIES["exact"]
    roles = Roles(*[NativeArithmetic(np.float64, fused=False)] * 5)

    def total(components):
        return (np.sum([item.astype(np.float64) for item in components], axis=0)[part],)

    whole = State(total(optimizer.represented()), total(state.m), total(state.v) if state.v else (), ())
    scalars = hyper.scalars(roles, exact, optimizer.count + 1, 0.01, decayed=decayed)
    return hyper.step(roles, exact, whole, gradient[part].astype(np.float64), scalars).update


@every_hyper
@every_strategy
@pytest.mark.sampled(2)
def test_the_update_is_that_in_binary64_and_its_gap_that_to_rational_arithmetic(hyper, name, assert_same):
    optimizer, gradient = situation(hyper, name)
    before = [item.copy() for part in optimizer.state for item in part]
    edge = optimizer.layout.decayed_size
    sample = [0, 1, edge - 1, edge, 119]
    found = judge(optimizer, gradient, sample)
    assert edge == 80
    for part, decayed in ((slice(0, edge), True), (slice(edge, None), False)):
        assert_same(found.update[part], update_in_binary64(optimizer, gradient, part, decayed))
    assert found.update.dtype == np.float64
    exact = [rational_update(optimizer, gradient, i) for i in sample]
    worst = max(abs(Fraction(float(found.update[i])) - e) for i, e in zip(sample, exact, strict=True))
    mean_square = sum(e * e for e in exact) / len(exact)
    assert found.gap == pytest.approx(float(worst) / math.sqrt(mean_square), rel=1e-9, abs=0)
    assert 0 < found.gap < 1e-14
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
