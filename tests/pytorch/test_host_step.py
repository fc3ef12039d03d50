"""The optimizers for torch make the very steps of `mcfsim.Optimizer`, which NumPy's operations make."""

import inspect
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import mcfsim as mcf
import mcfsim.torch
from mcfsim.compile import choice, loops
from mcfsim.optim import compiled_step
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.optim.stored import FLOAT8_GROUPS, FLOAT32, Stored
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.torch import batched, host_loop
from mcfsim.torch import step as steps
from tests.pytorch.runs import KINDS, array, assert_all_same, give, hard, in_turn, scaled
from tests.shared.kinds import LEADING, STORED, feeding

#: Rows with whole groups of 128 and without, none, one element, and such as lie otherwise in memory.
SHAPES = {
    "matrix": (7, 5), "rows": (3, 128), "scalar": (), "empty": (0, 3),
    "turned": (6, 4), "strided": (9,), "odd": (3, 65), "vector": (200,),
}  # fmt: skip
DECAYED = ("matrix", "rows", "scalar", "empty")
NUMBERS = {"beta1": 0.8, "beta2": 0.99, "epsilon": 2.0**-10, "momentum": 0.75, "weight_decay": 0.1}
SMALL_BLOCKS = [
    *((module, "BLOCK", 190) for module in (loops, host_loop, batched)),
    *((loops, "AT_ONCE", 77), (batched, "SMALL", 23)),
]
#: Loops by calls of NumPy's functions: to compile them never pays, to write them always does.
CALLS = [
    *((compiled_step, "_LEAST_COMPILED", 0), (choice, "_LOAD", float("inf"))),
    (choice, "_cost_of_writing", lambda program: -1.0),
]
#: How a step is made: what is other than by default, where small tensors go together by operations.
WAYS = {
    "batches": [],
    "one by one": [(batched, "SMALL", -1)],
    "calls": CALLS,
    "calls on small blocks": [*CALLS, *SMALL_BLOCKS],
    "small blocks": SMALL_BLOCKS,
    "numba": [(compiled_step, "how_compiled", lambda roles: True)],
    "a device": [(steps, "_is_host", lambda device: False)],
}
HOST = list(WAYS)[:5]


def of_remainder(bits):
    moment = Stored(FLOAT32)
    return mcf.Strategy("mine", m=moment, v=moment, extra=Stored(FLOAT32, remainder=bits), addition="master")


def of_moments(fmt, by=FLOAT32):
    kept = Stored(by, scaled=fmt)
    return mcf.Strategy("mine", m=kept, v=kept)


FLOAT8 = mcf.get_format("float8_e5m2")
#: Strategies that have no name, and their low formats.
MINE = {
    "three components of float8": (
        mcf.Strategy(
            "mine", parameter=Stored(FLOAT8, 3), m=Stored(FLOAT8, 2), v=Stored(FLOAT8, 2),
            gradient=Stored(FLOAT8), addition="grow",
        ),
        FLOAT8,
    ),
    **{
        f"a remainder of {bits} bits": (of_remainder(bits), low)
        for bits, low in ((2, "bfloat16"), (5, "float16"), (8, "float16"), (9, "bfloat16"), (16, "float16"))
    },
    "float8_e5m2 in groups": (of_moments(scaled("float8_e5m2")), "bfloat16"),
    "mxfp8_e4m3": (of_moments("mxfp8_e4m3"), "bfloat16"),
    "int8 in groups of 64": (of_moments(scaled("int8", 64)), "bfloat16"),
    "int8 with a scale a tensor": (of_moments("int8"), "bfloat16"),
    "nvfp4": (of_moments("nvfp4"), "bfloat16"),
    "float8_e4m3fn of bfloat16": (of_moments(FLOAT8_GROUPS, "bfloat16"), "bfloat16"),
    "two numbers a group": (mcf.STRATEGIES["coat-moments"], "bfloat16"),
}  # fmt: skip
#: Whose moments lie as numbers, between steps, too.
NO_CODES = ("int8 with a scale a tensor", "nvfp4")


def start(dtype, shapes):
    """Return parameters by name, of which two do not lie element by element."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in shapes.items():
        x = hard(shape, dtype, generator)
        if name == "turned":
            x = x.t().contiguous().t()
        elif name == "strided":
            x = torch.stack([x, x], dim=1)[:, 0]
        found[name] = torch.nn.Parameter(x)
    return found


@contextmanager
def made_by(way):
    if way == "numba":
        pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        for module, name, x in WAYS[way]:
            patch.setattr(module, name, x)
        yield


def both(optimizer, strategy, low="bfloat16", shapes=SHAPES, **options):
    """Return an optimizer of parameters in two groups, these, and the one that is simulated."""
    declared = straight_optimizers()[optimizer]
    given = {name: NUMBERS[name] for name in inspect.signature(declared).parameters}
    chosen = mcf.strategy(strategy, low)
    params = start(getattr(torch, chosen.parameter.format.name), shapes)
    decayed = [params[name] for name in DECAYED]
    rest = [p for name, p in params.items() if name not in DECAYED]
    groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
    ours = KINDS[optimizer](groups, 1e-2, strategy=strategy, low=low, **given, **options)
    weights = {name: p.detach().float().numpy().copy() for name, p in params.items()}
    return ours, params, mcf.Optimizer(declared(**given), chosen, weights, DECAYED, **options)


def compared(ours, params, theirs):
    """Yield what is stored, meant and seen of parameters, and what it should be."""
    split = theirs.layout.split
    with np.errstate(all="ignore"):
        meant = sum(x.astype(float) for x in reversed(theirs.represented()))
    weights, meant = theirs.weights(), split(meant)
    for name, p in params.items():
        found, expected = array(p), weights[name]
        if theirs.strategy.name == "mcf-3":  # whose sum has no negative zero
            found, expected = found + 0.0, expected + 0.0
        yield name, found, expected
        yield f"{name} represented", array(ours.represented(p)), meant[name]
        state, stores = ours.state[p], ours.steps_of(ours.param_groups[0]).stores
        for slot in ("m", "v") if state else ():
            names = getattr(stores.names, slot)
            for key, vector in zip(names, getattr(theirs.state, slot), strict=True):
                yield f"{name} {key}", array(stores.numbers(state, key)), split(vector)[name].ravel()


def compare(ours, params, theirs, way):
    assert_all_same(compared(ours, params, theirs))
    for step in range(3):
        give(params.values(), step)
        with made_by(way):
            ours.step()
        gradients = {name: p.grad.float().numpy() for name, p in params.items()}
        theirs.step(theirs.receive(gradients), 1e-2)
        assert_all_same((f"step {step}: {what}", *pair) for what, *pair in compared(ours, params, theirs))


#: With none all optimizers and strategies are tried, with others all strategies.
OPTIONS = {
    "none": {},
    "float16": {"low": "float16"},
    "float8": {"low": "float8_e5m2"},
    "toward zero": {"rounding": "toward_zero"},
    "rounded scalars": {"scalars": "rounded"},
    "stochastic": {"rounding": "stochastic", "random": RandomWords(9)},
    "7 random bits": {
        "rounding": Rounding("stochastic", random_bits=7),
        "random": RandomWords(2**40, stream=3),
    },
}
CASES = [(*pair, option) for option in OPTIONS for pair in (feeding if option == "none" else in_turn)(STORED)]


@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: "-".join(CASES[place]))
@pytest.mark.sampled(10, each=False)
@pytest.mark.costly("some are compiled")
def test_steps_have_the_bits_of_the_simulated_optimizer(place):
    """On numbers of all kinds, before the first step, too."""
    optimizer, strategy, option = CASES[place]
    options = OPTIONS[option]
    if "low" in options and strategy in LEADING:
        with pytest.raises(ValueError, match="float32"):
            mcf.strategy(strategy, options["low"])
        return
    compare(*both(optimizer, strategy, **options), HOST[place % 5])


@pytest.mark.parametrize(
    "way", ["calls on small blocks", "a device", pytest.param("batches", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("name", MINE)
@pytest.mark.sampled(9, each=False)
@pytest.mark.slow
def test_declared_strategies_have_the_bits_of_the_simulated_optimizer(name, way):
    strategy, low = MINE[name]
    left_out = "strided" if way == "a device" else ""  # it takes no elements with gaps between them
    shapes = {name: shape for name, shape in SHAPES.items() if name != left_out}
    ours, params, theirs = both("adamw", strategy, low, shapes)
    compare(ours, params, theirs, way)
    state = ours.state[params["odd"]]
    assert ("m_scales" in state) == bool(mcf.strategy(strategy).m.scaled and name not in NO_CODES)
    if "remainder" in state:
        assert state["remainder"].itemsize == (1 if strategy.extra.remainder <= 8 else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    [
        ("sgd", "plain"),
        *(("adamw", "collage-plus"), ("lion", "stochastic"), ("adamw", "fp8-moments")),
        *(("torchadamw", "fp32"), ("nesterov", "remainder-8"), ("adamw", "split-master")),
    ],
    ids=" ".join,
)
@pytest.mark.sampled(7, each=False)
@pytest.mark.costly("Numba compiles a step")
def test_compiled_loops_have_the_bits_of_the_simulated_optimizer(pair, one_thread):
    torch.set_num_threads(2)
    compare(*both(*pair), "numba")
