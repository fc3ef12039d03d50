"""Several processes that train together have the bits of one: weights, state, what they save, and sums."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mcfsim as mcf

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

from tests.pytorch.reduced import DTYPES, cases, part

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
#: One of each way in which states lie, of which two are ordinary: bits beside the parameter, and scales.
OTHERS = ("plain", "collage-plus", "stochastic", "eco", "fp32-master", "split-master", "fp32")
OTHERS += ("int8-moments", "coat-moments")
WAYS = ("from one", "from many", "whole", "flat", "from the first")
WAYS += ("offloaded", "replicated", "in the backward pass")
#: Of the ordinary two each has half of the ways, both what one process has saved.
CASES = [
    *(("remainder-8", WAYS[::2]), ("fp8-moments", WAYS[:1] + WAYS[1::2])),
    *(pytest.param(x, WAYS, marks=pytest.mark.exhaustive) for x in (*OTHERS, "remainder-8", "fp8-moments")),
]
#: Steps of whole parameters: of their matrices, rows and columns, and of their grids.
WHOLE = ("muon collage-plus", "adafactor int8-moments", "bitnet")
#: Their groups that share scales may be cut.
STAGED = (*WHOLE, "torchmuon plain", "amsgrad kahan", "muon int8-moments", "adafactor split-master")
STAGED += ("dqt-ternary", "dqt-int4", "muon dqt-int4")
CASES += [("muon bitnet", WAYS[1:2] + WAYS[-1:])]
CASES += [pytest.param(x, WAYS, marks=pytest.mark.exhaustive) for x in STAGED]
#: Of steps element by element, of whole parameters, and of groups that share scales, one each is ordinary.
MOVED = ["stochastic", "adafactor int8-moments", "fp8-moments"]
MOVED += [
    pytest.param(x, marks=pytest.mark.exhaustive) for x in ("collage-plus", "split-master", *WHOLE[::2])
]
every_moved = pytest.mark.parametrize("moved", MOVED)


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """Return a function: of how many processes, what one came to, and what each did; they have no GPU."""
    own = [x for x in request.session.items if x.path == request.path and hasattr(x, "callspec")]
    own = [x.callspec.params for x in own]

    @functools.cache
    def of(world):
        strategies = {x["strategy"]: x["ways"] for x in own if x.get("runs") == world}
        moved, rings = ({x[name] for x in own if name in x and world == 2} for name in ("moved", "ranks"))
        folder = tmp_path_factory.mktemp("runs")
        asked = json.dumps([strategies, sorted(moved), sorted(rings)])
        command = [sys.executable, "-m", "tests.pytorch.ranks", str(world), str(folder), asked]
        there = {"cwd": Path(__file__).parents[2], "env": os.environ | {"CUDA_VISIBLE_DEVICES": ""}}
        done = subprocess.run(command, **there, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        sums = {ranks: np.load(folder / f"found by {ranks}.npz") for ranks in rings}
        found = [torch.load(folder / f"found by {i}") for i in range(world)]
        return torch.load(folder / "expected") | {"sums": sums}, found

    return of


@pytest.fixture(scope="module")
def runs(ran, request):
    """Return what came of a number of processes: if nothing else is said, of two."""
    return ran(getattr(request, "param", 2))


def assert_same(found, expected, *what):
    assert found.keys() == expected.keys(), what
    for name, x in expected.items():
        assert found[name].dtype == x.dtype, (*what, name)
        assert torch.equal(found[name], x), (*what, name)


@pytest.mark.parametrize("runs", [2, pytest.param(3, marks=pytest.mark.exhaustive)], indirect=True)
@pytest.mark.parametrize(("strategy", "ways"), CASES)
def test_processes_have_the_bits_of_one(strategy, ways, runs):
    expected, found = runs
    for rank, there in enumerate(found):
        for way in ("sharded", *ways):
            assert_same(there[strategy, way], expected[strategy], way, rank)
    assert_same(expected[strategy, "from many"], expected[strategy], "one from many")


@every_moved
def test_rows_columns_and_sums_of_parts(moved, runs):
    """What is seen of a step is counted once, whoever has it; scales lie where their groups do."""
    expected, seen, _ = runs[0]["moved"][moved]
    for there in runs[1]:
        numbers, told, _ = there["moved"][moved]
        assert_same(numbers, expected, moved)
        ((*which, edq),) = told
        assert which == [*seen[0][:3]]
        assert edq == pytest.approx(seen[0][3], rel=1e-12)


@every_moved
def test_each_process_tells_which_of_its_elements_have_changed(moved, runs):
    """By their places in the whole tensor: together they are those of one process that has all."""
    *_, expected = runs[0]["moved"][moved]
    parts = [there["moved"][moved][2] for there in runs[1]]
    for place, both in enumerate(expected):
        for kind, indices in enumerate(both):
            found = torch.cat([part[place][kind] for part in parts])
            assert torch.equal(found.unique(), indices)
            assert indices.numel() > 0
    assert any(part[0][0].numel() < expected[0][0].numel() for part in parts)  # rows


def test_no_group_that_shares_a_scale_is_cut(runs):
    for there in runs[1]:
        assert "cuts a group of 128 that share a scale" in there["cut", (250,)]
        assert "that share a scale in one process, and the scale in another" in there["cut", (3, 320)]


def test_steps_of_whole_parameters_are_not_taken_over_by_parts(runs):
    for there in runs[1]:
        assert len(there["adopted"]) == 2
        assert all("change the optimizer before the model is spread" in x for x in there["adopted"])


def test_what_others_write_is_seen_and_taken(runs):
    """Of parts that lie here, too, whose writing PyTorch counts apart."""
    for there in runs[1]:
        told, meant = there["written"]
        assert told == [0, 1]
        assert all(meant)


def test_the_package_imports_no_compiler_of_torch(runs):
    assert runs[0]["imports compiler"] is False


# -- sums over ranks ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [4, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 3))])
def test_a_ring_has_the_bits_of_gloo(ranks, runs, assert_same):
    found, unlike = runs[0]["sums"][ranks], 0
    for name, size in cases(ranks):
        parts = [part(rank, size).to(DTYPES[name]).float().numpy() for rank in range(ranks)]
        theirs = found[f"{name} {size}"]
        assert_same(mcf.reduce(parts, "ring", name), theirs)
        mean = mcf.reduce(parts, "ring", name, divide="before")
        assert_same(mean, found[f"{name} {size} mean"])
        unlike += int((mcf.reduce(parts, "sequential", name) != theirs).sum())
    assert (unlike > 0) == (ranks > 2)  # of two numbers the order does not matter
