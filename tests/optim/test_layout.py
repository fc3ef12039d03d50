"""Named tensors as one vector, and back."""

from itertools import pairwise

import numpy as np
import pytest

from mcfsim.optim.layout import Layout


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
