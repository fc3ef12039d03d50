"""Moments with a scale a group: where groups lie, what is stored of them, and what they lose."""

import os
from dataclasses import replace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.memory import footprint
from mcfsim.optim.edges import Edges
from mcfsim.optim.strategies import Stored
from mcfsim.scaled.formats import SCALED
from tests.optim.stored import E4M3, held, made, scaled

#: Of parts of a group, of whole groups, of one more and one less, and of none.
SIZES = {"w": 1280, "empty": 0, "a": 127, "b": 128, "c": 129, "s": 1, "d": 300, "last": 0}


def trained(sizes, steps=3, **options):
    """Return an optimizer after some steps."""
    rng = np.random.default_rng(0)
    given = [
        {name: rng.standard_normal(n) * 10.0 ** rng.integers(-20, 3, n) for name, n in sizes.items()}
        for _ in range(steps + 1)
    ]
    optimizer = made(given[0], "fp8-moments", decayed={"c", "w"} & {*sizes}, **options)
    for gradient in given[1:]:
        optimizer.step(optimizer.receive(gradient), 1e-3)
    return optimizer


# -- where groups lie ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("sizes", [[1], [0, 0], [7, 0, 3, 1, 0], [3] * 5, [9, 1, 10, 2, 0, 6]], ids=str)
@pytest.mark.parametrize("group", [1, 3, 4, 100])
def test_edges_are_those_of_counting(sizes, group):
    stops = np.cumsum(sizes).tolist()
    begins = [stop - size for size, stop in zip(sizes, stops, strict=True)]
    edges = Edges([slice(*ends) for ends in zip(begins, stops, strict=True)], group)
    first = [i for begin, stop in zip(begins, stops, strict=True) for i in range(begin, stop, group)]
    known = sorted({*first, stops[-1]})
    assert (edges.size, edges.count) == (stops[-1], len(first))
    for place in range(stops[-1] + 1):
        assert edges.last(place) == max(i for i in known if i <= place)
        if place not in known:
            with pytest.raises(ValueError, match=f"element {place} lies inside a group of {edges.group}"):
                edges.groups(slice(0, place))
    for i, start in enumerate(known):
        for j, stop in enumerate(known[i:], i):
            assert edges.groups(slice(start, stop)) == slice(i, j)
            assert edges.lengths(slice(start, stop)).tolist() == np.diff(known[i : j + 1]).tolist()


# -- what is stored ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_groups_of_many_tensors_are_quantised_together(assert_same, monkeypatch):
    """Those of one length at once, where no text does it."""
    monkeypatch.setattr("mcfsim.optim.groups.text_of", lambda *given: None)
    sizes = {f"t{i}": 1 + i % 3 for i in range(300)}
    calls = []
    quantize = lambda *given: calls.append(1) or mcf.quantize(*given)  # noqa: E731
    monkeypatch.setattr("mcfsim.optim.groups.quantize", quantize)
    trained(sizes, 1, packed=True)
    assert len(calls) == 2 * 3
    few = {name: sizes[name] for name in list(sizes)[:50]}
    found = (held(trained(few, packed=packed)) for packed in (True, False))
    for mine, other in zip(*found, strict=True):
        assert_same(mine, other)


# -- memory --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sizes", [{"w": 1280, "b": 128}, SIZES], ids=["whole groups", "short groups"])
def test_the_state_takes_the_bytes_that_are_counted(sizes):
    ones = {name: np.ones(n) for name, n in sizes.items()}
    optimizer = made(ones, "fp8-moments", packed=True)
    gradient, size = optimizer.receive(ones), optimizer.layout.size
    for (vector,) in (optimizer.state.m, optimizer.state.v):
        assert vector.nbytes == size + 4 * sum(-(-n // 128) for n in sizes.values())
    taken = gradient.nbytes + sum(x.nbytes for items in optimizer.state for x in items)
    counted = footprint(optimizer.strategy).total * size
    assert float(counted) == optimizer.strategy.bytes_per_parameter * size
    short = sum(1 for n in sizes.values() if n % 128)
    # A group that is not full has a whole scale, in each moment, where a share is counted.
    assert counted <= taken < counted + 2 * 4 * short or taken == counted


def test_a_group_is_not_cut():
    optimizer = trained({"w": 300, "c": 129}, 1, packed=True)
    (vector,) = optimizer.state.m
    numbers, inner = vector.numbers(), vector[128:428]
    np.testing.assert_array_equal(vector[slice(None)].numbers(), numbers)
    np.testing.assert_array_equal(inner.numbers(), numbers[128:428])
    np.testing.assert_array_equal(inner[128:172].numbers(), numbers[256:300])
    inner[128:172].keep(np.arange(44, dtype=np.float32))
    assert vector.numbers()[299] == 43
    numbers[256:300] = inner[128:172].numbers()
    np.testing.assert_array_equal(vector.numbers(), numbers)
    for block in (slice(1, 128), slice(0, 100), slice(0, 299), slice(129, 300)):
        with pytest.raises(ValueError, match="inside a group of 128 that share a scale"):
            vector[block]


# -- what is refused -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kept_in", "why"),
    [
        (scaled(E4M3, None), "all numbers of a tensor share a scale"),
        (scaled(E4M3, "axis"), "all numbers of a tensor share a scale"),
        (SCALED["nvfp4"], "all numbers of a tensor share a scale"),
        (scaled(E4M3, 128, rule="max"), "its rule 'max' has no scale for a group without positive numbers"),
        (scaled("float8_e8m0fnu", 4, "float8_e4m3fn"), "its elements, of float8_e8m0fnu, have no zero"),
    ],
    ids=str,
)
def test_groups_that_depend_on_others_are_refused(kept_in, why, tmp_path):
    strategy = replace(mcf.strategy("fp8-moments"), v=Stored("float32", scaled=kept_in))
    with pytest.raises(ValueError, match=f"'fp8-moments' keeps v as .*, which is not packed: {why}"):
        made(3, strategy, packed=True, folder=tmp_path / "state")
    assert os.listdir(tmp_path) == []
    made(3, strategy)
    assert made(3, strategy, hyper=mcf.SGD(), packed=True).packed  # it has no v
