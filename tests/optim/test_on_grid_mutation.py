"""Every place of the text that puts weights on grids, altered: the judge notices, or it is said why not."""

import ast
import types
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats.grids import grid
from mcfsim.optim import on_grid
from mcfsim.optim.strategies import FLOAT32
from mcfsim.optim.weight_grid import Reach, WeightGrid
from mcfsim.oracle import operate
from tests.shared.alterations import alterations, usual, with_altered

from . import on_grid_reference as judge

pytestmark = pytest.mark.slow

SLICES = {"a": slice(0, 40), "b": slice(40, 47), "none": slice(47, 47), "c": slice(47, 90)}
SIZE = 90
KINDS = [
    WeightGrid(grid("int3"), reach=reach, start=start, rounding=rounding)
    for reach, start, rounding in (
        ("max", "absmean", "stochastic"),
        ("absmax", "max", "nearest_even"),
        ("absmean", "absmean", "nearest_even"),
        ("fixed", "absmax", "stochastic"),
    )
]


#: What the judge cannot notice, and why.
ALIKE = {
    "there is a scale for each tensor": {"OnGrid.measures: True -> False", "OnGrid._scaled: True -> False"},
    "NumPy takes any negative length for the one to be found": {"on_grid: 1 -> 2"},
    "of a vector of scales the first is taken": {"scale_of: 1 -> 2"},
}


def numbers(seed):
    random = np.random.default_rng(seed)
    x = random.standard_normal(SIZE) * 0.02
    x[40:47] = -np.abs(x[40:47]) if seed % 2 else np.array([3, -4, 1, -1, 2, 0, 0.5]) / 64  # at both ends
    x[50:53] = 0.0, -0.0, 1e-30
    return x.astype(np.float32)


def expected(placed):
    """Return what the judge makes of a start and two steps, and how many weights it clips at the start."""
    low, high, found = placed.integers.low, placed.integers.high, []
    weights, scales, first, clipped = numbers(0).tolist(), {}, {}, 0
    for step in range(3):
        after = numbers(step).tolist()
        reach = str(placed.reach if step else placed.start)
        old = after if step == 0 or reach == "absmean" else weights
        drawn = judge.words(4, step, 0, SIZE) if step and placed.draws else [None] * SIZE
        made, counts = [], []
        for name, part in SLICES.items():
            if part.start == part.stop:
                continue
            if reach != "fixed":
                scales[name] = judge.scale(old[part], high, reach)
            s = scales[name]
            first.setdefault(name, s)
            pairs = zip(after[part], drawn[part], strict=True)
            lie = [judge.put(x, s, low, high, word)[0] for x, word in pairs]
            integers = [[judge.put(x, s, -(10**9), 10**9)[1] for x in y] for y in (weights[part], lie)]
            changed = sum(k != n for k, n in zip(*integers, strict=True))
            ends = sum(n in (low, high) for n in integers[1])
            counts.append([changed, ends, len(lie) * (first[name] / s), len(lie)])
            if step == 0:
                clipped += sum(not low <= operate("mul", [x, s], FLOAT32) <= high for x in after[part])
            made += lie
        before, weights = weights, made
        whole = [sum(items) for items in zip(*counts, strict=True)]
        measures = [[x / row[-1] for x in row[:-1]] for row in (whole, counts[0])]
        found.append((before, made, list(scales.values()), *measures))
    return found, clipped


@cache
def all_expected():
    return [expected(placed) for placed in KINDS]


def agrees(module):
    """Whether a module's text has the judge's results, or fails."""
    for placed, (steps, clipped) in zip(KINDS, all_expected(), strict=True):
        made = module.OnGrid(placed, FLOAT32, SLICES, mcf.RandomWords(4))
        for step, (before, after, scales, whole, first) in enumerate(steps):
            weights = numbers(step)
            old = np.array(before, np.float32)
            if step:
                made.before(old)
                made.after(weights, step)
            else:
                made.begin(weights)
            present = [
                scale
                for scale, part in zip(made.scales, SLICES.values(), strict=True)
                if part.start < part.stop
            ]
            if not (judge.same(weights, after) and judge.same(present, scales) and made.clipped == clipped):
                return False
            if step:
                found = made.measures(old, weights, slice(0, SIZE))
                one = made.measures(old, weights, SLICES["a"])
                if list(found) != ["changed", "at_ends", "grid_size"] or not (
                    judge.same(list(found.values()), whole)
                    and judge.same(list(one.values()), first)
                    and judge.same(list(made.measures(old, weights, SLICES["none"]).values()), [np.nan] * 3)
                ):
                    return False
    special = np.array([[0.0, -0.0], [-1.0, -2.0], [np.inf, 1.0], [np.nan, 1.0], [1e-7, 0.0]], np.float32)
    for row in special:
        for reach in ("max", "absmax", "absmean"):
            placed = WeightGrid("int4", start=reach)
            s = judge.scale(row.tolist(), 7, reach)
            if not judge.same(module.scale_of(row, placed, Reach(reach), FLOAT32), s):
                return False
            made = module.on_grid(row.reshape(2, 1), placed, FLOAT32)
            lie = [[judge.put(x, s, -8, 7)[0]] for x in row.tolist()]
            if made.shape != (2, 1) or not judge.same(made, lie):
                return False
    with pytest.raises(ValueError, match="does not hold"):
        module.on_grid(special[4], "int8", mcf.get_format("float8_e4m3fn"))
    if module.scale_of(special[0, :0], WeightGrid("int4"), Reach.MAX, FLOAT32) != 1:
        return False
    return judge.same(
        module.on_grid(special[4], "int4", FLOAT32), module.on_grid(special[4], WeightGrid("int4"), FLOAT32)
    )


def module_of(tree):
    module = types.ModuleType("altered")
    module.__dict__["__name__"] = "altered"
    exec(compile(tree, "altered", "exec"), module.__dict__)
    module.BLOCK = 16
    return module


@pytest.mark.parametrize("part", range(4))
@pytest.mark.sampled(4, each=False)
def test_the_text_agrees_and_every_altered_one_does_not(part):
    tree = ast.parse(Path(on_grid.__file__).read_text())
    assert agrees(module_of(tree))
    survived, tried = set(), 0
    for where, node, altered in alterations(tree, usual):
        name = f"{where}: {ast.unparse(node)} -> {ast.unparse(ast.fix_missing_locations(altered))}"
        if crc32(name.encode()) % 4 != part:
            continue
        tried += 1
        with np.errstate(all="ignore"):
            try:
                alike = agrees(module_of(with_altered(tree, node, altered)))
            except (Exception, pytest.fail.Exception):
                alike = False
        if alike:
            survived.add(name)
    assert tried > 12
    assert survived == {name for name in set().union(*ALIKE.values()) if crc32(name.encode()) % 4 == part}
