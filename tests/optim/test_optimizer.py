"""The optimizer's bookkeeping: blocks, views, rounding on the way in, and nothing else of its own."""

from itertools import combinations

import numpy as np
import pytest

from mcfsim import STRATEGIES, AdamW, Optimizer, round_to, strategy


def small(name="plain", hyper=None, **options):
    tensors = {"a": np.array([1.0, -2.0]), "b": np.array([[0.5], [3.0], [-0.0]])}
    return Optimizer(hyper or AdamW(), strategy(name), tensors, {"b"}, **options)


@pytest.mark.parametrize("name", ["plain", "collage-plus", "fp32-master"])
def test_state_is_changed_in_place_and_the_weights_are_views_of_it(name):
    optimizer = small(name)
    before = [item for part in optimizer.state for item in part]
    assert not any(np.shares_memory(*pair) for pair in combinations(before, 2))
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


@pytest.mark.parametrize("rounding", ["nearest_even", "up"])
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "exact"])
def test_start_and_gradients_are_rounded_to_nearest_whatever_the_rounding(name, rounding):
    if STRATEGIES[name].addition == "grow" and rounding == "up":
        rounding = "nearest_away"
    random = np.random.default_rng(9)
    given = {"a": random.standard_normal(2), "b": random.standard_normal((3, 1))}
    optimizer = Optimizer(AdamW(), strategy(name), given, {"b"}, rounding)
    joined = np.concatenate([given["b"].ravel(), given["a"]])
    single = joined.astype(np.float32)
    expected = single if name == "fp32" else round_to(joined, "bfloat16")
    np.testing.assert_array_equal(optimizer.receive(given), expected)
    if name != "split-truncated":
        np.testing.assert_array_equal(optimizer.state.parameter[0], expected)
    if name == "fp32-master":
        np.testing.assert_array_equal(optimizer.state.extra[0], single)
    given["a"][0] = 7
    assert optimizer.weights()["a"][0] != 7
