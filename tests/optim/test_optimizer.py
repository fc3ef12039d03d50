"""The optimizer's bookkeeping: blocks, views, rounding on the way in, and nothing else of its own."""

import numpy as np
import pytest

from mcfsim import STRATEGIES, AdamW, Optimizer, round_to, strategy
from mcfsim.optim.optimizer import block_roles
from mcfsim.optim.state import State
from tests.shared.kinds import QUANTISED

NUMBERED = [name for name in STRATEGIES if name != "exact"]


@pytest.mark.parametrize("name", [name for name in NUMBERED if name not in QUANTISED])
def test_a_step_in_blocks_is_the_step_function_on_whole_arrays(name, assert_same, monkeypatch):
    """The edges of blocks and of weight decay fall inside the vector; the second step has filled moments."""
    monkeypatch.setattr("mcfsim.optim.optimizer.BLOCK", 100)
    random = np.random.default_rng(0)
    start, *given = (
        {"gain": random.standard_normal(195), "matrix": random.standard_normal((59, 3))} for _ in range(3)
    )
    hyper, declared = AdamW(0.9, 0.95, 1e-8, 0.1), strategy(name)
    optimizer = Optimizer(hyper, declared, start, {"matrix"})
    edge, size = optimizer.layout.decayed_size, optimizer.layout.size
    roles = declared.roles()  # NumpyArithmetic, which checks that operands are values of the format
    whole = State(*(tuple(item.copy() for item in part) for part in optimizer.state))
    for t, gradients in enumerate(given, start=1):
        gradient, halves = optimizer.receive(gradients), []
        for part, decayed in ((slice(0, edge), True), (slice(edge, size), False)):
            old = State(*(tuple(item[part] for item in items) for items in whole))
            scalars = hyper.scalars(roles, declared, t, 1e-3, decayed=decayed)
            if declared.draws:  # by the element's index, which a block has
                roles = block_roles(declared.roles(), t, part.start)
            halves.append(hyper.step(roles, declared, old, gradient[part], scalars))
        whole = State(
            *(
                tuple(np.concatenate(pair) for pair in zip(*parts, strict=True))
                for parts in zip(*(half.state for half in halves), strict=True)
            )
        )
        assert_same(optimizer.step(gradient, 1e-3), np.concatenate([half.update for half in halves]))
        for ours, theirs in zip(optimizer.state, whole, strict=True):
            for mine, other in zip(ours, theirs, strict=True):
                assert mine.dtype == other.dtype
                assert_same(mine, other)
    assert optimizer.count == 2


def small(name="plain", hyper=None, **options):
    tensors = {"a": np.array([1.0, -2.0]), "b": np.array([[0.5], [3.0], [-0.0]])}
    return Optimizer(hyper or AdamW(), strategy(name), tensors, {"b"}, **options)


def test_no_two_tensors_of_the_state_share_memory():
    items = [item for part in small("collage-plus").state for item in part]
    pairs = [(i, j) for i in range(len(items)) for j in range(i)]
    assert not any(np.shares_memory(items[i], items[j]) for i, j in pairs)


@pytest.mark.parametrize("name", ["plain", "collage-plus", "fp32-master"])
def test_state_is_changed_in_place_and_the_weights_are_views_of_it(name):
    optimizer = small(name)
    before = [item for part in optimizer.state for item in part]
    weights, represented = optimizer.weights(), optimizer.represented()
    old = [item.copy() for item in represented]
    gradient = np.ones(5)
    optimizer.step(gradient, 0.1)
    assert all(a is b for a, b in zip(before, (x for part in optimizer.state for x in part), strict=True))
    np.testing.assert_array_equal(weights["a"], optimizer.state.parameter[0][3:])
    np.testing.assert_array_equal(weights["b"], optimizer.state.parameter[0][:3, None])
    assert (weights["a"] != [1.0, -2.0]).all()
    for then, now in zip(represented, old, strict=True):  # copies, so that they stay
        np.testing.assert_array_equal(then, now)
    np.testing.assert_array_equal(gradient, np.ones(5))


def test_what_represents_the_parameter():
    for name, parts in (("plain", 1), ("kahan", 2), ("collage-light", 2), ("fp32-master", 1), ("fp32", 1)):
        assert len(small(name).represented()) == parts
    master = small("fp32-master")
    master.state.extra[0][0] = np.float32(0.1)
    assert master.represented()[0][0] == np.float32(0.1)


@pytest.mark.parametrize("rounding", ["nearest_even", "up", "toward_zero"])
@pytest.mark.parametrize("name", ["plain", "kahan", "fp32-master"])
def test_the_start_is_rounded_to_nearest_whatever_the_rounding(name, rounding):
    random = np.random.default_rng(8)
    start = {"w": random.standard_normal(100)}
    optimizer = Optimizer(AdamW(), strategy(name), start, rounding=rounding)
    np.testing.assert_array_equal(optimizer.state.parameter[0], round_to(start["w"], "bfloat16"))
    if name == "fp32-master":
        np.testing.assert_array_equal(optimizer.state.extra[0], start["w"].astype(np.float32))
    start["w"][0] = 7
    assert optimizer.state.parameter[0][0] != 7


@pytest.mark.parametrize("rounding", ["nearest_even", "up"])
@pytest.mark.parametrize("name", NUMBERED)
def test_gradients_are_received_to_nearest_in_the_strategys_format(name, rounding):
    if STRATEGIES[name].addition == "grow" and rounding == "up":
        rounding = "nearest_away"
    random = np.random.default_rng(9)
    gradients = {"a": random.standard_normal(2), "b": random.standard_normal((3, 1))}
    optimizer = small(name, rounding=rounding)
    joined = np.concatenate([gradients["b"].ravel(), gradients["a"]])
    expected = joined.astype(np.float32) if name == "fp32" else round_to(joined, "bfloat16")
    np.testing.assert_array_equal(optimizer.receive(gradients), expected)


def test_gradients_of_the_wrong_shape_are_refused():
    optimizer = small()
    with pytest.raises(ValueError, match=r"the gradient must have shape \(5,\), not \(4,\)"):
        optimizer.step(np.zeros(4), 0.1)
    with pytest.raises(ValueError, match=r"tensor 'a' must have shape \(2,\), not \(3,\)"):
        optimizer.receive({"a": np.zeros(3), "b": np.zeros((3, 1))})
    with pytest.raises(ValueError, match="expected the tensors"):
        optimizer.receive({"a": np.zeros(2)})
    assert optimizer.count == 0


def test_divergence_is_silent_and_stays_visible():
    optimizer = small()
    optimizer.step(np.array([np.inf, np.nan, 0.0, 1.0, 3e38]), 0.1)
    theta = optimizer.state.parameter[0]
    assert np.isnan(theta[:2]).all()
    assert np.isfinite(theta[2:4]).all()
