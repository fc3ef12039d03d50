"""Every place of two algorithms altered: the judge notices, or it is said why not."""

import ast
import inspect
import sys
from dataclasses import fields
from functools import cache, partial
from itertools import pairwise, product
from types import ModuleType
from zlib import crc32

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.compile.objects import is_available
from mcfsim.optim import adafactor, muon, newton_schulz, on_grid
from mcfsim.optim.layout import Layout, bytes_per_parameter
from mcfsim.optim.stored import Reach, WeightGrid
from mcfsim.optim.strategies import FLOAT32
from mcfsim.oracle import operate
from tests.shared.alterations import alterations, usual, with_altered

from . import on_grid_reference as judge
from . import test_adafactor as stages
from . import test_muon as matrices
from .test_adafactor import GIVEN, KINDS, MIXED, assert_judged

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def dealt(names, part, parts):
    """Return those of some alterations that are in one of so many parts: of one name together."""
    return {name for name in names if crc32(name.encode()) % parts == part}


def survivors(text, alter, check, part, parts):
    """Return the alterations that a check lets pass, of those in one of so many parts; the text does."""

    def passes(tree):
        module = sys.modules["altered"] = ModuleType("altered")
        try:
            exec(compile(tree, "altered", "exec"), module.__dict__)
            check(module)
        except (Exception, pytest.fail.Exception):
            return False
        finally:
            del sys.modules["altered"]
        return True

    tree = ast.parse(inspect.getsource(text))
    assert passes(tree)
    tried = []
    for where, *place in alterations(tree, alter):
        name = f"{where}: {ast.unparse(place[0])} -> {ast.unparse(place[1])}"
        # What is refused and warned of is asked elsewhere.
        if name in dealt([name], part, parts) and not where.endswith(
            ("rounded_hyperparameters", "__post_init__")
        ):
            tried.append((name, *place))
    assert len(tried) > 12
    return {name for name, *place in tried if passes(with_altered(tree, *place))}


# -- Adafactor -----------------------------------------------------------------------------------------------
def following(*rings):
    """Return what each name is exchanged for: the one that follows it in a row."""
    return {a: b for ring in rings for a, b in pairwise(ring.split())}


#: Operations and places, numbers that are known, scalars.
METHODS = following("add sub add", "mul div mul", "sqrt abs neg", "fma mul")
METHODS |= following("ELEMENT ROW COLUMN ROW", "MATRIX TENSOR MATRIX")
KNOWN = following("square g square", "rows row_mean all_rows row_mean", "column_mean columns", "share g")
KNOWN |= following("direction_mean weight_mean direction_mean", "direction clip size clip", "variance g")
KNOWN |= following("v update v")
KNOWN |= following("factor direction factor", "m gradient")
SCALARS = following("beta2 gain2 beta1 gain1 beta2", "epsilon threshold least_scale rate decay rate")
SCALARS |= following("momentum gain momentum", "length shrinkage length")
#: Those that change no bit.
SAME = {
    # The update has the format of m, and so of g.
    "direction: converted(up, known['g'], roles.moments) -> known['g']",
    "averaged: converted(ar, new, up) -> new",
    "averaged: converted(up, m[0], ar) -> m[0]",
    # A decay of zero adds zero.
    "moved: scalars.decay -> scalars.rate",
    "averaged: scalars.decay -> scalars.rate",
    # The numbers of all matrices of a tensor are alike.
    "Adafactor.stages: Granularity.TENSOR -> Granularity.MATRIX",
}


#: Of Muon's text, those that change no bit.
SAME_OF_MUON = {
    # A decay of zero adds zero.
    "turned: scalars.shrinkage -> scalars.length",
    # Factors are rounded to nearest even, and draw no words.
    "Muon.stages: Granularity.ELEMENT -> Granularity.ROW",
}
SAME_OF_ITERATIONS = {
    # NumPy takes any negative length for the one to be found.
    *("_each: 1 -> 2", "Iterating.norm: 1 -> 2", "orthogonalize: 1 -> 2"),
    # A norm has no sign, and its exact sum is found in two ways.
    *("Iterating.norm: False -> True", "Iterating.norm: True -> False"),
    "Iterating._normalised: divisor < least -> divisor <= least",
    # How numbers lie in memory matters to PyTorch's sums alone.
    *("Iterating.iterated: True -> False", "Iterating.iterated: not in_rows -> in_rows"),
    "NewtonSchulz.__call__: not tall -> tall",
    # What the first component leaves is exact in either format, but for its rounding to the iterate's.
    "Iterating._stored: self.wide -> self.iterate",
    "lost_orthogonality: given.shape[0] > given.shape[1] -> given.shape[0] >= given.shape[1]",
}
EMPTY = Layout({"e": np.zeros(0)})


def of_iterations(node):
    """Yield what a node of an iteration's text is exchanged for."""
    yield from usual(node)
    match node:
        case ast.Attribute(value=of, attr=name, ctx=ast.Load()) if name in METHODS:
            yield ast.Attribute(of, METHODS[name], node.ctx)
        case ast.Attribute(value=of, attr=name, ctx=ast.Load()) if name in ("wide", "iterate"):
            yield ast.Attribute(of, "iterate" if name == "wide" else "wide", node.ctx)
        case ast.Name(name, ctx=ast.Load()) if name in ("a", "b", "c"):
            yield ast.Name("cab"["abc".index(name)], node.ctx)


def of_stages(node):
    """Yield what a node of Adafactor's text is exchanged for; what it warns of is asked elsewhere."""
    yield from usual(node)
    match node:
        case ast.Attribute(value=ast.Name("scalars") as of, attr=name) if name in SCALARS:
            yield ast.Attribute(of, SCALARS[name], node.ctx)
        case ast.Attribute(value=of, attr=name, ctx=ast.Load()) if name in METHODS:
            yield ast.Attribute(of, METHODS[name], node.ctx)
        case ast.Constant(float(number)):
            yield ast.Constant(number + 1)
        case ast.Constant(name) if name in KNOWN:
            yield ast.Constant(KNOWN[name])
        case ast.Call(ast.Name("converted"), args=[_, taken, _]):
            yield taken
        case ast.Call(ast.Attribute(ast.Name("ar" | "up"), "round"), args=[taken]):
            yield taken


#: A matrix, a vector, two matrices and a number.
few = partial(stages.numbers, shapes={name: stages.SHAPES[name] for name in "wbts"})


@pytest.mark.parametrize("part", range(6))
@pytest.mark.sampled(6, each=False)
@pytest.mark.costly("each altered text takes steps")
def test_adafactor_with_one_thing_altered_is_told_from_it(part, assert_same):
    def check(module):
        for own in KINDS.values():
            hyper = getattr(module, type(own).__name__)(**GIVEN)
            assert_judged(assert_same, hyper, MIXED, judge=own, make=few, steps=2)
        assert_judged(assert_same, hyper, mcf.strategy("collage-plus"), judge=own, make=few, steps=3)

    assert survivors(adafactor, of_stages, check, part, 6) == dealt(SAME, part, 6)


# -- Muon ----------------------------------------------------------------------------------------------------
PARTS_OF_MUON = 3
#: Matrices that are high and wide, a vector, two matrices, one without elements, and one that AdamW moves.
FEW = {name: matrices.SHAPES[name] for name in ("tall", "n", "b", "t", "e", "emb")}
few_matrices = partial(matrices.numbers, shapes=FEW)


@pytest.mark.parametrize("part", range(PARTS_OF_MUON))
@pytest.mark.sampled(3, each=False)
@pytest.mark.costly("each altered text takes steps")
def test_muon_with_one_thing_altered_is_told_from_it(part, assert_same):
    def check(module):
        for own in matrices.KINDS.values():
            hyper = module.Muon(**{x.name: getattr(own, x.name) for x in fields(own)})
            for strategy in (MIXED, "fp32-master"):
                matrices.assert_judged(assert_same, hyper, strategy, steps=2, judge=own, make=few_matrices)
        assert bytes_per_parameter(module.Muon(), mcf.strategy("fp32"), EMPTY) == 16
        by_name = [module.Muon(others=others).by_name for others in ((), ("*",), ("*", "w"))]
        assert by_name == [False, False, True]

    assert survivors(muon, of_stages, check, part, PARTS_OF_MUON) == dealt(SAME_OF_MUON, part, PARTS_OF_MUON)


@pytest.mark.parametrize("part", range(PARTS_OF_MUON))
@pytest.mark.exhaustive
def test_iterations_with_one_thing_altered_are_told_from_them(part, assert_same):
    def check(module):
        for own in matrices.ITERATIONS.values():
            how = module.NewtonSchulz(**{x.name: getattr(own, x.name) for x in fields(own)})
            for shape in ((2, 3), (4, 3), (3, 3)):
                matrices.assert_iterated(assert_same, how, own, shape, module.orthogonalize)
        matrices.assert_measured(module)
        matrices.assert_formulas(module.NewtonSchulz)

    found = survivors(newton_schulz, of_iterations, check, part, PARTS_OF_MUON)
    assert found == dealt(SAME_OF_ITERATIONS, part, PARTS_OF_MUON)


# -- weights on grids ----------------------------------------------------------------------------------------
SIZE = 90
SLICES = {"a": slice(0, 40), "b": slice(40, 47), "none": slice(47, 47), "c": slice(47, SIZE)}
FULL = {name: part for name, part in SLICES.items() if name != "none"}
#: By what scales follow in steps and at the start, and how weights are rounded.
WAYS = [("max", "absmean", "stochastic"), ("absmax", "max", "nearest_even")]
WAYS += [("absmean", "absmean", "nearest_even"), ("fixed", "absmax", "stochastic")]
GRIDS = [WeightGrid("int3", *way) for way in WAYS]
#: What the judge cannot notice.
ALIKE = {
    # There is a scale for each tensor.
    *("OnGrid.measures: True -> False", "OnGrid._scaled: True -> False", "OnGrid.go_on: True -> False"),
    # NumPy takes any negative length for the one to be found; of a vector of scales the first is taken.
    *("on_grid: 1 -> 2", "scale_of: 1 -> 2"),
    # Without a loop NumPy puts them there.
    "_put: if random is not None and _looped(weights, scale, _program(grid, ar.format, rounding), random, "
    "first):\n    return clipped -> if False:\n    return clipped",
}


def numbers(seed):
    random = np.random.default_rng(seed)
    x = random.standard_normal(SIZE) * 0.02
    x[40:47] = -np.abs(x[40:47]) if seed % 2 else np.array([3, -4, 1, -1, 2, 0, 0.5]) / 64  # at both ends
    x[50:53] = 0.0, -0.0, 1e-30
    return x.astype(np.float32)


@cache
def on_grids(placed):
    """Return weights before and after a start and two steps, scales and measures, and how many it clips."""
    low, high, found, clipped = placed.integers.low, placed.integers.high, [], 0
    weights, scales, first = numbers(0).tolist(), {}, {}
    for step in range(3):
        after = numbers(step).tolist()
        reach = str(placed.reach if step else placed.start)
        old = after if step == 0 or reach == "absmean" else weights
        drawn = judge.words(4, step, 0, SIZE) if step and placed.draws else [None] * SIZE
        made, counts = [], []
        for name, part in FULL.items():
            s = scales[name] = scales[name] if reach == "fixed" else judge.scale(old[part], high, reach)
            size = first.setdefault(name, s) / s
            lie = [judge.put(x, s, low, high, k)[0] for x, k in zip(after[part], drawn[part], strict=True)]
            integers = [[judge.put(x, s, -(10**9), 10**9)[1] for x in y] for y in (weights[part], lie)]
            changed = sum(k != n for k, n in zip(*integers, strict=True))
            counts.append([changed, sum(n in (low, high) for n in integers[1]), len(lie) * size, len(lie)])
            if step == 0:
                clipped += sum(not low <= operate("mul", [x, s], FLOAT32) <= high for x in after[part])
            made += lie
        whole = [sum(items) for items in zip(*counts, strict=True)]
        measures = [[x / row[-1] for x in row[:-1]] for row in (whole, counts[0])]
        found.append((np.float32(weights), made, [*scales.values()], [*measures, [np.nan] * 3]))
        weights = made
    return found, clipped


def check_grids(module):
    module.BLOCK = 16
    for module.COMPILED, placed in product((False, True) if is_available() else (False,), GRIDS):
        steps, clipped = on_grids(placed)
        made = module.OnGrid(placed, FLOAT32, SLICES, mcf.RandomWords(4))
        for step, (before, after, scales, measures) in enumerate(steps):
            weights = numbers(step)
            if step:
                made.before(before)
                made.after(weights, step if placed.draws else step + 2**32)  # beyond the steps with words
            else:
                made.begin(weights)
            assert judge.same(weights, after)
            assert judge.same(np.delete(made.scales, 2), scales)  # but that of no weights
            assert made.clipped == clipped
            for part, expected in zip((slice(0, SIZE), SLICES["a"], SLICES["none"]), measures, strict=True):
                found = made.measures(before, weights, part)
                assert list(found) == ["changed", "at_ends", "grid_size"]
                assert not step or judge.same([*found.values()], expected)
        assert [x.shape for x in made.kept] == [(4,), (4,), (1,)]
        other, begun, untouched = (
            module.OnGrid(placed, FLOAT32, SLICES, mcf.RandomWords(4)),
            *map(numbers, (0, 1)),
        )
        other.go_on(None, begun)
        assert judge.same(begun, steps[0][1])
        assert other.clipped == clipped
        other.go_on(made, untouched)
        assert judge.same(untouched, numbers(1))
        assert all(judge.same(x, y) for x, y in zip(other.kept, made.kept, strict=True))
    special = np.array([[0.0, -0.0], [-1.0, -2.0], [np.inf, 1.0], [np.nan, 1.0], [1e-7, 0.0]], np.float32)
    for row, reach in product(special, ("max", "absmax", "absmean")):
        placed, s = WeightGrid("int4", start=reach), judge.scale(row.tolist(), 7, reach)
        assert judge.same(module.scale_of(row, placed, Reach(reach), FLOAT32), s)
        lie = [[judge.put(x, s, -8, 7)[0]] for x in row.tolist()]
        assert judge.same(module.on_grid(row.reshape(2, 1), placed, FLOAT32), lie)
    with pytest.raises(ValueError, match="does not hold"):
        module.on_grid(special[4], "int8", mcf.get_format("float8_e4m3fn"))
    assert module.scale_of(special[0, :0], WeightGrid("int4"), Reach.MAX, FLOAT32) == 1
    by_name = module.on_grid(special[4], "int4", FLOAT32)
    assert judge.same(by_name, module.on_grid(special[4], WeightGrid("int4"), FLOAT32))


@pytest.mark.parametrize("part", range(4))
@pytest.mark.sampled(4, each=False)
def test_weights_put_on_grids_otherwise_are_told_from_those_that_are_not(part):
    assert survivors(on_grid, usual, check_grids, part, 4) == dealt(ALIKE, part, 4)
