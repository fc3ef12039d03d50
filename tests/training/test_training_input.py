"""Bad input to what trains: refused by name, before anything is changed."""

import math
import pickle
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import product
from typing import ClassVar

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import Format
from mcfsim.optim.declaration import Declaration, Slot
from mcfsim.optim.staged import Staged
from mcfsim.optim.strategies import LOW, Stored, is_open
from mcfsim.training.problems import Corpus, Digits, LanguageModel, LogisticRegression, Quadratic, Rosenbrock

START = {"w": np.ones(3)}


# -- makers of what is asked about: each takes what differs from good input by its name -------------------
simulated = partial(mcf.simulate, problem=Rosenbrock(), strategies=["plain"], steps=2)
optimizer = partial(mcf.Optimizer, hyper=mcf.AdamW(), strategy=mcf.strategy("plain"), parameters=START)
stepped = partial(optimizer(hyper=mcf.SGD()).step, gradient=np.zeros(3, np.float32), rate=0.1)
rate = partial(mcf.Schedule().rate, step=1, steps=10)
stored = partial(Stored, format=LOW)
declared = partial(mcf.Strategy, name="mine")


def assert_refused(make, label, values, error, message):
    """Assert that each of some values of an argument is an error that says so."""
    for bad in values:
        try:
            make(**{label: bad})
            said = "nothing"
        except error as refusal:
            said = str(refusal)
        assert re.search(message, said), f"{label} = {bad!r}"


def maker(item):
    return item if isinstance(item, str) else getattr(getattr(item, "func", item), "__name__", None)


# -- numbers ----------------------------------------------------------------------------------------------
REALS = [
    *((mcf.Schedule, label) for label in ("peak", "final")),
    *((mcf.AdamW, label) for label in ("beta1", "epsilon")),
    *((Quadratic, "condition_number"), (LogisticRegression, "l2"), (stepped, "rate"), (simulated, "clip")),
]
INTEGERS = [
    *((mcf.Schedule, "warmup"), (rate, "step"), (rate, "steps"), (stored, "components")),
    *((declared, "beta2_components"), (Quadratic, "dimension"), (Quadratic, "seed")),
    *((Rosenbrock, "dimension"), (Digits, "hidden"), (Digits, "batch")),
    *((LanguageModel, label) for label in ("layers", "width", "heads", "context", "batch")),
    *((simulated, label) for label in ("steps", "seed", "record_every", "truth_sample")),
    *((simulated, label) for label in ("checkpoint_every", "precision")),
]
NOTHING_REAL = ["1", b"1", 1j, [1.0], (), {}, True, np.bool_(True), np.ones(1), Decimal("0.5"), ..., float]
NOT_FINITE = [math.nan, -math.inf, np.float32("nan"), 10**400, -(10**400)]
NO_INTEGER = [*NOTHING_REAL, None, 2.0, 2.5, np.float64(2), math.nan, math.inf, Fraction(2)]
NO_INTEGER += [np.timedelta64(2, "s")]


@pytest.mark.parametrize(("make", "label"), REALS, ids=maker)
def test_a_real_number_is_asked_for_by_name_and_any_kind_becomes_a_float(make, label):
    clip = label == "clip"
    bad = [*NOTHING_REAL, *([] if clip else [None])]
    assert_refused(make, label, bad, TypeError, rf"^{label} must be a real number, not")
    infinite = [] if clip else [math.inf, np.float64("inf")]
    assert_refused(make, label, [*NOT_FINITE, *infinite], ValueError, rf"^{label} = .*must")
    good = 2.0 if label == "condition_number" else 0.5
    for kind in (float, np.float32, np.float64, Fraction):
        made = make(**{label: kind(good)})
        if hasattr(made, label):
            assert (getattr(made, label), type(getattr(made, label))) == (good, float)


@pytest.mark.parametrize(("make", "label"), INTEGERS, ids=maker)
def test_an_integer_is_asked_for_by_name(make, label):
    assert_refused(make, label, NO_INTEGER, TypeError, rf"{label} must be an int, not")
    assert_refused(make, label, [-1, -(10**30)], ValueError, rf"{label} = -1")


@pytest.mark.parametrize("kind", [int, np.int8, np.int64, np.uint64])
def test_integers_of_numpy_become_integers(kind):
    """So that they can be written into a record."""
    schedule = mcf.Schedule(warmup=kind(3))
    assert type(schedule.warmup) is int
    run = simulated(steps=kind(3), seed=kind(1), record_every=kind(1), schedule=schedule)
    assert run == simulated(steps=3, seed=1, record_every=1, schedule=mcf.Schedule(warmup=3))
    assert type(run.settings["steps"]) is type(run.settings["seed"]) is int


# -- everything else ----------------------------------------------------------------------------------------
NO_HYPER = [mcf.AdamW, mcf.SGD, None, 0.9, {"beta1": 0.9}, mcf.adamw, mcf.Schedule()]
#: A declaration without @dataclass.
BARE = type("Bare", (Declaration,), dict.fromkeys(Declaration.__abstractmethods__))()
NO_NAME = [None, 5, b"x", ("a",)]
NO_STRATEGY = ["plain", None, mcf.Strategy, ["plain"]]
NOT_STORED = ["bfloat16", mcf.get_format("bf16"), 2, LOW, Stored, [Stored(LOW)]]
NO_ADDITION = [None, 5, [], {}, "add", b"grow"]
NO_SETTINGS = [None, 5, ["quadratic"], Quadratic, Rosenbrock()]
NO_PROBLEM = [{}, {"kind": None}, {"kind": []}, {"kind": "linear"}, "linear"]
TYPES = [
    (optimizer, "hyper", ["adamw", *NO_HYPER], r"^hyper must be hyperparameters, such as mcfsim.AdamW\(\)"),
    (simulated, "optimizer", NO_HYPER, r"^optimizer must be hyperparameters, such as mcfsim.AdamW\(\)"),
    (simulated, "optimizer", [BARE], "optimizer is a Bare, which must be declared with @dataclass"),
    (optimizer, "strategy", NO_STRATEGY, "^strategy must be a Strategy, like strategy"),
    (optimizer, "parameters", [[np.ones(3)], np.ones(3)], "parameters must be a mapping of names to arrays"),
    (optimizer, "parameters", [None], "parameters must be a mapping of names to arrays, not NoneType"),
    (optimizer, "decayed", ["w", None, True], "decayed must be a collection of names, not ('w'|None|True)$"),
    (stepped, "gradient", [[0.0] * 3, 0.0, None, "g"], "the gradient must be an array"),
    *(
        (declared, label, NOT_STORED, rf"^mine: {label} must be Stored\(format, components\), not")
        for label in ("parameter", "m", "v", "gradient", "extra")
    ),
    (declared, "name", NO_NAME, "a strategy's name must be a string"),
    (mcf.strategy, "name", NO_NAME, "a strategy is a Strategy or the name of one"),
    (simulated, "strategies", [None, 3], "strategies must be a sequence of names or Strategies"),
    (simulated, "strategies", [[None], [mcf.Strategy]], "a strategy is a Strategy or the name of one, not "),
    (simulated, "problem", [None, 5, Quadratic], "problem must be a Problem, .* not (None|5|<class)"),
    (simulated, "schedule", [0, 1e-3, mcf.Schedule, lambda step: 0.1], "schedule must be a Schedule"),
    (simulated, "schedule", [[[1], [1, 2]], [[1], [2]], [0.1, [1]]], "a rate must be a real number, not"),
    (mcf.get_problem, "name_or_settings", NO_SETTINGS, "a problem is made from its name or its settings"),
    (LanguageModel, "corpus", ["text", b"text", 5, Corpus], "corpus must be a Corpus"),
]
VALUES = [
    (declared, "addition", NO_ADDITION, "mine: unknown addition .*; allowed: plain, kahan, grow, master"),
    (mcf.get_problem, "name_or_settings", NO_PROBLEM, "unknown problem .*; known problems: digits"),
    (stored, "format", ["bf61"], "unknown format 'bf61'"),
    (simulated, "schedule", [[0.1], [0.1] * 3, []], "schedule has [013] rates, and the run 2 steps"),
    (simulated, "schedule", [[0.1, np.inf]], "a rate = inf must be finite"),
    (simulated, "schedule", [[0.1, -0.1], np.array([0.0, -0.1])], "a rate = -0.1 must not be negative"),
    *((simulated, label, [0], f"{label} = 0") for label in ("steps", "record_every", "checkpoint_every")),
    (simulated, "clip", [0.0], "clip = 0.0 must be positive"),
    (simulated, "optimizer", ["adam"], "unknown optimizer 'adam'; known optimizers: adafactor, momentumadaf"),
    (simulated, "strategies", [[]], "at least one"),
    (simulated, "strategies", [["plain", mcf.strategy("plain")]], "each named once"),
    (simulated, "low", [LOW], "still open"),
    (simulated, "rounding", ["nearest"], "unknown rounding 'nearest'"),
    (simulated, "scalars", ["real"], "unknown scalar policy 'real'"),
    (simulated, "precision", [10], "precision = 10 .*at least 64"),
    (mcf.Schedule, "warmup", [-1], "warmup = -1 must not be negative"),
    (mcf.Schedule, "peak", [0.0], "peak = 0.0 must be positive"),
    (mcf.Schedule, "final", [-0.1, 1.5], r"final = (-0.1|1.5) must lie in \[0, 1\]"),
    (rate, "step", [11], "step = 11 is beyond the last of 10"),
    (rate, "step", [0], "step = 0 must be at least 1"),
]


@pytest.mark.parametrize(
    ("make", "label", "values", "message", "error"),
    [(*row, error) for error, rows in ((TypeError, TYPES), (ValueError, VALUES)) for row in rows],
    ids=maker,
)
def test_what_is_of_no_use_is_refused_by_name(make, label, values, message, error):
    assert_refused(make, label, values, error, message)


@pytest.mark.slow
def test_what_stands_for_something_else():
    assert simulated(optimizer="adamw") == simulated(optimizer=mcf.AdamW())
    assert simulated(clip=math.inf) == simulated(clip=None)
    named = simulated(rounding="stochastic")
    assert simulated(rounding=mcf.Rounding("stochastic")) == named
    assert named.settings["rounding"] == "stochastic"
    assert simulated(rounding=mcf.Rounding("up", "saturate")).settings["rounding"]["overflow"] == "saturate"
    assert simulated(strategies="plain") == simulated(strategies=["plain"])
    assert simulated(strategies=mcf.strategy("plain")) == simulated(strategies=("plain",))
    assert simulated(strategies=(name for name in ("plain", "kahan"))).results.keys() == {"plain", "kahan"}
    by_name = declared(parameter=Stored("bf16"), m=Stored("fp32"), v=Stored("fp32"), gradient=Stored("e5m2"))
    assert by_name.bytes_per_parameter == 2 + 4 + 4 + 1


# -- declarations -----------------------------------------------------------------------------------------
METHODS = product(
    (Declaration, Staged, mcf.SGD), ("scalars", "rounded_hyperparameters", "step", "parts", "keeps")
)


@pytest.mark.parametrize(("base", "name"), [*METHODS, (Staged, "stages")])
def test_a_hyperparameter_hides_no_method(base, name):
    with pytest.raises(TypeError, match=f"^Own: a field called {name} would hide a declaration's method;"):
        type("Own", (base,), {"__annotations__": {"decay": float, name: float}, name: 1.0})


def test_an_own_optimizer_may_change_what_it_declares_and_its_defaults():
    class Own(mcf.SGD):
        slots: ClassVar[tuple[Slot, ...]] = ()
        momentum: float = 0.5

    assert dataclass(frozen=True)(Own)().momentum == 0.5


@pytest.mark.parametrize("name", [name for name in mcf.STRATEGIES if name not in ("fp32", "exact")])
def test_a_strategy_whose_low_format_is_open_does_nothing(name):
    """Not by itself, nor when it was copied by way of a pickle."""
    for item in (mcf.STRATEGIES[name], pickle.loads(pickle.dumps(mcf.STRATEGIES[name]))):
        for still_open in (item, item.at(LOW), item.at(pickle.loads(pickle.dumps(LOW)))):
            with pytest.raises(ValueError, match=f"the low format of strategy '{name}' is still open"):
                optimizer(strategy=still_open)
            with pytest.raises(ValueError, match="still open"):
                still_open.roles()
            with pytest.raises(ValueError, match="the low format is still open"):
                assert still_open.bytes_per_parameter
        settled = item.at(mcf.get_format("bfloat16"))
        assert settled == mcf.strategy(name)
        assert optimizer(strategy=settled).strategy is settled


def test_a_format_of_ones_own_called_low_is_itself():
    """And so is one that has the fields of the placeholder."""
    mine = Format("low", precision=5, emin=-20, emax=20)
    twin = Format("twin", precision=2, emin=0, emax=0)
    assert [is_open(item) for item in (mine, twin, LOW, None)] == [False, False, True, False]
    for fmt in (mine, twin):
        kept = declared(parameter=Stored(fmt), m=Stored("float32"), v=Stored("float32"), gradient=Stored(fmt))
        assert mcf.strategy(kept, "bfloat16").parameter.format.name == fmt.name
        assert optimizer(strategy=mcf.strategy(kept)).roles.model.format == fmt
