"""Bad input to what trains: refused by name, before anything is changed."""

import math
import pickle
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import Format
from mcfsim.optim.declaration import Declaration, Slot
from mcfsim.optim.staged import Staged
from mcfsim.optim.strategies import LOW, Stored, is_open
from mcfsim.problems import Corpus, LanguageModel, LogisticRegression, Quadratic, Rosenbrock


def named(value):
    """Name a case alike in every process: without the address of an object."""
    return str(value).split(" at 0x")[0]


START = {"w": np.ones(3)}
PROBLEM = Rosenbrock()


def simulated(**changes):
    return mcf.simulate(**{"problem": PROBLEM, "strategies": ["plain"], "steps": 2, **changes})


def stepped(**changes):
    optimizer = mcf.Optimizer(mcf.SGD(), mcf.strategy("plain"), START)
    return optimizer.step(**{"gradient": np.zeros(3, np.float32), "rate": 0.1, **changes})


def rate(**changes):
    return mcf.Schedule().rate(**{"step": 1, "steps": 10, **changes})


def stored(**changes):
    return Stored(**{"format": LOW, **changes})


def declared(**changes):
    return mcf.Strategy(**{"name": "mine", **changes})


REALS = [
    *((mcf.Schedule, label) for label in ("peak", "final")),
    *((mcf.AdamW, label) for label in ("beta1", "beta2", "epsilon", "weight_decay")),
    *((mcf.SGD, label) for label in ("momentum", "weight_decay")),
    *((Quadratic, "condition_number"), (LogisticRegression, "l2"), (stepped, "rate"), (simulated, "clip")),
]
INTEGERS = [
    *((mcf.Schedule, "warmup"), (rate, "step"), (rate, "steps"), (stored, "components")),
    *(
        (declared, "beta2_components"),
        (Quadratic, "dimension"),
        (Quadratic, "seed"),
        (Rosenbrock, "dimension"),
    ),
    *((LanguageModel, label) for label in ("layers", "width", "heads", "context", "batch")),
    *(
        (simulated, label)
        for label in ("steps", "seed", "record_every", "truth_sample", "checkpoint_every", "precision")
    ),
]
NOTHING_REAL = [
    "1",
    b"1",
    1j,
    [1.0],
    (),
    {},
    True,
    np.bool_(True),
    np.ones(1),
    Decimal("0.5"),
    ...,
    float,
]
NOT_FINITE = [math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf"), 10**400, -(10**400)]
NO_INTEGER = [
    *NOTHING_REAL,
    None,
    2.0,
    2.5,
    np.float64(2),
    math.nan,
    math.inf,
    Fraction(2),
    np.timedelta64(2, "s"),
]


@pytest.mark.parametrize(("make", "label"), REALS)
@pytest.mark.parametrize("bad", [*NOTHING_REAL, None], ids=named)
def test_what_is_no_real_number_is_refused_by_name(make, label, bad):
    if (make, label) == (simulated, "clip") and bad is None:
        pytest.skip("no clipping")
    with pytest.raises(TypeError, match=rf"^{label} must be a real number, not"):
        make(**{label: bad})


@pytest.mark.parametrize(("make", "label"), REALS)
@pytest.mark.parametrize("bad", NOT_FINITE, ids=lambda x: f"{type(x).__name__} {str(x)[:5]}")
def test_what_is_not_finite_is_refused_by_name(make, label, bad):
    if (make, label) == (simulated, "clip") and bad == math.inf and not isinstance(bad, int):
        assert simulated(clip=bad) == simulated(clip=None)
        return
    with pytest.raises(ValueError, match=rf"^{label} = .*must"):
        make(**{label: bad})


@pytest.mark.parametrize(("make", "label"), INTEGERS)
@pytest.mark.parametrize("bad", NO_INTEGER, ids=named)
def test_what_is_no_integer_is_refused_by_name(make, label, bad):
    with pytest.raises(TypeError, match=rf"{label} must be an int, not"):
        make(**{label: bad})


@pytest.mark.parametrize(("make", "label"), INTEGERS)
@pytest.mark.parametrize("bad", [-1, -(10**30)])
def test_negative_integers_are_refused_by_name(make, label, bad):
    with pytest.raises(ValueError, match=rf"{label} = -1"):
        make(**{label: bad})


@pytest.mark.parametrize(("make", "label"), REALS)
@pytest.mark.parametrize("kind", [float, np.float32, np.float64, Fraction])
def test_real_numbers_of_any_kind_become_floats(make, label, kind):
    good = 2.0 if label == "condition_number" else 0.5
    made = make(**{label: kind(good)})
    if hasattr(made, label):
        assert (getattr(made, label), type(getattr(made, label))) == (good, float)


@pytest.mark.parametrize("kind", [int, np.int8, np.int64, np.uint64])
def test_integers_of_numpy_become_integers(kind):
    """So that they can be written into a record."""
    schedule = mcf.Schedule(warmup=kind(3))
    assert type(schedule.warmup) is int
    run = simulated(steps=kind(3), seed=kind(1), record_every=kind(1), schedule=schedule)
    assert run == simulated(steps=3, seed=1, record_every=1, schedule=mcf.Schedule(warmup=3))
    assert type(run.settings["steps"]) is type(run.settings["seed"]) is int


# -- learning rates --------------------------------------------------------------------------------------
def test_a_schedule_has_the_steps_of_its_run_only():
    with pytest.raises(ValueError, match="step = 11 is beyond the last of 10"):
        mcf.Schedule().rate(11, 10)
    with pytest.raises(ValueError, match="step = 0 must be at least 1"):
        mcf.Schedule().rate(0, 10)


def test_every_rate_of_every_schedule_is_finite():
    for peak in (5e-324, 1.0, 1.7e308):
        for warmup in (0, 1, 10, 10**6):
            schedule = mcf.Schedule(peak, warmup)
            rates = [schedule.rate(step, 20) for step in range(1, 21)]
            assert all(0 <= x <= peak for x in rates)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, "0.1", None])
def test_a_refused_rate_leaves_the_optimizer_as_it_was(bad):
    optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy("collage-plus"), START)
    before = [item.copy() for part in optimizer.state for item in part]
    with pytest.raises((TypeError, ValueError), match="rate"):
        optimizer.step(np.ones(3, np.float32), bad)
    assert optimizer.count == 0
    for old, now in zip(before, (item for part in optimizer.state for item in part), strict=True):
        np.testing.assert_array_equal(old, now)


class Refused(mcf.SGD):
    def step(self, *arguments):
        raise ValueError("no exact path")


def test_a_step_that_the_arithmetic_refuses_leaves_it_too():
    optimizer = mcf.Optimizer(Refused(), mcf.strategy("plain"), START)
    with pytest.raises(ValueError, match="no exact path"):
        optimizer.step(np.ones(3, np.float32), 0.1)
    assert optimizer.count == 0
    assert optimizer.state.parameter[0].tolist() == [1.0, 1.0, 1.0]


# -- hyperparameters, strategies, problems ---------------------------------------------------------------
NO_HYPERPARAMETERS = ["adamw", mcf.AdamW, mcf.SGD, None, 0.9, {"beta1": 0.9}, mcf.adamw, mcf.Schedule()]


@pytest.mark.parametrize("bad", NO_HYPERPARAMETERS, ids=named)
def test_an_optimizer_takes_hyperparameters_only(bad):
    with pytest.raises(TypeError, match=r"^hyper must be hyperparameters, as mcfsim.AdamW\(\)"):
        mcf.Optimizer(bad, mcf.strategy("plain"), START)


@pytest.mark.parametrize("bad", [bad for bad in NO_HYPERPARAMETERS if bad != "adamw"], ids=named)
def test_a_run_takes_hyperparameters_or_a_name(bad):
    with pytest.raises(TypeError, match=r"^optimizer must be hyperparameters, as mcfsim.AdamW\(\)"):
        simulated(optimizer=bad)
    assert simulated(optimizer="adamw") == simulated(optimizer=mcf.AdamW())


@pytest.mark.parametrize("name", ["scalars", "entering", "step", "parts", "keeps"])
@pytest.mark.parametrize("base", [Declaration, Staged, mcf.SGD])
def test_a_hyperparameter_hides_no_method(base, name):
    with pytest.raises(TypeError, match=f"^Own: a field called {name} would hide a declaration's method;"):
        type("Own", (base,), {"__annotations__": {"decay": float, name: float}, name: 1.0})


def test_an_own_optimizer_may_change_what_it_declares_and_its_defaults():
    class Own(mcf.SGD):
        slots: ClassVar[tuple[Slot, ...]] = ()
        momentum: float = 0.5

    assert dataclass(frozen=True)(Own)().momentum == 0.5
    with pytest.raises(TypeError, match=r"^Own: a field called stages would hide"):
        type("Own", (Staged,), {"__annotations__": {"stages": int}})


@pytest.mark.parametrize("bad", ["plain", None, mcf.Strategy, Stored(LOW), ["plain"]], ids=named)
def test_an_optimizer_takes_a_strategy_only(bad):
    with pytest.raises(TypeError, match=r"^strategy must be a Strategy, as strategy"):
        mcf.Optimizer(mcf.AdamW(), bad, START)


@pytest.mark.parametrize("name", [name for name in mcf.STRATEGIES if name not in ("fp32", "exact")])
def test_a_strategy_whose_low_format_is_open_does_nothing(name):
    """Not by itself, nor when it was copied by way of a pickle."""
    for item in (mcf.STRATEGIES[name], pickle.loads(pickle.dumps(mcf.STRATEGIES[name]))):
        for low in (LOW, pickle.loads(pickle.dumps(LOW))):
            for still_open in (item, item.at(low)):
                with pytest.raises(ValueError, match=f"the low format of strategy '{name}' is still open"):
                    mcf.Optimizer(mcf.AdamW(), still_open, START)
                with pytest.raises(ValueError, match="still open"):
                    still_open.roles()
                with pytest.raises(ValueError, match="the low format is still open"):
                    assert still_open.bytes_per_parameter
        settled = item.at(mcf.get_format("bfloat16"))
        assert settled == mcf.strategy(name)
        assert mcf.Optimizer(mcf.AdamW(), settled, START).strategy is settled


def test_a_low_format_that_is_open_trains_no_run():
    with pytest.raises(ValueError, match="still open"):
        simulated(low=LOW)


def test_a_format_of_ones_own_called_low_is_itself():
    """And so is one that has the fields of the placeholder."""
    mine = Format("low", precision=5, emin=-20, emax=20)
    twin = Format("twin", precision=2, emin=0, emax=0)
    assert [is_open(item) for item in (mine, twin, LOW, None)] == [False, False, True, False]
    for fmt in (mine, twin):
        kept = declared(parameter=Stored(fmt), m=Stored("float32"), v=Stored("float32"), gradient=Stored(fmt))
        assert mcf.strategy(kept, "bfloat16").parameter.format.name == fmt.name
        optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy(kept), {"w": np.array([1.09375, 1.5])})
        assert optimizer.roles.model.format == fmt


def test_names_stand_for_the_formats_that_are_stored():
    named = declared(parameter=Stored("bf16"), m=Stored("fp32"), v=Stored("fp32"), gradient=Stored("e5m2"))
    assert named.bytes_per_parameter == 2 + 4 + 4 + 1
    with pytest.raises(ValueError, match="unknown format 'bf61'"):
        Stored("bf61")


@pytest.mark.parametrize("label", ["parameter", "m", "v", "gradient", "extra"])
@pytest.mark.parametrize(
    "bad", ["bfloat16", mcf.get_format("bf16"), 2, LOW, Stored, [Stored(LOW)]], ids=named
)
def test_parts_of_a_strategy_are_stored_tensors(label, bad):
    with pytest.raises(TypeError, match=rf"^mine: {label} must be Stored\(format, components\), not"):
        declared(**{label: bad})


@pytest.mark.parametrize("bad", [None, 5, b"x", ("a",)])
def test_names_of_strategies_are_strings(bad):
    with pytest.raises(TypeError, match="a strategy's name must be a string"):
        declared(name=bad)
    with pytest.raises(TypeError, match="a strategy is a Strategy or the name of one"):
        mcf.strategy(bad)


@pytest.mark.parametrize("bad", [None, 5, [], {}, "add", b"grow"], ids=named)
def test_unknown_additions_are_refused(bad):
    with pytest.raises(ValueError, match=r"mine: unknown addition .*; allowed: plain, kahan, grow, master"):
        declared(addition=bad)


def test_one_strategy_may_stand_alone():
    assert simulated(strategies="plain") == simulated(strategies=["plain"])
    assert simulated(strategies=mcf.strategy("plain")) == simulated(strategies=("plain",))
    assert simulated(strategies=(name for name in ("plain", "kahan"))).results.keys() == {"plain", "kahan"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategies": None}, "strategies must be a sequence of names or Strategies"),
        ({"strategies": 3}, "strategies must be a sequence of names or Strategies"),
        ({"strategies": [None]}, "a strategy is a Strategy or the name of one, not None"),
        ({"strategies": [mcf.Strategy]}, "a strategy is a Strategy or the name of one"),
        ({"problem": None}, "problem must be a Problem"),
        ({"problem": Quadratic}, "problem must be a Problem, .* not <class"),
        ({"problem": 5}, "problem must be a Problem"),
        ({"schedule": 0}, "schedule must be a Schedule"),
        ({"schedule": 1e-3}, "schedule must be a Schedule"),
        ({"schedule": mcf.Schedule}, "schedule must be a Schedule"),
        ({"schedule": lambda step: 0.1}, "schedule must be a Schedule"),
    ],
)
def test_arguments_of_a_run_of_another_type(changes, message):
    with pytest.raises(TypeError, match=message):
        simulated(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "parameters must be a mapping of names to arrays, not NoneType"),
        (([np.ones(3)],), "parameters must be a mapping"),
        ((np.ones(3),), "parameters must be a mapping"),
        ((START, "w"), "decayed must be a collection of names, not 'w'"),
        ((START, None), "decayed must be a collection of names, not None"),
        ((START, True), "decayed must be a collection of names, not True"),
    ],
)
def test_parameters_of_another_type(arguments, message):
    with pytest.raises(TypeError, match=message):
        mcf.Optimizer(mcf.AdamW(), mcf.strategy("plain"), *arguments)


@pytest.mark.parametrize("bad", [[0.0] * 3, 0.0, None, "g"])
def test_gradients_of_another_type(bad):
    with pytest.raises(TypeError, match="the gradient must be an array"):
        stepped(gradient=bad)


@pytest.mark.parametrize("bad", [None, 5, ["quadratic"], Quadratic, Rosenbrock()], ids=named)
def test_a_problem_is_made_from_a_name_or_settings(bad):
    with pytest.raises(TypeError, match="a problem is made from its name or its settings"):
        mcf.get_problem(bad)


@pytest.mark.parametrize("bad", [{}, {"kind": None}, {"kind": []}, {"kind": "linear"}, "linear"], ids=named)
def test_unknown_problems(bad):
    with pytest.raises(ValueError, match=r"unknown problem .*; known problems: quadratic"):
        mcf.get_problem(bad)


@pytest.mark.parametrize("bad", ["text", b"text", 5, Corpus], ids=named)
def test_a_language_model_takes_a_corpus(bad):
    with pytest.raises(TypeError, match="corpus must be a Corpus"):
        LanguageModel(bad)
