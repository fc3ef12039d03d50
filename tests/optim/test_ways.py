"""The bits of a step, whichever way it is made: in blocks, on threads, of codes, in files, compiled."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.compile import choice
from mcfsim.compile.loops import BoundLoop
from mcfsim.optim import optimizer as stepping
from mcfsim.optim.adafactor import Adafactor
from mcfsim.optim.declaration import optimizers
from mcfsim.optim.groups import Groups
from mcfsim.optim.strategies import FLOAT32, Stored
from mcfsim.optim.vectors import filling, packed_dtype, read
from tests.optim.stored import E4M3, SHORT, Stretches, held, scaled
from tests.shared.kinds import STORED, UNPACKED

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")]

#: On both sides of the edge of weight decay, of several blocks, one element and none.
SHAPES = {"gain": (313,), "matrix": (19, 23), "scalar": (), "none": (0,)}
DECAYED = {"matrix", "none"}
MODES = ("nearest_even", "up", "stochastic")
COMPILER = importlib.util.find_spec("llvmlite") is not None
needs_llvm = pytest.mark.skipif(not COMPILER, reason="LLVM is not installed")


def kept_in(m, v):
    """Return a strategy whose moments share scales, in formats of their own or in float32."""
    m, v = (x if isinstance(x, Stored) else Stored(FLOAT32, scaled=x) for x in (m, v))
    return replace(mcf.strategy("fp8-moments"), name=f"{m.scaled}-{v.scaled}", m=m, v=v)


GROUPED = [
    kept_in("mxfp8_e5m2", "mxfp8_e4m3"),
    kept_in("mxint8", "mxfp4"),
    kept_in(scaled(E4M3, 48), scaled(E4M3, 32)),  # whose common edges are those of 96
    kept_in(scaled(E4M3, 128, rule="absmean"), None),  # of a short group the mean is that of what it has
    kept_in(scaled(E4M3, 10**9), scaled(E4M3, 48)),
    kept_in(Stored("bfloat16", scaled="mxfp8_e5m2"), "mxfp6_e3m2"),
    kept_in(scaled("float16", 1), scaled("bfloat16", 1000, "float16")),
    kept_in(scaled("float8_e5m2", 7, "float8_e8m0fnu", "round_up"), scaled("e8m13", 64)),
]
#: With a code for NaN, without; of a posit; longer than 16 bits; of a subnormal format in binary64.
LOW = ["float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "posit16es1", "tf32", "int8"]
PLAINLY = ("plain", "collage-plus", "fp8-moments", "split-master", "dqt-ternary", "dqt-int8", "bitnet")
SINGLE = [
    *((name, "bfloat16", "nearest_even") for name in ("plain", "collage-plus", "kahan", "fp32-master")),
    *(
        ("plain", low, mode)
        for low, mode in (("float16", "up"), ("bfloat16", "stochastic"), ("posit16es1", "down"))
    ),
]
GIVEN = [
    *(("adamw", name, "bfloat16", mode) for name in STORED for mode in MODES),
    *(
        ("adamw", name, low, MODES[(i + j) % 3])
        for i, low in enumerate(LOW)
        for j, name in enumerate(("plain", "kahan", "fp32-master"))
    ),
    *((name, strategy, "bfloat16", "nearest_even") for name in optimizers() for strategy in PLAINLY),
    *((name, "fp32-master", "bfloat16", "stochastic") for name in optimizers()),
    *((name, "stochastic", "bfloat16", "up") for name in optimizers()),
    *(("adamw", "split-master", low, "nearest_even") for low in (SHORT, "tf32")),
    ("adamw", "stochastic", "float8_e5m2", "nearest_even"),
    *(("adamw", strategy, "bfloat16", "nearest_even") for strategy in GROUPED),
    *((name, *case, "float32") for name in ("adamw", "sgd") for case in SINGLE),
]
#: Optimizer, strategy, low format, rounding, how scalars enter; expansions are of floats and nearest modes.
CASES = [x for x in GIVEN if mcf.strategy(x[1], x[2]).addition != "grow" or x[3] == "nearest_even"]


def named(case):
    return "-".join(x if isinstance(x, str) else x.name for x in case)


def packing(case):
    """Return the option that packs vectors of codes, where a strategy has such."""
    strategy = mcf.strategy(*case[1:3])
    return {"packed": True} if strategy.parameter.grid is None and strategy.name not in UNPACKED else {}


def tensors(seed, *, hostile):
    """Return numbers of all sizes, if hostile with subnormals, infinities and NaN among them."""
    rng, made = np.random.default_rng(seed), {}
    hard = [0.0, -0.0, 1e-40, -2e-45, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-38, 65504, 6e-8]
    for name, shape in SHAPES.items():
        x = rng.standard_normal(shape) * 10.0 ** rng.integers(-12 if hostile else -3, 1, shape)
        if hostile and x.size > 100:
            x.flat[: 4 * len(hard)] = np.tile(hard, 4)
            x.flat[60:200] = 0.0  # whole groups
            x = rng.permuted(x.reshape(-1)).reshape(shape) if seed % 2 else x
        made[name] = np.asarray(x, np.float32)
    return made


def stored(given):
    return {name: Stretches(x) for name, x in given.items()}


def trained(optimizer, name, low, mode, scalars="exact", *, take=dict, keep=True, **options):
    """Return an optimizer after two steps, the numbers that these leave, and those that they ask for."""
    options["scalars"] = scalars
    kind = optimizers()[optimizer]
    hyper = kind(weight_decay=0.1)
    if mode == "stochastic":
        options["random"] = mcf.RandomWords(3)
    given = [take(tensors(seed, hostile=not kind.staged)) for seed in range(3)]
    made = mcf.Optimizer(hyper, mcf.strategy(name, low), given[0], DECAYED, mode, **options)
    asked = []
    for gradient in map(made.receive, given[1:]):
        if keep:
            asked.append(read(made.step(gradient, 1e-3), made.roles.update.format))
        else:
            made.advance(gradient, 1e-3)
    assert made.count == 2
    return made, [*held(made), *made.represented(), *made.weights().values()], asked


@pytest.fixture
def small_blocks(monkeypatch):
    """Let blocks be of sizes that divide nothing, and few numbers worth a list of calls."""
    sizes = {
        **{"optim.optimizer.BLOCK": 150, "optim.staged_step.BLOCK": 150, "optim.vectors.BLOCK": 200},
        **{"optim.on_grid.BLOCK": 94, "optim.start.AT_ONCE": 133, "optim.layout._STRIPE": 300},
        **{"optim.step_programs._LEAST_COMPILED": 320},
        **{"compile.loops.AT_ONCE": 83, "compile.loops.BLOCK": 171},
    }

    def cut():
        for name, size in sizes.items():
            monkeypatch.setattr(f"mcfsim.{name}", size)

    return cut


def compare(case, ways, cut, assert_same):
    """Take the same steps in other ways; blocks cross the borders of tensors and the edge of weight decay."""
    _, expected, updates = trained(*case, compiled=False)
    cut()
    for way, options in ways.items():
        made, found, asked = trained(*case, **options)
        assert len(asked) == 2 * options.get("keep", True), way
        for mine, other in zip([*found, *asked], [*expected, *updates[: len(asked)]], strict=True):
            assert mine.dtype == other.dtype, way
            assert_same(mine, other)
        if options.get("packed"):
            assert made.state.parameter[0].dtype == packed_dtype(made.strategy.parameter.format)
            for slot in "mv":
                grouped = made.strategy.tensors[slot].scaled is not None
                assert all(isinstance(x, Groups) == grouped for x in getattr(made.state, slot))


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.sampled(108, each=False)
def test_all_ways_have_the_bits_of_the_plain_step(case, small_blocks, assert_same, tmp_path, monkeypatch):
    """By operations, and, as many steps are to come, as a list of NumPy's calls."""
    monkeypatch.setattr(choice, "is_available", lambda: False)
    filled = []
    monkeypatch.setattr(stepping, "filling", lambda *given: filled.append(1) or filling(*given))
    operations, calls = {"compiled": False}, {"steps": 10**6}
    packed = packing(case)
    ways = {
        "operations on threads": operations | {"threads": 3, "take": stored},
        "calls, no update": calls | {"keep": False},
        "packed": operations | packed,
        "packed calls on threads": calls | packed | {"threads": 2},
        "files": operations | packed | {"folder": tmp_path / "files", "take": stored, "keep": False},
    }
    compare(case, ways, small_blocks, assert_same)
    assert filled or optimizers()[case[0]].staged or case[2] != "bfloat16"


#: What is compiled: each kind of program, and each kind of code; the first in the ordinary run.
COMPILED = [
    ("sgd", "plain", "bfloat16", "nearest_even"),
    ("sgd", "plain", "bfloat16", "stochastic"),
    ("adamw", "collage-plus", "bfloat16", "nearest_even", "float32"),
    *((("adamw", "sgd")[i % 2], x, "bfloat16", "nearest_even") for i, x in enumerate([*STORED, "bitnet"])),
    *(("adamw", "fp32-master", low, mode) for low, mode in (("bfloat16", "stochastic"), ("float16", "up"))),
    *(("adamw", "kahan", "float8_e5m2", "up"), ("adamw", "plain", "float8_e4m3fnuz", "toward_zero")),
    *(("adamw", "plain", "posit16es1", "nearest_even"), ("lion", "mcf-3", "bfloat16", "nearest_even")),
    ("adamw", kept_in(scaled(E4M3, 128), GROUPED[5].m), "bfloat16", "nearest_even"),
    ("adafactor", "collage-plus", "bfloat16", "nearest_even"),
    ("momentumadafactor", "plain", "bfloat16", "nearest_even"),
    ("momentumadafactor", "fp32-master", "bfloat16", "stochastic"),
]
COMPILED[1:] = [pytest.param(case, marks=pytest.mark.exhaustive) for case in COMPILED[1:]]


@needs_llvm
@pytest.mark.parametrize("case", COMPILED, ids=named)
@pytest.mark.costly("it compiles a loop")
def test_all_ways_have_the_same_bits_compiled(case, small_blocks, assert_same, tmp_path):
    packed = packing(case)
    ways = {
        "threads": packed | {"threads": 3, "compiled": True},
        "files": packed | {"folder": tmp_path / "files", "take": stored, "keep": False, "compiled": True},
    }
    compare(case, ways, small_blocks, assert_same)


@pytest.mark.parametrize("steps", [1, 10**6])
def test_a_gradient_need_not_be_contiguous(steps, monkeypatch, assert_same):
    monkeypatch.setattr(choice, "is_available", lambda: False)
    wide = np.random.default_rng(0).standard_normal((5000, 2), dtype=np.float32)
    updates = []
    for gradient in (wide[:, 1].copy(), wide[:, 1], wide[:, 1].astype(">f4")):
        optimizer = mcf.Optimizer(mcf.SGD(), mcf.strategy("plain"), {"w": wide[:, 0]}, steps=steps, threads=2)
        updates.append(optimizer.step(gradient, 0.1))
        moved = mcf.round_to(mcf.round_to(wide[:, 0], "bf16") + updates[0], "bf16")
        assert_same(optimizer.weights()["w"], moved)
        assert_same(updates[-1], updates[0])


@needs_llvm
@pytest.mark.costly("it compiles the stages of a step")
def test_small_steps_in_stages_are_compiled_if_that_is_asked_for(monkeypatch):
    called, call = [], BoundLoop.__call__
    monkeypatch.setattr(BoundLoop, "__call__", lambda *given: called.append(given) or call(*given))
    start = {"w": np.ones((8, 8))}
    for compiled in (False, True):
        made = mcf.Optimizer(Adafactor(), mcf.strategy("plain"), start, compiled=compiled)
        made.advance(made.receive(start), 0.1)
        assert bool(called) == compiled
