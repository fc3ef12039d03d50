"""Adafactor, whose steps have means in them: by the judge, in every strategy, and wherever it is used."""

import ast
import inspect
import math
import sys
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from mpmath import MPContext

import mcfsim as mcf
from mcfsim.backends.factory import on_blocks
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.models.saving import load_state, save_state
from mcfsim.models.weights import open_tensors
from mcfsim.optim import adafactor
from mcfsim.optim.adafactor import Adafactor, MomentumAdafactor
from mcfsim.optim.means import mean
from mcfsim.optim.memory import read
from mcfsim.optim.over import Over
from mcfsim.optim.parts import Parts, bytes_per_parameter, offsets
from mcfsim.optim.strategies import Stored, Strategy
from mcfsim.oracle import round_fraction
from mcfsim.training.source import Computed
from mcfsim.training.trainer import Trainer
from tests.shared.alterations import with_altered

from .factored import Tensor

SHAPES = {"w": (4, 5), "b": (3,), "one": (1, 4), "t": (2, 2, 3), "s": (), "e": (3, 0), "n": (3, 1), "l": (1,)}
DECAYED = {"w", "s", "t"}
GIVEN = {"epsilon": 2.0**-40, "threshold": 0.75, "least_scale": 0.5, "weight_decay": 0.1}
KINDS = {"adafactor": Adafactor(**GIVEN), "momentumadafactor": MomentumAdafactor(**GIVEN)}
STORED = [name for name in mcf.STRATEGIES if name not in ("exact", "eco")]
MIXED = Strategy(
    "mixed", parameter=Stored("bfloat16", 2), m=Stored("e8m4"), v=Stored("e8m10"), addition="grow"
)
MIXED = mcf.strategy(MIXED, "bfloat16")
BY_BF16 = mcf.Accumulator("bfloat16", block=2)
every_kind = pytest.mark.parametrize("kind", KINDS)


def numbers(seed, scale=0):
    """Return tensors of many magnitudes, zeros among them, as the low format has them."""
    random, made = np.random.default_rng(seed), {}
    for name, shape in SHAPES.items():
        x = random.standard_normal(shape) * 2.0 ** random.integers(-9 + scale, 3 + scale, shape)
        made[name] = mcf.round_to(np.where(random.random(shape) < 0.1, 0.0, x), "bfloat16")
    return made


def rate(step):
    """Return a rate that is now below the largest, now above it."""
    return 2.0**-4 if step % 2 else 2.0


def trained(hyper, strategy, rounding="nearest_even", steps=3, given=numbers, **options):
    """Return an optimizer after each of some steps, with the update."""
    start = given(100)
    optimizer = mcf.Optimizer(hyper, strategy, start, DECAYED & start.keys(), rounding, **options)
    for step in range(1, steps + 1):
        asked = optimizer.step(optimizer.receive(given(step)), rate(step))
        yield optimizer, asked


def assert_judged(hyper, strategy, rounding="nearest_even", given=numbers, steps=3):
    policy, start = mcf.rounding.get_rounding(rounding), given(100)
    made = trained(hyper, strategy, rounding, steps, given)
    optimizer, asked = next(made)
    before = offsets(optimizer.layout)
    tensors = {
        name: Tensor(
            *(hyper, strategy, start[name].shape, np.ravel(start[name]).tolist()),
            [before[name][over] for over in Over],
            decayed=name in DECAYED,
            rounding=policy,
        )
        for name in optimizer.layout.shapes
    }
    for step in range(1, steps + 1):
        for name, tensor in tensors.items():
            part = optimizer.layout.slices[name]
            if part.start == part.stop:
                continue
            judged = tensor.step(np.ravel(given(step)[name]).tolist(), step, rate(step))
            np.testing.assert_array_equal(asked[part], judged, err_msg=name)
            tensor.requantize()
            for label, expected in tensor.state().items():
                where = optimizer.parts[label].tensor(name) if label in optimizer.parts else part
                found = [np.asarray(x[where], np.float64) for x in getattr(optimizer.state, label)]
                np.testing.assert_array_equal(found, np.reshape(expected, np.shape(found)), err_msg=name)
                signs = (np.where(np.isnan(x), False, np.signbit(x)) for x in (found, expected))
                np.testing.assert_array_equal(*signs, err_msg=name)
        optimizer, asked = next(made, (optimizer, asked))


@every_kind
def test_errors_are_not_fed_back(kind):
    with pytest.raises(ValueError, match=f"{type(KINDS[kind]).__name__} has no formula for that"):
        mcf.Optimizer(KINDS[kind], mcf.strategy("eco"), numbers(0))


@every_kind
@pytest.mark.parametrize("rounding", ["nearest_even", "up", "down", "toward_zero"])
@pytest.mark.parametrize("strategy", STORED)
@pytest.mark.sampled(6)
@pytest.mark.slow
def test_steps_are_those_of_the_judge(kind, strategy, rounding):
    expanding = mcf.STRATEGIES[strategy].addition == "grow"  # whose exact errors are those of nearest
    assert_judged(KINDS[kind], mcf.strategy(strategy), "nearest_even" if expanding else rounding)


@every_kind
def test_moments_of_another_format_are_those_of_the_judge(kind):
    assert_judged(KINDS[kind], MIXED)


@every_kind
@pytest.mark.parametrize("strategy", ["plain", "fp32-master"])
def test_means_by_a_stated_sum_are_those_of_the_judge(kind, strategy):
    hyper = replace(KINDS[kind], accumulator=BY_BF16)
    assert_judged(hyper, mcf.strategy(strategy))
    exactly, by_bf16 = (
        [optimizer.state.v[0].tolist() for optimizer, _ in trained(given, mcf.strategy(strategy), steps=1)]
        for given in (KINDS[kind], hyper)
    )
    assert exactly != by_bf16


@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_finite_is_as_the_judge_has_it(seed):
    random = np.random.default_rng(seed)

    def strange(step):
        made = numbers(step, scale=6)
        for x in made.values():
            if step < 100 and x.size:
                x.reshape(-1)[random.integers(x.size)] = (np.nan, np.inf, -np.inf, 3e38)[step % 4]
        return {name: x.copy() for name, x in made.items()}

    known = {step: strange(step) for step in (1, 2, 3, 100)}
    for name in ("plain", "fp32-master"):
        assert_judged(Adafactor(), mcf.strategy(name), given=known.__getitem__)


# -- the judge is attacked ----------------------------------------------------------------------------------
#: What a call of an arithmetic is exchanged for, and scalars for each other.
EXCHANGED = {
    "add": "sub",
    "sub": "add",
    "mul": "div",
    "div": "mul",
    "sqrt": "abs",
    "abs": "neg",
    "fma": "mul",
}
SCALARS = {
    **{"beta2": "gain2", "gain2": "beta1", "epsilon": "threshold", "threshold": "least_scale"},
    **{"least_scale": "rate", "decay": "rate", "rate": "decay", "beta1": "gain1", "gain1": "beta2"},
}
KNOWN = {
    **{"square": "g", "g": "square", "rows": "row_mean", "row_mean": "all_rows", "column_mean": "columns"},
    **{"share": "g", "direction_mean": "weight_mean", "weight_mean": "direction_mean", "clip": "size"},
    **{"size": "clip", "variance": "g", "direction": "clip", "all_rows": "row_mean"},
}
PLACES = {"ELEMENT": "ROW", "ROW": "COLUMN", "COLUMN": "ROW", "MATRIX": "TENSOR", "TENSOR": "MATRIX"}
#: Into how many parts the alterations are dealt.
PARTS = 6
#: Those that change no bit.
SAME = {
    # The update has the format of m, and so of g.
    "direction: crossed(up, known['g'], roles.moments) -> known['g']",
    "averaged: crossed(ar, new, up) -> new",
    "averaged: crossed(up, m[0], ar) -> m[0]",
    # A decay of zero adds zero.
    "moved: scalars.decay -> scalars.rate",
    "averaged: scalars.decay -> scalars.rate",
    # The numbers of all matrices of a tensor are alike.
    "stages: Over.TENSOR -> Over.MATRIX",
}


def mutants():
    """Yield the module's text with one thing altered, and what that is."""
    tree = ast.parse(inspect.getsource(adafactor))
    methods = [x for kind in tree.body if isinstance(kind, ast.ClassDef) for x in kind.body]
    functions = [x for x in [*tree.body, *methods] if isinstance(x, ast.FunctionDef)]
    for function in functions:
        if function.name in ("entering", "__post_init__"):
            continue
        for node in (x for statement in function.body for x in ast.walk(statement)):
            for altered in _altered(node):
                where = f"{function.name}: {ast.unparse(node)} -> {ast.unparse(altered)}"
                yield where, ast.unparse(with_altered(tree, node, altered))


def _altered(node):
    if isinstance(node, ast.Attribute) and node.attr in EXCHANGED and isinstance(node.ctx, ast.Load):
        yield ast.Attribute(node.value, EXCHANGED[node.attr], node.ctx)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "scalars":
        yield ast.Attribute(node.value, SCALARS[node.attr], node.ctx)
    if isinstance(node, ast.Constant) and isinstance(node.value, float | int):
        yield ast.Constant(node.value + 1)
    if isinstance(node, ast.Constant) and node.value in KNOWN:
        yield ast.Constant(KNOWN[node.value])
    if isinstance(node, ast.Constant) and node.value in ("v", "update"):
        yield ast.Constant("update" if node.value == "v" else "v")
    if isinstance(node, ast.Attribute) and node.attr in PLACES:
        yield ast.Attribute(node.value, PLACES[node.attr], node.ctx)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("crossed", "ar.round", "up.round"):
        yield node.args[-2] if ast.unparse(node.func) == "crossed" else node.args[0]
    if isinstance(node, ast.If):
        yield ast.If(ast.Constant(False), node.body, node.orelse)


def few(step):
    """Return a matrix, two, a vector and a number."""
    return {name: x for name, x in numbers(step).items() if name in ("w", "t", "b", "s")}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.sampled(PARTS, each=False)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_text_with_one_thing_altered_is_told_from_it(part, monkeypatch):
    def survives(text):
        module = ModuleType("altered")
        monkeypatch.setitem(sys.modules, "altered", module)
        try:
            exec(compile(text, "altered", "exec"), module.__dict__)
            for kind in (module.Adafactor, module.MomentumAdafactor):
                assert_judged(kind(**GIVEN), MIXED, given=few, steps=2)
            assert_judged(kind(**GIVEN), mcf.strategy("collage-plus"), given=few, steps=3)
        except (AssertionError, AttributeError, KeyError, ValueError, IndexError, TypeError):
            return False
        return True

    assert survives(inspect.getsource(adafactor))
    found = list(mutants())
    assert len(found) > 150
    tried = found[part::PARTS]
    assert {where for where, text in tried if survives(text)} == SAME & {where for where, _ in tried}


# -- wherever it is computed --------------------------------------------------------------------------------
def large(step):
    random = np.random.default_rng(step)
    shapes = {"w": (130, 70), "b": (5000,), "t": (2, 50, 60)}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def states(hyper, strategy, given=large, **options):
    """Return what an optimizer holds after some steps, as numbers, and the last update."""
    *_, (optimizer, asked) = trained(hyper, mcf.strategy(strategy), given=given, steps=2, **options)
    held = zip(optimizer.state, optimizer.formats, strict=True)
    return [read(x, fmt) for part, fmt in held for x in part] + [read(asked, optimizer.roles.update.format)]


def assert_same_states(found, expected, assert_same):
    for mine, other in zip(found, expected, strict=True):
        assert_same(mine, other)


@pytest.mark.parametrize(
    ("kind", "strategy"), [("adafactor", "collage-plus"), ("momentumadafactor", "plain")]
)
@pytest.mark.slow
def test_compiled_stages_have_the_bits_of_numpy(kind, strategy, assert_same):
    pytest.importorskip("numba")
    expected = states(KINDS[kind], strategy, compiled=False)
    assert_same_states(states(KINDS[kind], strategy, compiled=True), expected, assert_same)


@pytest.mark.parametrize("options", [{"threads": 2}, {}], ids=["threads", "blocks"])
@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "fp8-moments", "stochastic", "fp32-master"])
@every_kind
@pytest.mark.sampled(3)
@pytest.mark.slow
def test_bits_depend_on_no_blocks_and_no_threads(kind, strategy, options, assert_same, monkeypatch):
    expected = states(KINDS[kind], strategy, compiled=False)
    monkeypatch.setattr("mcfsim.optim.staged_step.BLOCK", 777)
    assert_same_states(states(KINDS[kind], strategy, **options), expected, assert_same)


@pytest.mark.exhaustive
def test_random_roundings_of_all_operations_are_those_of_numpy(assert_same):
    pytest.importorskip("numba")
    options = {"rounding": "stochastic", "random": mcf.RandomWords(3)}
    expected = states(KINDS["momentumadafactor"], "fp32-master", compiled=False, **options)
    found = states(KINDS["momentumadafactor"], "fp32-master", compiled=True, **options)
    assert_same_states(found, expected, assert_same)
    others = states(KINDS["momentumadafactor"], "fp32-master", **{**options, "random": mcf.RandomWords(4)})
    assert any((mine != other).any() for mine, other in zip(others, expected, strict=True))


@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "split-master", "fp8-moments"])
@every_kind
def test_packed_states_and_files_have_the_same_bits(kind, strategy, tmp_path, assert_same):
    expected = states(KINDS[kind], strategy, numbers)
    assert_same_states(states(KINDS[kind], strategy, numbers, packed=True), expected, assert_same)
    options = {"packed": True, "folder": tmp_path / "state"}
    assert_same_states(states(KINDS[kind], strategy, numbers, **options), expected, assert_same)


def test_watched_steps_are_the_same_and_counted():
    optimizer = mcf.Optimizer(Adafactor(), mcf.strategy("plain"), {"w": np.ones((70, 60))}, compiled=True)
    plain = mcf.Optimizer(Adafactor(), mcf.strategy("plain"), {"w": np.ones((70, 60))})
    meter = mcf.Meter(optimizer.roles.moments)
    optimizer.roles = type(optimizer.roles)(*[meter] * 5)
    gradient = large(0)["b"][:4200].copy()
    for one in (optimizer, plain):
        one.step(gradient, 1e-2)
    np.testing.assert_array_equal(optimizer.state.parameter, plain.state.parameter)
    # The gradient, and the update before it is added; means of 70 rows, 60 columns, all of them and two more.
    assert meter.tallies["round"].elements == 3 * 4200 + 70 + 60 + 1 + 2
    assert meter.tallies["sqrt"].elements == 4200 + 2
    assert meter.tallies["fma"].elements == 70 + 60 + 2


# -- what a step is -----------------------------------------------------------------------------------------
def test_the_formulas_of_the_paper_in_exact_arithmetic():
    """Algorithms 4 and 5, with their sums in place of means, beside the stages."""
    random, c = np.random.default_rng(2), MPContext()
    c.dps = 60
    start = {"w": random.standard_normal((3, 4)), "b": random.standard_normal(3)}
    hyper = Adafactor(epsilon=0.25, threshold=0.5)
    optimizer = mcf.Optimizer(hyper, mcf.strategy("exact"), start)
    x = {name: [c.mpf(v) for v in part.ravel()] for name, part in start.items()}
    rows, columns, full = [0] * 3, [0] * 4, [0] * 3
    for t in range(1, 4):
        given = {name: random.standard_normal(part.shape) for name, part in start.items()}
        g = {name: [c.mpf(v) for v in part.ravel()] for name, part in given.items()}
        b2 = 1.0 - t**-0.8  # a number of binary64, as the real scalar is
        square = [v * v + c.mpf(0.25) for v in g["w"]]
        rows = [b2 * rows[i] + t**-0.8 * sum(square[4 * i : 4 * i + 4]) for i in range(3)]
        columns = [b2 * columns[j] + t**-0.8 * sum(square[j::4]) for j in range(4)]
        v = [rows[i] * columns[j] / sum(rows) for i in range(3) for j in range(4)]
        full = [b2 * old + t**-0.8 * (new * new + c.mpf(0.25)) for old, new in zip(full, g["b"], strict=True)]
        for name, variances in (("w", v), ("b", full)):
            # Sums of 3 rows by 4 columns are those means times 4, 3 and 12: variances of sums are the same.
            size = c.sqrt(sum(p * p for p in x[name]) / len(x[name]))
            u = [p / c.sqrt(q) for p, q in zip(g[name], variances, strict=True)]
            clip = max(c.mpf(1), c.sqrt(sum(p * p for p in u) / len(u)) / c.mpf(0.5))
            rate = max(c.mpf(1e-3), size) * min(0.125, t**-0.5)
            x[name] = [p - rate * q / clip for p, q in zip(x[name], u, strict=True)]
        optimizer.step(optimizer.receive(given), 0.125)
    found = optimizer.layout.split(optimizer.state.parameter[0])
    for name, expected in x.items():
        for mine, other in zip(found[name].ravel(), expected, strict=True):
            assert abs(mine - other) < 1e-50 * abs(other)


def test_one_row_is_a_vector_with_a_number_more():
    """With R the mean of C, which is that of all, the share is 1."""
    gradient = mcf.round_to(np.random.default_rng(0).standard_normal(6), "bfloat16")
    found = []
    for shape in ((1, 6), (6,)):
        optimizer = mcf.Optimizer(Adafactor(), mcf.strategy("plain"), {"w": np.ones(shape)})
        for _ in range(3):
            optimizer.step(gradient, 1e-2)
        found.append(optimizer)
    np.testing.assert_array_equal(found[0].state.parameter[0], found[1].state.parameter[0])
    np.testing.assert_array_equal(found[0].state.v[0][1:], found[1].state.v[0])


def test_zero_gradients_move_nothing_but_where_epsilon_is_zero():
    for low, moves in (("bfloat16", True), ("float16", False)):
        context = pytest.warns(mcf.VanishingScalarWarning) if not moves else nullcontext()
        with context:
            optimizer = mcf.Optimizer(Adafactor(), mcf.strategy("plain", low), {"w": np.ones((2, 3))})
        update = optimizer.step(np.zeros(6, np.float32), 1e-2)
        if moves:
            np.testing.assert_array_equal(update, np.zeros(6))
        else:
            assert np.isnan(update).all()


def test_empty_tensors_have_no_state_and_no_step():
    optimizer = mcf.Optimizer(Adafactor(), mcf.strategy("plain"), {"e": np.zeros((3, 0)), "f": np.zeros(0)})
    assert optimizer.state.v[0].size == 0
    assert optimizer.step(np.zeros(0, np.float32), 1e-2).size == 0


# -- bytes --------------------------------------------------------------------------------------------------
def test_where_a_slot_lies_and_bytes_a_parameter():
    tensors = {"w": np.zeros((30, 20)), "b": np.zeros(8), "t": np.zeros((2, 3, 4)), "e": np.zeros((5, 0))}
    optimizer = mcf.Optimizer(Adafactor(), mcf.strategy("fp32-optim"), tensors)
    parts = Parts.of(Adafactor(), "v", optimizer.layout)
    assert {name: sum(s.stop - s.start for s in part.values()) for name, part in parts.slices.items()} == {
        **{"w": 50, "b": 8, "t": 2 * 3 + 2 * 4, "e": 0}
    }
    assert optimizer.state.v[0].size == parts.size == 72
    size = 600 + 8 + 24
    # A parameter and a gradient of two bytes each, no m, and v in float32.
    assert bytes_per_parameter(Adafactor(), optimizer.strategy, optimizer.layout) == 4 + 4 * 72 / size
    averaging = MomentumAdafactor()
    assert bytes_per_parameter(averaging, optimizer.strategy, optimizer.layout) == 8 + 4 * 72 / size
    assert bytes_per_parameter(mcf.AdamW(), optimizer.strategy, optimizer.layout) == 12


# -- refusals -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beta2_power": 0.0}, "beta2_power = 0.0 must be positive"),
        ({"epsilon": 0.0}, "epsilon = 0.0 must be positive"),
        ({"threshold": float("nan")}, "threshold"),
        ({"least_scale": -1.0}, "least_scale = -1.0 must not be negative"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(wrong, message):
    for kind in (Adafactor, MomentumAdafactor):
        with pytest.raises(ValueError, match=message):
            kind(**wrong)
    with pytest.raises(TypeError, match="accumulator must be an Accumulator or None, not 'bfloat16'"):
        Adafactor(accumulator="bfloat16")


def test_means_that_cannot_be_rounded_once_are_refused_at_once():
    start = {"w": np.ones((2, 3))}
    at_random = mcf.Accumulator("bfloat16", "stochastic", block=2)
    with pytest.raises(ValueError, match="sums of a mean are not rounded at random"):
        mcf.Optimizer(Adafactor(accumulator=at_random), mcf.strategy("plain"), start)
    wide = Strategy("wide", m=Stored("float64"), v=Stored("float64"))
    with pytest.raises(UnsupportedFormatError, match="float64"):
        mcf.Optimizer(Adafactor(), mcf.strategy(wide), start)
    with pytest.raises(ValueError, match="flush_inputs"):
        mcf.Optimizer(Adafactor(), mcf.strategy("plain"), start, underflow="flush_inputs")


def test_what_takes_straight_lines_alone_says_so():
    pytest.importorskip("torch")
    import mcfsim.torch

    for name in ("Adafactor", "MomentumAdafactor"):
        with pytest.raises(AttributeError, match=f"mcfsim.torch has no {name}: its steps have means"):
            getattr(mcfsim.torch, name)
    optimizer = mcf.Optimizer(Adafactor(), mcf.strategy("plain"), {"w": np.ones((2, 3))})
    with pytest.raises(TypeError, match="a step of Adafactor is no straight line"):
        Adafactor().step(optimizer.roles, optimizer.strategy, optimizer.state, np.ones(6), None)


# -- simulations, checkpoints, files ------------------------------------------------------------------------
class Folded(mcf.problems.Quadratic):
    """A quadratic whose point is a matrix and a vector."""

    decayed = frozenset({"w"})

    def __init__(self):
        super().__init__(dimension=14, condition_number=10.0)

    def initial_parameters(self, seed):
        return self.folded(super().initial_parameters(seed)["x"])

    def loss_and_gradient(self, parameters, step=0, seed=0):
        whole = np.concatenate([parameters["w"].ravel(), parameters["b"]])
        loss, gradient = super().loss_and_gradient({"x": whole})
        return loss, self.folded(gradient["x"])

    def validation_loss(self, parameters):
        return self.loss_and_gradient(parameters)[0]

    @staticmethod
    def folded(x):
        return {"w": x[:12].reshape(3, 4), "b": x[12:]}


@every_kind
@pytest.mark.slow
def test_a_simulation_goes_on_from_its_checkpoint_to_the_same_bits(kind, tmp_path, monkeypatch):
    names, step = ["plain", "collage-plus", "fp8-moments", "exact"], Trainer.step
    given = {"schedule": mcf.Schedule(peak=1e-2, warmup=0), "record_every": 2, "truth_sample": 2}
    whole = mcf.simulate(Folded(), kind, names, 4, **given)
    given |= {"checkpoint": tmp_path / "run.ckpt", "checkpoint_every": 1}
    steps = []

    def interrupted(self, t, setup):
        steps.append(t)
        if steps.count(3) == 2:
            raise KeyboardInterrupt
        step(self, t, setup)

    monkeypatch.setattr(Trainer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mcf.simulate(Folded(), kind, names, 4, **given)
    monkeypatch.setattr(Trainer, "step", step)
    resumed = mcf.simulate(Folded(), kind, names, 4, **given)
    for name, series in whole.series.items():
        for measure, expected in series.items():
            np.testing.assert_array_equal(resumed.series[name][measure], expected, err_msg=measure)
    assert whole.series["plain"]["binary64_gap"].max() < 1e-13
    assert whole.series["plain"]["distance"][-1] > whole.series["collage-plus"]["distance"][-1] > 0
    assert whole.settings["optimizer"]["name"] == kind
    # Parameter and gradient of two bytes, perhaps m; of v 3 + 4 + 2 numbers for 14 elements.
    moments = 2 if kind == "momentumadafactor" else 0
    assert whole.results["plain"]["bytes_per_parameter"] == 4 + moments + 2 * 9 / 14


def test_measures_of_a_matrix_are_those_of_its_rows_and_columns():
    """An average that stays at zero has lost all; the averages in binary64 are those of the same means."""
    source = Computed.of(mcf.get_problem("quadratic", dimension=4))
    optimizer = mcf.Optimizer(Adafactor(), mcf.strategy("fp32"), few(100))
    trainer = Trainer(source, optimizer)
    for step in (1, 2, 3):
        gradient = optimizer.receive(few(step))
        trainer._average(gradient, step, 1e-2)
        optimizer.step(gradient, 1e-2)
    (stored,), exact = optimizer.state.v, trainer.averages["v"]
    assert exact.size == stored.size == 9 + 2 * (2 + 3) + 3 + 1
    np.testing.assert_allclose(stored, exact, rtol=1e-6)
    assert (exact > 0).all()
    trainer._measure(np.zeros(optimizer.layout.size), optimizer.represented(), optimizer.state.parameter[0])
    assert trainer.series["v_error/w"] < [1e-6]
    assert trainer.series["v_ratio/t"][0] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("strategy", ["collage-plus", "fp8-moments"])
def test_a_saved_state_goes_on_to_the_same_bits(strategy, packed, tmp_path, assert_same):
    hyper = KINDS["momentumadafactor"]
    *_, (first, _) = trained(hyper, mcf.strategy(strategy), packed=packed)
    save_state(first, tmp_path / "state.safetensors")
    other = mcf.Optimizer(hyper, first.strategy, numbers(7), DECAYED, packed=packed)
    load_state(other, tmp_path / "state.safetensors")
    for optimizer in (first, other):
        optimizer.step(optimizer.receive(numbers(9)), 1e-2)
    held = zip(first.state, other.state, first.formats, strict=True)
    for mine, others, fmt in held:
        for x, y in zip(mine, others, strict=True):
            assert_same(read(x, fmt), read(y, fmt))
    names = set(open_tensors(tmp_path / "state.safetensors"))
    kept = "w.exp_avg_sq.rows" + (".codes" if packed and strategy == "fp8-moments" else "")
    assert {kept, kept.replace("rows", "columns")} < names


#: What finds the larger one of a number and a real scalar, which the second product rounds.
LARGER = ["sub", "sign", "abs", "add", "mul", "sub", "mul", "fma"]


def test_a_step_makes_the_declared_operations_and_no_others():
    start = {"w": np.ones((2, 3))}
    optimizer = mcf.Optimizer(Adafactor(weight_decay=0.1), mcf.strategy("plain"), start, {"w"})
    meter = mcf.Meter(optimizer.roles.moments)
    optimizer.roles = type(optimizer.roles)(*[meter] * 5)
    optimizer.step(np.ones(6, np.float32), 1e-2)
    declared = {}
    for part, _, operation in adafactor.ROUNDING_POINTS:
        declared.setdefault(part, []).append(operation)
    assert list(declared) == [item.name for item in Adafactor().stages((2, 3))]
    assert declared.pop("sizes") == ["sqrt", "div", "sqrt", "mul", "mul"]
    expected = [operation for part in declared.values() for operation in part]
    sizes = ["sqrt", "div", *LARGER, "sqrt", *LARGER, "mul"]
    place = len(expected) - len(declared["moved"])
    assert meter.trace == [*expected[:place], *sizes, *expected[place:], "round", "add"]


@pytest.mark.parametrize("low", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("mode", ["nearest_even", "up", "toward_zero"])
def test_the_larger_one_of_two_numbers_is_one_of_them(low, mode):
    """All numbers that are not negative, beside a real scalar and one of the format."""
    ar = mcf.arithmetic(low, mode)
    codes = np.arange(2 ** (mcf.get_format(low).bits - 1), dtype=np.uint32)
    x = mcf.codec.decode(codes, low)
    x = np.asarray(x[np.isfinite(x)], ar.carrier)
    for least in (1.0, 1e-3, 0.3):
        vanishes = (x > least) & (x - least < float(mcf.get_format(low).smallest_subnormal))
        expected = np.where((x > least) & ~(vanishes & (mode == "toward_zero")), x, float(ar.round(least)))
        np.testing.assert_array_equal(adafactor._at_least(ar, x, least), expected)
    assert np.isnan(adafactor._at_least(ar, np.array([np.nan], ar.carrier), 1.0)).all()


def signed(seed, scale):
    """Return rows of numbers of both signs, which nearly cancel."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((1, 40, 30)) * 2.0 ** random.integers(-scale, scale, (1, 40, 30))
    x[..., 15:] = -x[..., :15] * (1 + 2.0**-20 * random.integers(0, 3, (1, 40, 15)))
    return x.astype(np.float32)


@pytest.mark.parametrize("mode", ["nearest_even", "down", "up", "to_odd", "stochastic"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "float8_e5m2"])
def test_means_are_rounded_once(mode, fmt):
    """Of fractions, by the judge; 30 numbers of float32 at random are summed as fractions."""
    policy, fmt = mcf.rounding.get_rounding(mode), mcf.get_format(fmt)
    ar = on_blocks(fmt, policy).at(mcf.RandomWords(5), 0)
    words = mcf.RandomWords(5).draws(0, 40, 16).copy() if policy.stochastic else [None] * 40
    x = signed(3, 20 if fmt.emin < -100 else 3)
    rows = [sum(map(Fraction, row.tolist())) / 30 for row in x[0]]
    expected = [_rounded(q, fmt, policy, word) for q, word in zip(rows, words, strict=True)]
    assert mean(ar, x, (1, 40, 1)).ravel().tolist() == expected
    if not policy.stochastic:
        whole = _rounded(sum(rows) / 40, fmt, policy, None)
        assert mean(ar, x, (1, 1, 1)).ravel().tolist() == [whole]
        columns = [_rounded(sum(map(Fraction, row.tolist())) / 40, fmt, policy, None) for row in x[0].T]
        assert mean(ar, x, (1, 1, 30)).ravel().tolist() == columns


def _rounded(exact, fmt, policy, word):
    if word is None:
        return float(round_fraction(exact, fmt, policy))
    quantum = Fraction(2) ** (max(math.frexp(float(exact))[1] - 1, fmt.emin) - fmt.precision + 1)
    below = abs(exact) // quantum
    up = math.floor((abs(exact) / quantum - below) * 2**16) + int(word) >= 2**16
    return math.copysign(float((below + up) * quantum), exact)


@pytest.mark.parametrize(("tiny", "expected"), [(2.0**-126, 1 + 2.0**-23), (-(2.0**-126), 1), (0, 1)])
def test_a_mean_near_the_middle_of_two_numbers_is_that_of_the_exact_sum(tiny, expected):
    """Of 64 numbers and 64 zeros, or one far below them: half of 1 and half a unit in the last place."""
    ar = on_blocks(mcf.get_format("float32"), mcf.rounding.get_rounding("nearest_even"))
    x = np.zeros((1, 1, 128), np.float32)
    x[..., :64], x[..., 63], x[..., 64] = 1, 1 + 64 * 2.0**-24, tiny
    assert 2 * mean(ar, x, (1, 1, 1)).item() == expected
