"""The optimizer's bookkeeping: tensors as one vector and back, blocks, views, rounding on the way in."""

from itertools import combinations, pairwise

import ml_dtypes
import numpy as np
import pytest

from mcfsim import STRATEGIES, round_to
from mcfsim.optim.layout import Layout
from tests.optim.stored import Stretches, made, some_tensors


@pytest.mark.parametrize("name", ["plain", "collage-plus", "fp32-master"])
def test_state_is_changed_in_place_and_the_weights_are_views_of_it(name):
    tensors = {"a": np.array([1.0, -2.0]), "b": np.array([[0.5], [3.0], [-0.0]])}
    optimizer = made(tensors, name, decayed={"b"})
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
    optimizer = made(given, name, decayed={"b"}, rounding=rounding)
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


# -- named tensors as one vector -----------------------------------------------------------------------------
class HandingOn:
    """What hands on all that it is asked, as wrappers do."""

    def __init__(self, of):
        self._of = of

    def __getattr__(self, name):
        return getattr(self._of, name)


@pytest.mark.parametrize("decayed", [(), ("cube", "matrix"), ("bias",), tuple(some_tensors())])
def test_split_undoes_join(decayed):
    """Decayed tensors come first, and all in the order of the parameters, without a gap."""
    given = some_tensors()
    layout = Layout(given, decayed)
    order = [name for name in given if name in decayed] + [name for name in given if name not in decayed]
    assert list(layout.slices) == order
    edges = [0, *np.cumsum([given[name].size for name in order]).tolist()]
    assert list(layout.slices.values()) == [slice(*ends) for ends in pairwise(edges)]
    assert layout.size == edges[-1] == 18
    assert layout.decayed_size == edges[len(decayed)]
    vector = layout.join(dict(reversed(given.items())))
    back = layout.split(vector)
    assert back.keys() == given.keys()
    for name, tensor in given.items():
        np.testing.assert_array_equal(back[name], tensor)
        np.testing.assert_array_equal(vector[layout.slices[name]], tensor.ravel())
    back["matrix"][1, 2] = -5  # a view, of a copy
    assert vector[layout.slices["matrix"]][-1] == -5 != given["matrix"][1, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7, 17, 18, 100])
@pytest.mark.parametrize("decayed", [(), ("cube", "matrix")])
def test_blocks_follow_one_another_across_tensors(size, decayed):
    given = some_tensors()
    given["matrix"] = np.asfortranarray(given["matrix"])
    given["cube"] = HandingOn(Stretches(given["cube"]))
    layout = Layout(given, decayed)
    places, blocks = zip(*layout.blocks(given, size)[1], strict=True)
    assert [place.start for place in places] == list(range(0, layout.size, size))
    assert [place.stop for place in places] == [*range(size, layout.size, size), layout.size]
    assert [block.size for block in blocks] == [place.stop - place.start for place in places]
    joined = np.concatenate([some_tensors()[name].ravel() for name in layout.slices])
    np.testing.assert_array_equal(np.concatenate(blocks), joined)
    np.testing.assert_array_equal(layout.join(given), joined)


def test_a_block_of_one_tensor_is_a_view_and_without_elements_there_is_none():
    given = {"a": np.zeros(6), "none": np.zeros((0, 3)), "b": np.zeros((3, 2))}
    blocks = [block for _, block in Layout(given).blocks(given, 3)[1]]
    shared = [[name for name, x in given.items() if np.shares_memory(block, x)] for block in blocks]
    assert shared == [["a"], ["a"], ["b"], ["b"]]
    nothing = {"a": np.zeros((0, 3)), "b": Stretches(np.zeros(0))}
    assert list(Layout(nothing).blocks(nothing, 4)[1]) == []
    assert Layout(nothing).join(nothing).size == 0


def test_blocks_are_of_the_dtype_that_holds_all_some_tensors():
    given = {"a": np.float32([1, 2, 3]), "b": np.int64([2**53 - 1, 5]), "c": Stretches(np.float16([0.5]))}
    layout = Layout(given)
    dtype, blocks = layout.blocks(given, 2)
    assert {dtype, *(block.dtype for _, block in blocks)} == {np.dtype(np.float64)}
    assert layout.join(given).tolist() == [1, 2, 3, 2**53 - 1, 5, 0.5]


def test_tensors_of_every_dtype_go_together_each_rounded_once():
    given = {
        "a": np.array([1 + 2.0**-8 + 2.0**-40, 3.0]),
        "b": np.array([0.1, -2.0], ml_dtypes.bfloat16),
        "c": np.array([0.1], np.float16),
        "d": np.array([448.0], ml_dtypes.float8_e4m3fn),
        "e": np.array([2.0**-16], ml_dtypes.float8_e5m2),
        "f": np.array([2**53 + 2, 257]),
        "g": np.array([0.1], ">f4"),
    }
    for names in ("bc", "de", "bf", "cd", "abcdefg"):
        chosen = {name: given[name] for name in names}
        optimizer = made(chosen)
        for found in (optimizer.weights(), optimizer.layout.split(optimizer.receive(chosen))):
            for name, tensor in chosen.items():
                np.testing.assert_array_equal(found[name], round_to(tensor, "bfloat16"))
    for wrong in (np.array([2**60 + 1]), np.uint64([2**64 - 1])):
        with pytest.raises(
            ValueError, match=f"tensor 'h' has {wrong[0]} beside floats, an integer that float64"
        ):
            made({"a": given["a"], "h": wrong})


@pytest.mark.parametrize("packed", [False, True])
def test_a_gradient_that_is_no_vector_of_floats_changes_nothing(packed):
    optimizer = made({"a": np.ones(3)}, packed=packed)
    floats = np.array([1.0, 2.0, 3.0])
    wrong = [
        *(floats.astype(kind) for kind in (bool, int, np.uint8, complex, np.longdouble, object, "m8[s]")),
        np.ma.array(floats, mask=[False, True, False]),
        floats.tolist(),
    ]
    before = optimizer.weights()["a"].copy()
    for gradient in wrong:
        for change in (optimizer.step, optimizer.advance):
            with pytest.raises(
                TypeError, match=r"no floats of at most 64|must be an array, as|codes of bfloat16"
            ):
                change(gradient, 0.1)
    for tensor in (np.array([True, False, True]), np.ones(3, complex), floats.astype(np.longdouble)):
        with pytest.raises(TypeError, match=f"tensor 'a' of dtype {tensor.dtype} does not hold real numbers"):
            optimizer.receive({"a": tensor})
    with pytest.raises(TypeError, match="must be a mapping"):
        optimizer.receive([floats])
    assert optimizer.count == 0
    np.testing.assert_array_equal(optimizer.weights()["a"], before)
    optimizer.step(floats.astype(">f8"), 0.1)
    assert optimizer.count == 1
