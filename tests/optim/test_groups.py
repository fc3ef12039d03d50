"""Moments kept as codes with a scale a group: by the judge, and the bits of those that lie as numbers."""

import importlib.util
import os
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.memory import footprint
from mcfsim.optim import optimizer as stepping
from mcfsim.optim import stripes
from mcfsim.optim.edges import Edges
from mcfsim.optim.groups import Groups
from mcfsim.optim.memory import read
from mcfsim.optim.strategies import Stored
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.formats import SCALED

from .reference import Element, kept

E4M3 = mcf.get_format("float8_e4m3fn")
#: Of parts of a group, of whole groups, of one more and one less, and of none.
SIZES = {"w": 40000, "empty": 0, "a": 127, "b": 128, "c": 129, "s": 1, "d": 300, "last": 0}
DECAYED = {"c", "w", "last"}
needs_numba = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("numba", "platformdirs")),
    reason="Numba is not installed",
)


def hostile(rng, size):
    """Return numbers of all sizes, subnormal ones among them, whole groups of zeros, infinities and NaN."""
    x = (rng.standard_normal(size) * 10.0 ** rng.integers(-44, 3, size)).astype(np.float32)
    if size > 1000:
        x[200:900] = 0.0
        x[1000:1003] = np.inf, -np.inf, np.nan
        x[1300:1306] = -0.0, 3e38, -3e38, 1e-45, 1e-38, 448.0
    return x


def tensors(seed, sizes):
    rng = np.random.default_rng(seed)
    return {name: hostile(rng, size) for name, size in sizes.items()}


def trained(strategy="fp8-moments", mode="nearest_even", *, hyper=None, sizes=None, steps=3, **options):
    """Return an optimizer after some steps, with the numbers of its state and of the updates."""
    sizes = sizes or SIZES
    if mode == "stochastic":
        options["random"] = mcf.RandomWords(3)
    start, made = tensors(0, sizes), mcf.strategy(strategy)
    optimizer = mcf.Optimizer(hyper or mcf.AdamW(), made, start, DECAYED & {*sizes}, mode, **options)
    asked = []
    for step in range(1, 1 + steps):
        update = optimizer.step(optimizer.receive(tensors(step, sizes)), 1e-3)
        asked.append(read(update, optimizer.roles.update.format))
    pairs = zip(optimizer.state, optimizer.formats, strict=True)
    return optimizer, [*asked, *(read(x, fmt) for items, fmt in pairs for x in items)]


def compare(assert_same, *given, **options):
    mine = {key: options.pop(key) for key in ("compiled", "threads", "folder") if key in options}
    _, expected = trained(*given, **options, compiled=False)
    optimizer, found = trained(*given, **options, **mine, packed=True)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert_same(one, other)
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


@pytest.mark.parametrize("size", [1, 4, 5, 1000])
def test_blocks_end_where_groups_do(size):
    edges = Edges([slice(0, 9), slice(9, 10), slice(10, 10), slice(10, 31)], 4)
    found = list(stripes.blocks(slice(9, 31), size, edges))
    assert [part.start for part in found] == [9, *(part.stop for part in found[:-1])]
    assert found[-1].stop == 31
    ends = {10, 14, 18, 22, 26, 30, 31}
    for part in found:
        assert part.stop in ends
        assert part.stop - part.start <= max(size, 4)
        later = [end for end in ends if part.stop < end <= part.start + max(size, 4)]
        assert not later


# -- the judge -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sizes", [{"a": 129, "s": 1, "d": 5}], ids=str)
def test_codes_and_scales_are_those_of_the_judge(sizes):
    """Two steps in fractions; codes are read by ml_dtypes, and a scale is the largest number by 448."""
    hyper, low = mcf.AdamW(0.9, 0.95, 1e-8, 0.0), mcf.get_format("bfloat16")
    start = {name: np.ones(size) for name, size in sizes.items()}
    optimizer = mcf.Optimizer(hyper, mcf.strategy("fp8-moments"), start, packed=True)
    elements = {name: [Element("fp8-moments", low, 1.0) for _ in range(size)] for name, size in sizes.items()}
    for step in range(2):
        rng = np.random.default_rng(step)
        given = {
            name: mcf.round_to(rng.standard_normal(size) * 2.0 ** rng.integers(-20, 1, size), low)
            for name, size in sizes.items()
        }
        given["a"][3:5] = 0.0, 2.0**-149
        optimizer.step(optimizer.receive(given), 2.0**-7)
        for name, part in elements.items():
            for element, g in zip(part, given[name].tolist(), strict=True):
                element.adamw(g, 2.0**-7, 0.9, 0.95, 1e-8, 0.0)
            for moment in "mv":
                before = np.array([getattr(x, moment) for x in part])
                after = kept(before, E4M3, 128)
                (vector,) = getattr(optimizer.state, moment)
                mine = vector[optimizer.layout.slices[name]]
                largest = [np.abs(before[i : i + 128]).max() for i in range(0, len(part), 128)]
                assert mine.scales.tolist() == [float(np.float32(x / 448)) for x in largest]
                by_code = mine.codes.view(ml_dtypes.float8_e4m3fn).astype(float)
                stored = (by_code * np.repeat(mine.scales.astype(float), 128)[: len(part)]).astype(np.float32)
                assert stored.tolist() == after
                for element, number in zip(part, after, strict=True):
                    setattr(element, moment, number)


# -- the bits of moments that lie as numbers -----------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(("mode", "ways"), [("nearest_even", {}), ("stochastic", {"threads": 2})], ids=str)
def test_packed_steps_have_the_same_bits(mode, ways, assert_same, monkeypatch, tmp_path):
    monkeypatch.setattr(stepping, "BLOCK", 1000)
    monkeypatch.setattr(stripes, "_STRIPE", 3000)
    folder = tmp_path / "state" if ways else None
    optimizer = compare(assert_same, "fp8-moments", mode, folder=folder, compiled=False, **ways)
    assert all(isinstance(x, Groups) for x in (*optimizer.state.m, *optimizer.state.v))
    if folder:
        names = ["extra0", "gradient", "m0", "m0_scales", "parameter0", "v0", "v0_scales"]
        assert sorted(os.listdir(folder)) == [f"{name}.npy" for name in names]
        np.testing.assert_array_equal(np.load(folder / "v0_scales.npy"), optimizer.state.v[0].scales)


@needs_numba
@pytest.mark.slow
def test_compiled_packed_steps_have_the_same_bits(assert_same, monkeypatch):
    """Of numbers in float32, and of such that the loop takes as codes."""
    monkeypatch.setattr(stepping, "BLOCK", 5000)
    strategy = replace(mcf.strategy("fp8-moments"), v=Stored("bfloat16", scaled="mxfp8_e5m2"))
    compare(assert_same, strategy, compiled=True, threads=2)


def scaled(element, block, scale="float32", rule="absmax"):
    return ScaledFormat(f"{element}", element=element, block=block, scale=scale, rule=rule)


@pytest.mark.parametrize(
    ("m", "v"),
    [
        ("mxfp8_e5m2", "mxfp8_e4m3"),
        ("mxint8", "mxfp4"),
        (scaled(E4M3, 48), scaled(E4M3, 32)),  # whose common edges are those of 96
        (scaled(E4M3, 128, rule="absmean"), None),  # of a short group the mean is that of what it has
        (scaled(E4M3, 10**9), scaled(E4M3, 48)),
        (Stored("bfloat16", scaled="mxfp8_e5m2"), "mxfp6_e3m2"),
        (scaled("float16", 1), scaled("bfloat16", 1000, "float16")),
        (scaled("float8_e5m2", 7, "float8_e8m0fnu", "round_up"), scaled("e8m13", 64)),
    ],
    ids=str,
)
def test_packed_steps_have_the_same_bits_in_other_formats(m, v, assert_same, monkeypatch):
    monkeypatch.setattr(stepping, "BLOCK", 333)
    sizes = {"w": 1500, **{name: size for name, size in SIZES.items() if size < 1000}}
    given = {"m": m, "v": v}
    moments = {
        slot: item if isinstance(item, Stored) else Stored("float32", scaled=item)
        for slot, item in given.items()
    }
    strategy = replace(mcf.strategy("fp8-moments"), name="other", **moments)
    optimizer = compare(assert_same, strategy, sizes=sizes, compiled=False)
    assert isinstance(optimizer.state.v[0], Groups) == (v is not None)


def test_an_optimizer_with_one_moment(assert_same):
    optimizer = compare(assert_same, hyper=mcf.SGD(), sizes={"w": 2001, "c": 129})
    assert len(optimizer.state.m) == 1
    assert not optimizer.state.v


@pytest.mark.slow
def test_groups_of_thousands_of_tensors_are_quantised_together(assert_same, monkeypatch):
    """Those of one length at once, where no text does it."""
    monkeypatch.setattr("mcfsim.optim.groups.text_of", lambda *given: None)
    sizes = {f"t{i}": 1 + i % 3 for i in range(3000)}
    calls = []
    monkeypatch.setattr(
        "mcfsim.optim.groups.quantize", lambda *given: calls.append(1) or mcf.quantize(*given)
    )
    trained(sizes=sizes, packed=True, steps=1)
    assert len(calls) == 2 * 3
    compare(assert_same, sizes={name: sizes[name] for name in list(sizes)[:50]})


# -- memory --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sizes", [{"w": 1280, "b": 128}, SIZES], ids=["whole groups", "short groups"])
def test_the_state_takes_the_bytes_that_are_counted(sizes):
    optimizer = mcf.Optimizer(
        mcf.AdamW(), mcf.strategy("fp8-moments"), {name: np.ones(n) for name, n in sizes.items()}, packed=True
    )
    gradient = optimizer.receive({name: np.ones(n) for name, n in sizes.items()})
    size = optimizer.layout.size
    for (vector,) in (optimizer.state.m, optimizer.state.v):
        assert vector.nbytes == size + 4 * sum(-(-n // 128) for n in sizes.values())
    taken = gradient.nbytes + sum(x.nbytes for items in optimizer.state for x in items)
    counted = footprint(optimizer.strategy).total * size
    assert float(counted) == optimizer.strategy.bytes_per_parameter * size
    short = sum(1 for n in sizes.values() if n % 128)
    # A group that is not full has a whole scale, in each moment, where a share is counted.
    assert counted <= taken < counted + 2 * 4 * short or taken == counted


def test_a_group_is_not_cut():
    optimizer, _ = trained(sizes={"w": 300, "c": 129}, packed=True, steps=1)
    (vector,) = optimizer.state.m
    numbers, inner = vector.numbers(), vector[128:428]
    np.testing.assert_array_equal(vector[slice(None)].numbers(), numbers)
    np.testing.assert_array_equal(inner.numbers(), numbers[128:428])
    np.testing.assert_array_equal(inner[128:172].numbers(), numbers[256:300])
    inner[128:172].keep(np.arange(44, dtype=np.float32))
    assert vector.numbers()[299] == 43
    np.testing.assert_array_equal(
        np.delete(vector.numbers(), slice(256, 300)), np.delete(numbers, slice(256, 300))
    )
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
        mcf.Optimizer(mcf.AdamW(), strategy, {"w": np.ones(3)}, packed=True, folder=tmp_path / "state")
    assert os.listdir(tmp_path) == []
    mcf.Optimizer(mcf.AdamW(), strategy, {"w": np.ones(3)})
    assert mcf.Optimizer(mcf.SGD(), strategy, {"w": np.ones(3)}, packed=True).packed  # it has no v
