"""Moments with a scale a group, and by tables and powers: where they lie, and what is left of them."""

import math
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.memory import footprint
from mcfsim.optim.groups import GroupBoundaries
from mcfsim.optim.stored import DYNAMIC, DYNAMIC_UNSIGNED, EXPANDED
from mcfsim.optim.strategies import Stored
from mcfsim.scaled.formats import SCALED
from tests.optim.stored import E4M3, held, made, numbers, scaled

from .reference import quantised

#: Of parts of a group, of whole groups, of one more and one less, and of none.
SIZES = {"w": 1280, "empty": 0, "a": 127, "b": 128, "c": 129, "s": 1, "d": 300, "last": 0}


#: Numbers of many magnitudes, zeros among them.
hostile = partial(numbers, low="float32", least=-30, most=4)


def trained(sizes, steps=3, **options):
    start, *gradients = (hostile(seed, sizes) for seed in range(steps + 1))
    optimizer = made(start, "fp8-moments", decayed={"c", "w"} & {*sizes}, **options)
    for gradient in gradients:
        optimizer.step(optimizer.receive(gradient), 1e-3)
    return optimizer


# -- where groups lie ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("sizes", [[1], [0, 0], [7, 0, 3, 1, 0], [3] * 5, [9, 1, 10, 2, 0, 6]], ids=str)
@pytest.mark.parametrize("group", [1, 3, 4, 100])
def test_edges_are_those_of_counting(sizes, group):
    stops = np.cumsum(sizes).tolist()
    begins = [stop - size for size, stop in zip(sizes, stops, strict=True)]
    edges = GroupBoundaries([slice(*ends) for ends in zip(begins, stops, strict=True)], group)
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


@pytest.mark.slow
def test_groups_of_many_tensors_are_quantised_together(assert_same, monkeypatch):
    """Those of one length at once, where no text does it."""
    monkeypatch.setattr("mcfsim.optim.groups.group_algorithm", lambda *given: None)
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


# -- tables and powers ---------------------------------------------------------------------------------------
every_one = pytest.mark.parametrize("how", [DYNAMIC, DYNAMIC_UNSIGNED, EXPANDED], ids=str)


SPREAD = np.geomspace(1e-6, 1, 128).astype(np.float32)
#: A zero in the place of a thread that receives is kept, one in the place of one that hands over passed over.
FIRST, LAST = (np.where(np.arange(128) == place, np.float32(0.0), SPREAD) for place in (0, 127))
GROUPS = [np.zeros(5, np.float32), SPREAD, FIRST, LAST]
GROUPS += [hostile(seed, {"x": (size,)})["x"] for seed in range(2) for size in (1, 31, 128, 256, 300)]


@pytest.mark.parametrize("x", GROUPS, ids=len)
@every_one
@pytest.mark.sampled(3, each=False)
def test_what_is_left_is_that_of_the_judge(how, x, assert_same):
    x = np.abs(x) if how is DYNAMIC_UNSIGNED else x
    assert_same(how.through(x), quantised(x.tolist(), how))


def test_the_power_of_a_group_is_that_of_the_published_kernel():
    powers = [EXPANDED.encode(x)[2].tolist() for x in (SPREAD, FIRST, LAST)]
    assert powers[0] == powers[2] == [math.floor(16 * math.log2(100352) / math.log2(1e6)) / 16] > powers[1]


def test_ties_of_a_table_go_up():
    middles = (DYNAMIC.table[:-1].astype(float) + DYNAMIC.table[1:]) / 2
    ties = np.flatnonzero(middles.astype(np.float32) == middles)
    assert len(ties) > 50
    for place in ties:
        codes, _ = DYNAMIC.encode(np.array([middles[place], 1.0], np.float32))
        assert codes[0] == place + 1


def test_the_table_is_that_of_pytorch_s_linspace():
    torch = pytest.importorskip("torch")
    for how in (DYNAMIC, DYNAMIC_UNSIGNED):
        rows = [torch.zeros(1), torch.ones(1)]
        for decade in range(7):
            edges = torch.linspace(0.1, 1, 2 ** (decade + (not how.signed)) + 1)
            middles = (edges[:-1] + edges[1:]) / 2.0 * 10 ** (decade - 6)
            rows += [middles, -middles] if how.signed else [middles]
        assert torch.cat(rows).sort().values.tolist() == how.table.tolist()


def test_nan_stays_where_it_is_or_takes_its_group():
    x = np.append(np.ones(300, np.float32), np.float32(np.nan))
    assert np.isnan(DYNAMIC.through(x)).tolist() == [False] * 256 + [True] * 45
    x = np.append(np.linspace(1, 2, 128).astype(np.float32), np.float32(np.nan))
    x[3] = np.nan
    assert np.flatnonzero(np.isnan(EXPANDED.through(x))).tolist() == [3, 128]


@every_one
def test_the_sign_of_a_nan_is_no_matter(how):
    """Which one an operation gives depends on the processor, and where numbers lie in memory."""
    for other in (np.inf, 1.0, 0.0):
        x = np.array([np.nan, other, 3.0, np.nan], np.float32)
        y = np.where(np.isnan(x), -np.float32(np.nan), x)
        assert np.signbit(y[0]) != np.signbit(x[0])
        found, same = how.through(x), how.through(y)
        np.testing.assert_array_equal(found, same)
        numbers = ~np.isnan(found)
        assert np.array_equal(np.signbit(found)[numbers], np.signbit(same)[numbers])


@every_one
def test_codes_take_the_bits_that_are_declared(how):
    parts = how.encode(hostile(0, {"x": (4 * how.block,)})["x"])
    assert sum(x.nbytes for x in parts) * 8 == how.bits_per_element * 4 * how.block
