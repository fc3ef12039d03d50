"""Named tensors as one vector, and back."""

from itertools import pairwise

import numpy as np
import pytest

from mcfsim.optim.layout import Layout
from tests.optim.stored import Stretches


def tensors():
    shapes = {"bias": (3,), "matrix": (2, 3), "scalar": (), "empty": (0, 4), "cube": (2, 2, 2)}
    counter = iter(range(100))
    return {
        name: np.array([next(counter) for _ in range(int(np.prod(shape)))], dtype=np.float64).reshape(shape)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("decayed", [(), ("cube", "matrix"), ("bias",), tuple(tensors())])
def test_split_undoes_join(decayed):
    given = tensors()
    layout = Layout(given, decayed)
    vector = layout.join(given)
    assert vector.shape == (layout.size,) == (3 + 6 + 1 + 0 + 8,)
    back = layout.split(vector)
    assert back.keys() == given.keys()
    for name, tensor in given.items():
        np.testing.assert_array_equal(back[name], tensor)
        np.testing.assert_array_equal(vector[layout.slices[name]], tensor.ravel())


def test_decayed_tensors_come_first_and_keep_their_order():
    layout = Layout(tensors(), {"cube", "matrix"})
    assert list(layout.slices) == ["matrix", "cube", "bias", "scalar", "empty"]
    assert layout.decayed_size == 14
    assert layout.slices["cube"] == slice(6, 14)


def test_slices_cover_the_vector_without_a_gap():
    layout = Layout(tensors(), {"cube"})
    edges = [(part.start, part.stop) for part in layout.slices.values()]
    assert edges[0][0] == 0
    assert edges[-1][1] == layout.size
    assert all(left[1] == right[0] for left, right in pairwise(edges))


def test_split_gives_views_and_join_a_copy():
    given = tensors()
    layout = Layout(given)
    vector = layout.join(given)
    layout.split(vector)["matrix"][1, 2] = -5
    assert vector[layout.slices["matrix"]][-1] == -5
    assert given["matrix"][1, 2] != -5


def test_join_keeps_the_order_of_the_layout_not_of_the_argument():
    given = tensors()
    layout = Layout(given)
    backwards = dict(reversed(given.items()))
    np.testing.assert_array_equal(layout.join(backwards), layout.join(given))


def test_what_is_refused():
    given = tensors()
    with pytest.raises(ValueError, match="there are no parameters"):
        Layout({})
    with pytest.raises(ValueError, match=r"decayed tensors \['wrong'\] are not among the parameters"):
        Layout(given, {"matrix", "wrong"})
    layout = Layout(given)
    with pytest.raises(ValueError, match=r"expected the tensors .* not \['bias'\]"):
        layout.join({"bias": given["bias"]})
    with pytest.raises(ValueError, match=r"tensor 'matrix' must have shape \(2, 3\), not \(3, 2\)"):
        layout.join(given | {"matrix": given["matrix"].T})


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7, 17, 18, 100])
@pytest.mark.parametrize("decayed", [(), ("cube", "matrix")])
def test_blocks_follow_one_another_across_tensors(size, decayed):
    given = tensors()
    given["matrix"] = np.asfortranarray(given["matrix"])
    given["cube"] = Stretches(given["cube"])
    layout = Layout(given, decayed)
    places, blocks = zip(*layout.blocks(given, size), strict=True)
    assert [place.start for place in places] == list(range(0, layout.size, size))
    assert [place.stop for place in places] == [*range(size, layout.size, size), layout.size]
    assert [block.size for block in blocks] == [place.stop - place.start for place in places]
    joined = np.concatenate([tensors()[name].ravel() for name in layout.slices])
    np.testing.assert_array_equal(np.concatenate(blocks), joined)
    np.testing.assert_array_equal(layout.join(given), joined)


def test_blocks_are_of_the_dtype_that_holds_all_tensors():
    given = {"a": np.float32([1, 2, 3]), "b": np.int64([2**53 - 1, 5]), "c": Stretches(np.float16([0.5]))}
    layout = Layout(given)
    assert layout.dtype(given) == np.float64
    assert {block.dtype for _, block in layout.blocks(given, 2)} == {np.dtype(np.float64)}
    assert layout.join(given).tolist() == [1, 2, 3, 2**53 - 1, 5, 0.5]


class HandingOn:
    """What hands on all that it is asked, as wrappers do."""

    def __init__(self, of):
        self._of = of

    def __getattr__(self, name):
        return getattr(self._of, name)


def test_a_stored_tensor_may_hand_on_what_it_is_asked():
    given = tensors()
    layout = Layout(given)
    handing_on = {name: HandingOn(Stretches(tensor)) for name, tensor in given.items()}
    np.testing.assert_array_equal(layout.join(handing_on), layout.join(given))


def test_a_tensor_that_changes_its_dtype_is_named():
    class Changing(Stretches):
        def read(self, start, stop):
            return super().read(start, stop).astype(np.float64 if start else np.float32)

    given = {"a": Changing(np.ones(6))}
    with pytest.raises(ValueError, match="tensor 'a' gives float64 from element 4 on, before float32"):
        list(Layout(given).blocks(given, 4))


def test_a_block_of_one_tensor_is_a_view():
    given = {"a": np.zeros(6), "b": np.zeros((3, 2))}
    shared = [
        [np.shares_memory(block, x) for x in given.values()] for _, block in Layout(given).blocks(given, 3)
    ]
    assert shared == [[True, False]] * 2 + [[False, True]] * 2


def test_without_elements_there_is_no_block():
    given = {"a": np.zeros((0, 3)), "b": Stretches(np.zeros(0))}
    layout = Layout(given)
    assert list(layout.blocks(given, 4)) == []
    assert layout.join(given).size == layout.size == 0


def test_blocks_are_refused_at_once_or_name_the_tensor():
    given = tensors()
    layout = Layout(given)
    with pytest.raises(ValueError, match="expected the tensors"):
        layout.blocks({"bias": given["bias"]}, 4)
    with pytest.raises(ValueError, match="tensor 'cube' must have shape"):
        layout.blocks(given | {"cube": Stretches(np.zeros(8))}, 4)
    with pytest.raises(TypeError, match="tensor 'bias' is a masked array"):
        layout.blocks(given | {"bias": np.ma.masked_equal([1.0, 2.0, 3.0], 2.0)}, 4)
    short = given | {"cube": Stretches(given["cube"], end=5)}
    assert [block.size for _, block in layout.blocks(given, 4)] == [4, 4, 4, 4, 2]
    with pytest.raises(ValueError, match=r"tensor 'cube' gives an array of shape \(3,\) .* 2 to 6"):
        list(layout.blocks(short, 4))
